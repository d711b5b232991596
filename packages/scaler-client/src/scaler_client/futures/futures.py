"""ScalerFuture: the standard library's Future without its cost per instance.

A pending future has no lock, no list of waiters and no list of callbacks. The first thread that needs one of them makes
a `Watch`, under a lock of the process. Outcomes are delivered in batches under that same lock: a future without a
watch is settled at once, one with a watch under its own lock. The first thread that asks for an outcome loads its
bytes, and fetches them first if they are in object storage. Of a mutable value the future keeps the received bytes, so
that later calls get the result as the task returned it. Of an immutable value the bytes (and their object in storage)
are released at once, unless pending calls depend on it: those hold a `ResultLease` until their outcomes arrive.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures._base import CANCELLED_AND_NOTIFIED, FINISHED, RUNNING
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scaler_client.core.graph_state import NodeNeed
from scaler_client.core.records import CallGroup, Dependency, Dump, Outcome, RunReports, is_call_known
from scaler_client.futures.argument_refs import Collector, ResultLease, ResultLeases, collector, same
from scaler_client.futures.results import (
    ProfilingInfo,
    dump_failure,
    is_interruption,
    load_outcome,
    profiling_info,
    refuse,
)
from scaler_client.futures.waiters import (
    Condition,
    FutureOwner,
    ThreadWaiter,
    WaitTimeoutError,
    Watch,
    deadline,
    due_callbacks,
    guard,
)
from scaler_client.notebook import Card, ShownInNotebooks, page_row
from scaler_client.objects.handles import StoredPayload, fetched, remade
from scaler_client.payloads import pickles
from scaler_client.payloads.pickles import load_with
from scaler_client.task_context import load_input
from scaler_protocol.errors import DeserializeError, ResultNotSerializableError, describe
from scaler_protocol.messages import Status

T = TypeVar("T")

_PENDING: Final = -1
_VALUE: Final = 10
"""Loaded: `_outcome` is the value."""
_ERROR: Final = 11
"""Loaded: `_outcome` is a Failure."""
_CANCELLED: Final = Status.CANCELLED
"""Found in half the time that the attribute of a class takes."""
_CONSTANTS: Final = pickles.SCALARS
KEEPING: Final = frozenset({Status.RAISED, Status.FAILED, _ERROR})
"""Futures with these statuses keep their call, for `retry`."""


def current(written: Outcome) -> Outcome | Dump | None:
    """A received outcome, or the new one if its object was lost and is made again; None until the new one is there."""
    made = remade(written[1])
    found: Outcome | Dump | None = made._as_input() if made is not None else written
    return found


class ScalerFuture(Future[T], ShownInNotebooks):
    """The result of one call, now or later: a `concurrent.futures.Future`, which can also be awaited.

    It counts as running from the start, queued or not, and can be cancelled until it is done. As an argument of another
    call it stands for its result. Made by `Client.submit`, `Client.submit_verbose` and `Client.get`.

    Attributes:
        task_id: the id of the task, which monitors show in hexadecimal; 0 for a node of a graph that is data.

    >>> future = client.submit(pow, 2, 10)
    >>> client.submit(sum, [future, 1]).result()
    1025
    """

    __slots__ = (
        "_call",
        "_group",
        "_needs",
        "_outcome",
        "_owner",
        "_reports",
        "_status",
        "_watch",
        "_weight",
        "task_id",
    )

    task_id: int

    def __init__(
        self, owner: FutureOwner, task_id: int, group: CallGroup, call: bytes, needs: Sequence[Dependency] = ()
    ) -> None:
        # Not the base class's: its condition and lists are what costs.
        self._owner = owner
        self.task_id = task_id
        self._group = group
        self._call = call
        """The payload of the call, until it has a result or is cancelled.

        After a mutable result was loaded, it is the payload of that result.
        """
        self._weight = len(call)
        self._needs = needs
        self._status = _PENDING
        self._outcome: Any = None
        self._reports: RunReports | None = None
        self._watch: Watch | None = None

    # --- what the core asks -----------------------------------------------------------------------------------------

    def _call_of(self, task: int) -> bytes:
        """The payload of the call."""
        return self._call

    def _needs_of(self, task: int) -> Sequence[Dependency]:
        """Its dependencies."""
        return self._needs

    def _received(self, timeout: float) -> Outcome:
        """Wait for the outcome and return it as received; for a future whose result nobody loads."""
        if self._status == _PENDING:
            self._wait(None if math.isinf(timeout) else timeout)
        return self._as_written() or (Status.CANCELLED, b"")

    def _as_input(self) -> Outcome | Dump | None:
        """The outcome for a task that depends on it: status and payload, or how to get them if the bytes are not kept.

        None while there is none.
        """
        if not self.done():
            return None
        if (written := self._as_written()) is not None:
            return current(written)
        return (Status.CANCELLED, b"") if self._status == Status.CANCELLED else self._dump

    def _dump(self) -> Outcome:
        try:
            if self._status == _VALUE:
                return Status.VALUE, self._group.dump(self._outcome)
            return Status.RAISED, dump_failure(self._outcome)
        except BaseException as error:  # sys.exit() in `__reduce__` fails the dependent task, which waits for this
            problem = f"a result or exception cannot be serialized as an argument of another task: {error!r}"
            return Status.FAILED, describe(ResultNotSerializableError(problem))

    def _as_written(self) -> Outcome | None:
        """The outcome as received, if it is kept."""
        with guard:
            if Status.VALUE <= self._status < Status.CANCELLED:
                return self._status, self._outcome
            if self._status == _VALUE and self._call:
                return Status.VALUE, self._call
            lease = _leases.find(self.task_id)
            return lease.written if lease is not None else None

    def _settle(self, status: int, outcome: Any, reports: RunReports | None = None) -> bool:
        """Set the outcome and wake waiters; False if it was done before. Calls no callbacks."""
        watch = self._watching()
        with watch.lock:
            if self._status != _PENDING:
                return False
            untold = watch.waiters[::-1]
            try:
                self._outcome, self._reports = outcome, reports
                if status not in KEEPING or not self._is_repeatable():
                    self._call, self._needs = b"", ()
                self._status = status
                self._notify(untold)
            finally:  # even if a signal handler raised: nothing else wakes them
                if self._status == status:
                    self._notify(untold)
        return True

    def _notify(self, waiters: list[Any]) -> None:
        """Notify these waiters that the future is done, from the last to the first; removes each notified one."""
        while waiters:
            waiter = waiters[-1]
            if self.cancelled():
                waiter.add_cancelled(self)
            elif self._failed():
                waiter.add_exception(self)
            else:
                waiter.add_result(self)
            waiters.pop()

    def _end_like(self, other: ScalerFuture[Any]) -> None:
        """Take the outcome of another future, which is an argument of this call and has failed."""
        self._settle(*(other._as_written() or (other._status, other._outcome)))

    # --- the interface of concurrent.futures ------------------------------------------------------------------------

    def cancel(self, timeout: float | None = None) -> bool:
        """Cancel the call, queued or running; returns False if it is done. Never blocks.

        The worker that runs the call is replaced.

        Args:
            timeout: without effect, for older programs.

        >>> import time
        >>> client.submit(time.sleep, 60).cancel()
        True
        """
        return self._end(Status.CANCELLED, None) or self._status == Status.CANCELLED

    def cancelled(self) -> bool:
        """Whether it was cancelled.

        >>> client.submit(abs, -1).cancelled()
        False
        """
        return self._status == Status.CANCELLED

    def running(self) -> bool:
        """Whether it is neither done nor cancelled.

        >>> import time
        >>> client.submit(time.sleep, 60).running()
        True
        """
        return self._status == _PENDING

    def done(self) -> bool:
        """Whether there is a result, an exception or a cancellation.

        >>> import time
        >>> client.submit(time.sleep, 60).done()
        False
        """
        return self._status != _PENDING

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result. Raises what the call raised, or the ScalerError with which the task failed.

        Args:
            timeout: seconds to wait, None for no limit. To fetch a result that is ready takes a second more at most.

        Raises:
            CancelledError: the call was cancelled.
            TimeoutError: there is no result within `timeout` seconds.
            DeserializeError: the result cannot be loaded here; the next call tries again.
            StorageLostError, OSError: the result cannot be fetched; the next call tries again.
            ValueError: `timeout` is not a number.
            RuntimeError: the calling thread is one that must not wait, such as a finalizer in a thread of the client.

        >>> client.submit(pow, 2, 10).result(timeout=60)
        1024
        """
        if self._status < _CANCELLED:
            self._finish(timeout)
        if self._status == _VALUE:
            value: T = self._outcome
            return value
        try:
            if self._status == _CANCELLED:
                raise CancelledError
            raise self._outcome[0].with_traceback(self._outcome[1])
        finally:
            # The traceback holds this frame, and this future the traceback.
            self = None  # type: ignore[assignment]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the exception that `result` raises; None if there is a result.

        Args:
            timeout: seconds to wait, None for no limit.

        Raises:
            CancelledError: the call was cancelled.
            TimeoutError: the call is not done within `timeout` seconds.
            ValueError: `timeout` is not a number.
            RuntimeError: the calling thread is one that must not wait, such as a finalizer in a thread of the client.

        >>> client.submit(int, "one").exception()
        ValueError("invalid literal for int() with base 10: 'one'")
        """
        try:
            if self._status < _CANCELLED:
                self._finish(timeout)
        except (DeserializeError, OSError) as problem:
            if isinstance(problem, TimeoutError) or is_interruption(problem):
                raise
            return problem
        try:
            if self._status == _CANCELLED:
                raise CancelledError
            if self._status == _VALUE:
                return None
            error: BaseException = self._outcome[0].with_traceback(self._outcome[1])
            return error
        finally:
            self = error = None  # type: ignore[assignment]

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call `fn(future)` when it is done: in the client's callback thread, or at once if it is done already.

        What asyncio adds, such as the callback of `asyncio.wait`, is called in its event loop.

        Args:
            fn: takes the future. Its exceptions are logged.

        >>> import threading
        >>> done = threading.Event()
        >>> client.submit(abs, -1).add_done_callback(lambda future: done.set())
        >>> done.wait(timeout=60)
        True
        """
        if getattr(fn, "__module__", "") == "asyncio.tasks":
            from scaler_client.futures.async_waits import LoopCallback

            if not self._add_waiter(waiter := LoopCallback(fn)):
                waiter.add_result(self)
            return
        if self._status == _PENDING:
            watch = self._watching()
            with watch.lock:
                if self._status == _PENDING:
                    watch.callbacks.append(fn)
                    due_callbacks.add(self)
                    return
        try:
            fn(self)
        except Exception:
            logging.getLogger("scaler").exception("exception calling callback for %r", self)

    def remove_done_callback(self, fn: Callable[[Future[T]], object]) -> int:
        """Remove a callback that has not been called; returns how often it was there, as futures of asyncio do.

        Args:
            fn: what `add_done_callback` was given.

        >>> import time
        >>> future = client.submit(time.sleep, 60)
        >>> future.add_done_callback(print)
        >>> future.remove_done_callback(print)
        1
        """
        if (watch := self._watch) is None:
            return 0
        with watch.lock:
            removed = watch.remove_waiters(fn)
            if self._status == _PENDING:  # otherwise a thread calls them now
                removed += watch.remove_callbacks(fn)
                if not watch.callbacks:
                    due_callbacks.discard(self)
            return removed

    def _invoke_callbacks(self) -> None:
        """Call the pending callbacks."""
        if self._watch is not None:
            due_callbacks.call(self, self._watch.callbacks)

    def retry(self) -> ScalerFuture[T]:
        """Submit the call again: the same function as it was then, arguments and options; returns a new future.

        For a call that has failed, whose future keeps it. This future stays as it is.

        Raises:
            InvalidStateError: the call has not failed, or this process does not know it: it takes results of other
                nodes of a graph, an argument of it has failed, or an earlier client of the session has submitted it.
            SubmitLimitError, ClientQuitError: as in `Client.submit`.

        >>> future = client.submit(int, "one")
        >>> future.exception()
        ValueError("invalid literal for int() with base 10: 'one'")
        >>> future.retry().exception()
        ValueError("invalid literal for int() with base 10: 'one'")
        """
        with guard:
            status, call, needs = self._status, self._call, self._needs
        if problem := self._unrepeatable(status, call):
            raise InvalidStateError(f"{self!r} cannot be retried: {problem}")
        again: ScalerFuture[T] = self._owner.submit_again(self._group, call, needs)
        return again

    def _is_repeatable(self) -> bool:
        """Whether the call can be submitted again by itself: it takes no results of other nodes of a graph."""
        return not any(isinstance(need, NodeNeed) for need in self._needs)

    def _unrepeatable(self, status: int, call: bytes) -> str:
        """Why the call cannot be submitted again; empty if it can."""
        if status == _PENDING:
            return "it has not ended"
        if status not in KEEPING:
            return f"it {'was cancelled' if status == _CANCELLED else 'has a result'}, and its call is not kept"
        if not is_call_known(self):
            return "an earlier client of the session has submitted it"
        if not call:
            return "it takes results of other nodes of its graph, or was not sent, since an argument of it has failed"
        return ""

    def profiling_info(self) -> ProfilingInfo:
        """What the run of the call cost.

        Raises:
            ValueError: the call has not been run to its end.

        >>> future = client.submit(abs, -1)
        >>> future.result(), future.profiling_info().attempt
        (1, 1)
        """
        if self._reports is None:
            raise ValueError(f"{self!r} was not run to its end: there is no profile")
        return profiling_info(*self._reports.profile(self.task_id))

    def set_running_or_notify_cancel(self) -> bool:
        """Whether it was not cancelled; for code that runs calls itself, as in `concurrent.futures`.

        >>> client.submit(abs, -1).set_running_or_notify_cancel()
        True
        """
        return self._status != _CANCELLED

    def set_result(self, result: T) -> None:
        """End the future with this result; the call is cancelled.

        Args:
            result: what `result` returns from now on.

        Raises:
            InvalidStateError: it is done.

        >>> import time
        >>> future = client.submit(time.sleep, 60)
        >>> future.set_result("enough")
        >>> future.result()
        'enough'
        """
        if not self._end(_VALUE, result):
            raise InvalidStateError(f"{self!r}")

    def set_exception(self, exception: BaseException | None) -> None:
        """End the future with this exception; the call is cancelled.

        Args:
            exception: what `result` raises from now on.

        Raises:
            TypeError: `exception` is not an instance of an exception class.
            InvalidStateError: it is done.

        >>> import time
        >>> future = client.submit(time.sleep, 60)
        >>> future.set_exception(KeyError("enough"))
        >>> future.exception()
        KeyError('enough')
        """
        if not isinstance(exception, BaseException):
            raise TypeError(
                f"exception={exception!r} is not an exception: pass an instance, such as ValueError('text')"
            )
        if not self._end(_ERROR, (exception, exception.__traceback__)):
            raise InvalidStateError(f"{self!r}")

    def __await__(self) -> Generator[Any, None, T]:
        from scaler_client.futures.async_waits import outcome_of  # asyncio takes long to import

        return outcome_of(self).__await__()

    def __reduce__(self) -> tuple[Any, ...]:
        found = collector()
        if not self.done() or self._is_stored_for(found.owner, pickles.load):
            return load_input, (self._add_to(found),)
        if (payload := self._payload_for(pickles.load)) is not None:
            return pickles.load, (payload,)
        if self._status in (Status.VALUE, _VALUE):
            return same, (self._made(),)
        found.failed = FailedArgumentError(self)
        return same, (None,)

    def _add_waiter(self, waiter: object) -> bool:
        """Add a waiter of concurrent.futures; False if the future is done already."""
        watch = self._watching()
        with watch.lock:
            if self._status != _PENDING:
                return False
            watch.waiters.append(waiter)
            return True

    def _remove_waiter(self, waiter: object) -> None:
        """Remove a waiter."""
        watch = self._watching()
        with watch.lock:
            watch.waiters.remove(waiter)

    def _is_stored(self) -> bool:
        """Whether the outcome is in object storage and not fetched yet."""
        return self._status < _CANCELLED and type(self._outcome) is StoredPayload

    def _is_stored_for(self, owner: FutureOwner, load: Callable[[Any], Any]) -> bool:
        """Whether the result is in object storage, readable by calls of this owner, and loaded with `load`."""
        status, payload = self._as_written() or (_PENDING, b"")
        stored = status == Status.VALUE and type(payload) is StoredPayload
        return stored and self._owner is owner and self._group.load == load

    def _payload_for(self, load: Callable[[Any], Any]) -> bytes | None:
        """The received bytes of the result, if they are kept and loaded with `load`; raises ScalerError."""
        status, payload = self._as_written() or (_PENDING, b"")
        return bytes(fetched(payload)) if status == Status.VALUE and self._group.load == load else None

    def _made(self) -> T:
        """The result as the task returned it, even if the value that `result` returned was changed since."""
        status, payload = self._as_written() or (_PENDING, b"")
        if status != Status.VALUE:
            return self.result()
        value: T = load_with(self._group.load, fetched(payload))
        return value

    def _add_to(self, call: Collector) -> int:
        """Add the result to the dependencies of a call; returns the task id.

        Raises ValueError if the call belongs to another client.
        """
        if self._owner is not call.owner:
            raise ValueError(f"{self!r} belongs to another client: its result is not known where this call will run")
        call.add(self._lease())
        return self.task_id

    def _lease(self) -> ResultLease:
        """The lease that calls hold while they depend on the result."""
        with guard:
            lease = _leases.find(self.task_id)
            if lease is None:
                _leases.add(lease := ResultLease(self.task_id, self._as_input))
        return lease

    def _failed(self) -> bool:
        """Whether there is an exception; loads nothing."""
        return self._status in KEEPING

    def __repr__(self) -> str:
        return f"<ScalerFuture {self.task_id:x} {self._word()}>"

    def _card(self) -> Card:
        task = f"{self.task_id:x}"
        return Card("Scaler future", self._word(), {"task": page_row(f"task/{task}", task)}, is_final=self.done())

    def _word(self) -> str:
        if self._status == _PENDING:
            return "pending"
        if self._status == _CANCELLED:
            return "cancelled"
        return "finished" if self._status in (Status.VALUE, _VALUE) else "failed"

    def _end(self, status: int, outcome: Any) -> bool:
        """Set the outcome, cancel the task and call callbacks; False if it was done before.

        If a signal handler raises on the way, threads of the client do the rest.
        """
        try:
            if not self._settle(status, outcome):
                return False
            self._owner.cancel((self.task_id,))
            self._invoke_callbacks()
            return True
        except BaseException:
            if self.done():
                self._owner.cancel((self.task_id,))
                self._owner.call_soon(self._invoke_callbacks)
            raise

    def _watching(self) -> Watch:
        if self._watch is None:
            with guard:
                if self._watch is None:
                    self._watch = Watch()
        return self._watch

    def _wait(self, timeout: float | None) -> None:
        with self._owner.waiting:
            waiter = ThreadWaiter()
            if not self._add_waiter(waiter):
                return
            try:
                if not waiter.wait(timeout):
                    raise WaitTimeoutError(f"{self!r} was not done within {float(timeout or 0):g} s")
            finally:
                self._remove_waiter(waiter)

    def _finish(self, timeout: float | None) -> None:
        """Wait, then load the value or exception; threads that do so concurrently get the same object."""
        until = math.inf if timeout is None else deadline(timeout)
        if self._status == _PENDING:
            self._wait(timeout)
        if self._status < _CANCELLED:
            if (fetching := self._group.fetching) is None:
                self._load_received(until)
            else:
                with fetching(self.task_id):
                    self._load_received(until)
        self = None  # type: ignore[assignment]  # see `load_failure`

    def _load_received(self, until: float) -> None:
        """Load the outcome that has been received."""
        with guard:
            status, payload = self._status, self._outcome
        if status >= _CANCELLED:
            return
        if status == Status.VALUE and type(payload) is not StoredPayload:
            try:
                loaded, outcome = _VALUE, self._group.load(payload)
            except BaseException as problem:  # the bytes stay, should it pass
                refuse("the result", problem)
        else:
            good, outcome = load_outcome(status, payload, self._group.load, until)
            loaded = _VALUE if good else _ERROR
        changeable = type(outcome) not in _CONSTANTS and loaded == _VALUE and not pickles.is_constant(outcome)
        with guard:
            if self._status == status:
                if changeable:
                    self._call = payload
                elif self.task_id in _leases and (lease := _leases.find(self.task_id)) is not None:
                    lease.written = status, payload
                self._status, self._outcome = loaded, outcome
        self = payload = outcome = None  # type: ignore[assignment]  # see `load_failure`

    if not TYPE_CHECKING:  # there these are plain attributes of the base class
        # What concurrent.futures.wait and as_completed, and asyncio, read.

        @property
        def _state(self) -> str:
            if self._status == _PENDING or (self._watch is not None and self._watch.is_taken()):
                return RUNNING
            return CANCELLED_AND_NOTIFIED if self._status == _CANCELLED else FINISHED

        @property
        def _condition(self) -> Condition:
            return Condition(self)

        _waiters = _condition

        @property
        def _done_callbacks(self) -> list[Any]:
            return self._watching().callbacks

    def _get_snapshot(self) -> tuple[bool, bool, Any, BaseException | None]:
        """Done, cancelled, result and exception; asyncio of Python 3.14 calls this method of the base class."""
        if self._status in (_PENDING, _CANCELLED):
            return self._status != _PENDING, self._status == _CANCELLED, None, None
        error = self.exception()
        return True, False, None if error else self._outcome, error


class FailedArgumentError(Exception):
    """An argument is a failed or cancelled future: the call ends like that future."""

    def __init__(self, argument: ScalerFuture[Any]) -> None:
        super().__init__()
        self.argument = argument


_leases = ResultLeases()


def finished_future(owner: FutureOwner, group: CallGroup, value: T) -> ScalerFuture[T]:
    """A future that has its result from the start."""
    future: ScalerFuture[T] = ScalerFuture(owner, 0, group, b"")
    future._settle(_VALUE, value)
    return future
