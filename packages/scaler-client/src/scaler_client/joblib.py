"""A backend of joblib: `import scaler_client.joblib`, then `joblib.parallel_config("scaler", address=…)`.

Needs joblib 1.4 or newer (`pip install scaler[joblib]`). joblib makes batches of short calls; a task
has one or several of them.
"""

from __future__ import annotations

import math
import os
import pickle
import threading
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from itertools import chain
from typing import Any, Final

from joblib._parallel_backends import FallbackToBackend, ParallelBackendBase, SequentialBackend
from joblib.parallel import BatchedCalls, register_parallel_backend
from xxhash import xxh3_128_digest

from scaler_client.api.client import Client
from scaler_client.calls.object_reference import ObjectReference
from scaler_client.calls.task_options import TaskOptions
from scaler_client.payloads.classes import PROTOCOL, Pickler, dumps
from scaler_client.payloads.pickles import SCALARS
from scaler_client.payloads.unpicklable import fault_in
from scaler_client.payloads.user_exceptions import add_note
from scaler_client.task_context import runtime
from scaler_io.reentrant_lock import ReentrantLock
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.ranges import shown

_SHARED_BYTES: Final = 1024 * 1024
"""Arguments of at least so many bytes are sent once for all calls, unless Parallel has another `max_nbytes`."""
_COPIED_BYTES: Final = INLINE_LIMIT
"""Smaller arguments of at least so many bytes are sent once, too, if calls have them in common; tasks copy them."""
_COPIES_BYTES: Final = 32 * 1024 * 1024
"""Pickles of such arguments that are remembered."""
_COMPRESSED_BYTES: Final = 128 * 1024
"""Batches up to this size are tried: compressing takes less than storing, fetching and deleting an object does."""
_ROOM_BYTES: Final = 256
"""For the rest of the call."""
_PICKLE: Final = 0x80
"""The first byte of a pickle."""
_TASK_SECONDS: Final = 0.3
"""The calls of a task shall take so long together: each process that a task passes takes up to some milliseconds."""
_BATCH_SECONDS: Final = 0.02
"""For the calls of one of joblib's batches, which costs some microseconds."""
_LAST_SECONDS: Final = 0.05
"""A task has calls for at least so long when what is left at the end is divided among the workers.

The calls of a grid search name all of the search: such a task costs client and worker ten milliseconds.
"""
_ASK_SECONDS: Final = 0.05
"""How long joblib is asked for further batches before those that are there are sent."""
_CLOCK_SECONDS: Final = 1e-7
_GROWTH: Final = 4
"""A task has at most so many times as many calls as the last one that has ended: the next calls may take longer."""


_Item = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
_Outcome = Future[tuple[list[list[Any]], float]]
_Callback = Callable[[tuple[_Outcome, int]], object]
_Batch = tuple[BatchedCalls, _Callback]


class _Shared:
    """Stands in a batch for an argument that is sent beside it; loaded, it is that argument."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at

    def __reduce__(self) -> tuple[Any, ...]:
        return _sent_value, (self.at,)


class _BatchPickler(Pickler):
    """Pickles batches; what is sent beside them is the same object wherever a call names it, as in a list."""

    def __init__(self, file: BytesIO, places: Mapping[int, tuple[Any, _Shared]]) -> None:
        super().__init__(file, PROTOCOL)
        self._places = places

    def reducer_override(self, obj: Any) -> Any:
        place = self._places.get(id(obj))
        return super().reducer_override(obj) if place is None else place[1].__reduce__()


_loading = threading.local()


def _sent_value(at: int) -> Any:
    return _loading.values[at]


def _packed(batch: bytes) -> bytes:
    """A pickle, compressed if it can travel within a message then and not through object storage."""
    if INLINE_LIMIT < len(batch) <= _COMPRESSED_BYTES:
        packed = zlib.compress(batch, 1)
        return packed if len(packed) < INLINE_LIMIT - _ROOM_BYTES else batch
    return batch


def _run_batches(packed: bytes, shared: int, *values: Any) -> tuple[list[list[Any]], float]:
    """The results of batches, in a worker, and how many seconds their calls took.

    Of the values, so many are arguments that are shared; the others are pickles of arguments.
    """
    _loading.values = [*values[:shared], *map(pickle.loads, values[shared:])]
    try:
        batches: list[BatchedCalls] = pickle.loads(packed if packed[0] == _PICKLE else zlib.decompress(packed))
    finally:
        del _loading.values
    began = time.perf_counter()
    results = [batch() for batch in batches]
    return results, time.perf_counter() - began


def _batch_dumps(batches: list[BatchedCalls], places: Mapping[int, tuple[Any, _Shared]]) -> bytes:
    file = BytesIO()
    _BatchPickler(file, places).dump(batches)
    return file.getvalue()


def _replaced(items: list[_Item], replace: Callable[[Any], Any]) -> list[_Item]:
    """The calls with other arguments."""
    return [
        (fn, tuple(map(replace, args)), {name: replace(value) for name, value in kwargs.items()})
        for fn, args, kwargs in items
    ]


class ScalerBackend(ParallelBackendBase):
    """Runs the batches of `joblib.Parallel` on a cluster. Made by `joblib.parallel_config("scaler", …)`.

    Calls of joblib inside of a task run on the same cluster if they ask for it with `n_jobs`. Arguments of 1 MiB and
    more, such as arrays, are sent once for each `Parallel` call, are shared by the workers of a host, and are
    read-only; they must not change meanwhile. Of slices with gaps, and of arrays of dates and of objects, each task
    has a copy of its own. `max_nbytes` of Parallel is another limit, None is no limit.

    Args:
        address: the scheduler. The connection lasts as long as the backend.
        client: a client to use instead of `address`, or inside a task.
        capabilities: what a worker must offer, by name; -1 for presence, otherwise a quantity.
        priority: higher is more urgent.
        retries: how often to run a batch again after an exception of its code.
        task_timeout_seconds: seconds that a batch may run; None for the default of the cluster.
        keys, insecure: as of Client.

    Raises:
        CapabilityError, ValueError, TypeError: an option is invalid, or neither address nor client is given.
        SchedulerLostError: the scheduler does not answer; raised by the call of Parallel.

    >>> import joblib, scaler_client.joblib
    >>> with joblib.parallel_config("scaler", client=client):
    ...     joblib.Parallel()(joblib.delayed(pow)(each, 2) for each in range(4))
    [0, 1, 4, 9]
    """

    supports_retrieve_callback = True

    def __init__(
        self,
        address: str | None = None,
        client: Client | None = None,
        capabilities: Mapping[str, int] | None = None,
        priority: int = 0,
        retries: int = 0,
        task_timeout_seconds: float | None = None,
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        nesting_level: int | None = None,
    ) -> None:
        if address is None and client is None and runtime() is None:
            raise ValueError('the backend "scaler" needs address="tcp://host:port" or client=')
        if client is not None and not isinstance(client, Client):
            raise TypeError(f"client is {shown(client)}, not a Client")
        TaskOptions.of(capabilities, False, priority, retries, task_timeout_seconds)
        super().__init__(nesting_level=nesting_level)
        self.default_n_jobs = 1 if nesting_level else -1
        self._task_options: dict[str, Any] = {
            "capabilities": capabilities,
            "priority": priority,
            "retries": retries,
            "task_timeout_seconds": task_timeout_seconds,
        }
        self._connection: dict[str, Any] = {"address": address, "keys": keys, "insecure": insecure}
        self._client = client
        self.parallel: Any = None
        self._lender: ScalerBackend | None = None
        """The backend whose connection this one uses, which lasts as long as that one."""
        self._shared: dict[int, tuple[Any, ObjectReference[Any]]] = {}
        """By identity: arguments of this call that were sent; they are kept alive, so that no other one has theirs."""
        self._copies = _Copies()
        self._max_bytes: int | None = _SHARED_BYTES
        self._jobs = 1
        self._limit: float = 1
        self._groups: _Groups | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._task_options, self.nesting_level)

    def _connected(self) -> Client:
        if self._client is None:
            self._client = Client(**self._connection)
            weakref.finalize(self, self._client.disconnect)
        return self._client

    # --- what joblib calls ------------------------------------------------------------------------------------------

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many calls run side by side: `n_jobs`; -1 for as many as there are workers, -2 for one less."""
        if n_jobs == 0:
            raise ValueError("n_jobs=0 has no meaning: give the number of calls that may run side by side, or -1")
        if n_jobs is None:
            n_jobs = self.default_n_jobs
        return max(1, self._workers() + 1 + n_jobs) if n_jobs < 0 else n_jobs

    def _workers(self) -> int:
        """How many workers there are; inside a task, which cannot ask, as many as this host has CPUs."""
        return (os.cpu_count() or 1) if runtime() is not None else self._connected().workers().count

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
        """A call of Parallel begins."""
        if n_jobs != 1 and self.parallel is not parallel:
            raise FallbackToBackend(self._of(parallel))
        count = self.effective_n_jobs(n_jobs)
        if n_jobs == 1 or (count == 1 and self.nesting_level):
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        # Where the workers are the limit, each has another task ahead; further workers may come for a backlog.
        ahead = math.inf if parallel.pre_dispatch == "all" else 2 * count
        self._jobs, self._limit = count, count if count < self._workers() else ahead
        self._max_bytes = options.get("max_nbytes", _SHARED_BYTES)
        return count

    def _of(self, parallel: Any) -> ScalerBackend:
        """This backend for one Parallel: several may be under way, with `return_as` or in threads, and one may fail."""
        backend = ScalerBackend(client=self._connected(), nesting_level=self.nesting_level, **self._task_options)
        backend.parallel, backend._lender = parallel, self
        return backend

    def start_call(self) -> None:
        """A call of Parallel has found out how many workers it has."""
        self._groups = _Groups(self.parallel, self._jobs, self._limit, self._send)

    def submit(self, func: BatchedCalls, callback: _Callback) -> None:
        """Send a batch; `callback` is called when it has ended, with what `retrieve_result_callback` takes."""
        assert self._groups is not None
        self._groups.start(func, callback)

    def _send(self, batches: list[BatchedCalls]) -> _Outcome:
        client = self._connected()
        try:
            places, shared, copies = self._share(client, batches)
            # One pickle without buffers beside it: smaller arrays are the worker's own, and may be changed there.
            packed = _packed(_batch_dumps(batches, places) if places else dumps(batches))
        except Exception as error:
            if fault := fault_in("the calls", list(chain.from_iterable(batch.items for batch in batches)), dumps):
                add_note(error, fault)
            raise
        return client.submit_verbose(_run_batches, (packed, len(shared), *shared, *copies), {}, **self._task_options)

    def _share(
        self, client: Client, batches: list[BatchedCalls]
    ) -> tuple[dict[int, tuple[Any, _Shared]], list[ObjectReference[Any]], list[bytes]]:
        """The big arguments of batches, which are sent if they were not yet, and pickles of those of medium size.

        Afterwards the batches have their places in these lists, one after the other. The first item has these, too, by
        the identity of the argument, which it keeps alive: others may name it within theirs.
        """
        items = chain.from_iterable(batch.items for batch in batches)
        values = chain.from_iterable((*args, *kwargs.values()) for _, args, kwargs in items)
        distinct = {
            id(value): value for value in values if type(value) not in SCALARS
        }  # most calls have some in common
        sizes = {identity: size for identity, value in distinct.items() if (size := _size(value)) >= _COPIED_BYTES}
        if not sizes:
            return {}, [], []
        limit = math.inf if self._max_bytes is None else self._max_bytes
        big = [identity for identity, size in sizes.items() if size >= limit]
        medium = [identity for identity, size in sizes.items() if size < limit]
        copies = [self._copies.pickle(distinct[identity]) for identity in medium]
        for identity in big:
            if identity not in self._shared:
                self._shared[identity] = distinct[identity], client.send_object(distinct[identity])
        places = {identity: (distinct[identity], _Shared(at)) for at, identity in enumerate((*big, *medium))}
        for batch in batches:
            batch.items = _replaced(batch.items, lambda value: places.get(id(value), (None, value))[1])
        return places, [self._shared[identity][1] for identity in big], copies

    def retrieve_result_callback(self, out: tuple[_Outcome, int]) -> list[Any]:
        """The results of a batch that has ended, the n-th of a task; raises what its code has raised."""
        future, at = out
        return future.result()[0][at]

    def compute_batch_size(self) -> int:
        """How many calls the next batch has.

        By how long the calls took alone. joblib's own sizes follow the time from sending to receiving, most of which a
        batch waits for a worker.
        """
        return self._groups.calls_for(_BATCH_SECONDS) if self._groups is not None else 1

    @contextmanager
    def retrieval_context(self) -> Iterator[None]:
        """While results are waited for inside a task, its worker's place is free for other tasks."""
        with self._connected()._calls.waiting:
            yield

    def get_nested_backend(self) -> tuple[ParallelBackendBase, int | None]:
        """What calls of joblib inside of the tasks use."""
        return ScalerBackend(
            client=self._client, nesting_level=(self.nesting_level or 0) + 1, **self._task_options
        ), None

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """A call has failed or was interrupted: cancel the others."""
        if self._groups is not None:
            self._groups.cancel()

    def stop_call(self) -> None:
        """A call of Parallel has ended."""
        self._shared.clear()
        self._copies = _Copies()


def _again(task_options: dict[str, Any], nesting_level: int | None) -> ScalerBackend:
    """The backend of calls inside a task."""
    return ScalerBackend(nesting_level=nesting_level, **task_options)


def _size(value: Any) -> int:
    """About how many bytes an argument has, as far as this can be told without serializing it; otherwise 0."""
    if isinstance(value, bytes | bytearray | str):
        return len(value)
    try:
        for data in (value, getattr(value, "data", None)):  # arrays; sparse matrices
            if isinstance(size := getattr(data, "nbytes", None), int):
                return size
        if callable(usage := getattr(value, "memory_usage", None)):  # tables and series of pandas
            used = usage()
            return int(used.sum() if hasattr(used, "sum") else used)
    except Exception:  # names like these may mean anything elsewhere
        return 0
    return 0


class _Copies:
    """Pickles of arguments that the program may change; equal ones are one object, which is sent once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = ReentrantLock()
        self._pickles: dict[bytes, bytes] = {}
        """By digest, the latest ones last."""
        self._size = 0

    def pickle(self, value: Any) -> bytes:
        """The pickle of a value as it is now."""
        data = dumps(value)
        digest = xxh3_128_digest(data)
        with self._lock:
            found = self._pickles.pop(digest, None)
            if found is None:
                self._size += len(data)
                found = data
            self._pickles[digest] = found
            while self._size > _COPIES_BYTES:
                self._size -= len(self._pickles.pop(next(iter(self._pickles))))
        return found


class _Groups:
    """Makes tasks of the batches of one call of Parallel. Thread-safe.

    joblib gives a batch away when another one has ended, and divides what is left at its end into batches of one call.
    Each task costs some milliseconds, so batches are short here, more of them are asked for ahead, and a task is made
    of as many as take `_TASK_SECONDS`. At the end, what is left is divided among the workers.
    """

    def __init__(self, parallel: Any, jobs: int, limit: float, send: Callable[[list[BatchedCalls]], _Outcome]) -> None:
        """At most `limit` tasks are under way, to be run by `jobs` workers."""
        self._parallel, self._jobs, self._limit, self._send = parallel, jobs, limit, send
        self._joins = parallel.batch_size == "auto"
        """Whether a task may have several batches, and not each batch the size that the caller wants."""
        self._lock = ReentrantLock()
        self._ahead: deque[_Batch] = deque()
        self._calls_ahead = 0
        self._is_all_ahead = False
        """Whether joblib has no further calls."""
        self._futures: set[_Outcome] = set()
        self._under_way = self._collecting = 0
        """Tasks, and threads that will call `_send_more` when they have all that there is."""
        self._last_calls, self._call_seconds = 0, math.inf
        """Of the task that has ended last: its calls, and how long each took."""

    def start(self, batch: BatchedCalls, callback: _Callback) -> None:
        """Send a batch now, or when a task has ended, in a task of its own or with others."""
        with self._lock:
            self._ahead.append((batch, callback))
            self._calls_ahead += len(batch.items)
        self._send_more()

    def cancel(self) -> None:
        """Cancel all calls."""
        with self._lock:
            self._drop_ahead()
            futures = list(self._futures)
        for future in futures:
            future.cancel()

    def calls_for(self, seconds: float) -> int:
        """How many calls take so long together, by the last ones; the next ones may take longer."""
        return max(1, min(int(seconds / self._call_seconds), _GROWTH * self._last_calls))

    def _drop_ahead(self) -> None:
        self._ahead.clear()
        self._calls_ahead = 0

    def _take(self) -> list[_Batch]:
        """The batches of the next task; none if it must wait."""
        with self._lock:
            if self._collecting or self._under_way == self._limit or not self._ahead:
                return []
            most = self.calls_for(_TASK_SECONDS)
            if self._is_all_ahead:
                most = min(most, max(self.calls_for(_LAST_SECONDS), -(-self._calls_ahead // (2 * self._jobs))))
            taken = [self._ahead.popleft()]
            calls = len(taken[0][0].items)
            while self._joins and self._ahead and calls + len(self._ahead[0][0].items) <= most:
                taken.append(self._ahead.popleft())
                calls += len(taken[-1][0].items)
            self._calls_ahead -= calls
            self._under_way += 1
            return taken

    def _send_more(self) -> None:
        while taken := self._take():
            try:
                future = self._send([batch for batch, _ in taken])
            except Exception as error:  # joblib takes it from the callback only: this may be a thread of the client
                future = Future()
                future.set_exception(error)
            with self._lock:
                self._futures.add(future)
            future.add_done_callback(partial(self._ended, taken))

    def _ended(self, taken: list[_Batch], future: _Outcome) -> None:
        seconds = None if future.cancelled() or future.exception() is not None else future.result()[1]
        with self._lock:
            self._futures.discard(future)
            self._under_way -= 1
            self._collecting += 1
            if seconds is None:
                self._drop_ahead()  # joblib ends the call
            else:
                self._last_calls = sum(len(batch.items) for batch, _ in taken)
                self._call_seconds = max(seconds, _CLOCK_SECONDS) / self._last_calls
        try:
            for at, (_, callback) in enumerate(taken):
                callback((future, at))
            self._ask_ahead()
        finally:
            with self._lock:
                self._collecting -= 1
            self._send_more()

    def _ask_ahead(self) -> None:
        """Have joblib give away as many calls as the next tasks will have, as its own callback does with one batch.

        What a slow iterable has given until then is sent without the rest.
        """
        parallel, enough = self._parallel, self._limit * self.calls_for(_TASK_SECONDS)
        until = time.monotonic() + _ASK_SECONDS
        while self._joins and not self._is_all_ahead and self._calls_ahead < enough and time.monotonic() < until:
            with parallel._lock:
                if parallel._original_iterator is None or parallel._aborting:
                    self._is_all_ahead = True
                else:
                    parallel.dispatch_next()


register_parallel_backend("scaler", ScalerBackend)
