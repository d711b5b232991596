"""The client: submits calls and returns futures."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from scaler_client.api.map_of_tuples import run_map
from scaler_client.api.optioned_calls import BUFFER, OptionedCalls, columns
from scaler_client.api.pickled_clients import unpickled
from scaler_client.api.submitter import CallSubmitter, progress_bar
from scaler_client.calls.object_reference import ObjectReference
from scaler_client.calls.task_options import TaskOptions
from scaler_client.client_name import client_name
from scaler_client.futures.futures import ScalerFuture
from scaler_client.interrupts import interrupts_blocked
from scaler_client.parameters import (
    can_prefetch,
    check,
    check_client,
    check_session,
    flag,
    items,
    key_settings,
    keywords,
)
from scaler_client.payloads.serializers import DefaultSerializer
from scaler_client.task_context import runtime
from scaler_protocol.ids import new_identity
from scaler_protocol.limits import NAME
from scaler_protocol.ranges import shown
from scaler_protocol.serializer import Serializer

if TYPE_CHECKING:
    from scaler_client.api.client_session import ClientSession
    from scaler_client.api.connected_workers import ConnectedWorkers
    from scaler_client.api.executor import ClientExecutor
    from scaler_client.runtime.io_thread import IoThread

T = TypeVar("T")
_TASK_ENDED = "the task that this client belonged to has ended: let a task wait for its threads that submit calls"


class Client:
    """A connection to a cluster, which submits calls and returns futures. Thread-safe; also a context manager.

    Args:
        address: the scheduler, `tcp://host:port` or `ipc://path`. Optional inside a task, where the client belongs to
            the cluster that runs the task.
        profiling: without effect, for older programs; profiles are always taken.
        timeout_seconds: how long the scheduler may be unreachable, while connecting and later, before
            SchedulerLostError is raised, or ends the futures.
        heartbeat_interval_seconds: without effect, for older programs; the scheduler chooses the interval.
        serializer: a Serializer, or its class, for functions, arguments and results; cloudpickle by default.
        stream_output: whether to print here what tasks print; `"prefixed"` puts task, worker and host before each line.
        object_storage_address: the object storage server, if not the one that the scheduler names.
        security_config: None only, for older programs.
        keys: the directory of the cluster's keys; by default `SCALER_KEYS`, or, at an address that only this host can
            reach, this user's own keys. The connection is encrypted, and both sides prove a key. Inside tasks the
            workers' keys are taken.
        insecure: use no keys, as the services of a cluster with `--insecure` do; by default as `SCALER_INSECURE` says.
        block: whether `submit`, `map`, `get` and their like wait while this client has as many unfinished tasks as the
            scheduler allows (`--max-number-of-tasks-waiting`); otherwise they raise SubmitLimitError then.
        session: the name of a session that outlives this client: its tasks go on without it, and a later client with
            the same name gets their futures, see the property `session`. One client at a time has it.
        session_secret: what proves the session; by default the secret key in `keys`, and without keys nothing.
        name: what pages, logs and events call this client; by default user, host, script and process, such as
            `ann@vm train.py 4711`.

    Raises:
        AddressError, ValueError, TypeError: a parameter is invalid; the message names it.
        ValueError: the keys cannot be read, or others can read them.
        HandshakeRefusedError: the scheduler does not accept the key, or has another one than the key was made for; the
            session has another secret.
        SessionInUseError: another client has the session.
        SchedulerLostError: the scheduler does not answer within `timeout_seconds`.

    >>> with Client(address=address) as client:
    ...     client.submit(pow, 2, 10).result()
    1024
    """

    def __init__(
        self,
        address: str | None = None,
        profiling: bool = False,
        timeout_seconds: float = 60,
        heartbeat_interval_seconds: float = 2,
        serializer: Serializer | type[Serializer] = DefaultSerializer,
        stream_output: bool | str = False,
        object_storage_address: str | None = None,
        security_config: None = None,
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        block: bool = True,
        session: str | None = None,
        session_secret: str | bytes | None = None,
        name: str | None = None,
    ) -> None:
        security = key_settings(keys, insecure, security_config)
        check_client(address, timeout_seconds, serializer, stream_output, object_storage_address)
        check_session(session, session_secret)
        with interrupts_blocked():  # ZeroMQ and the like take most of the start-up time: services start meanwhile
            from scaler_client.runtime import connection

        self._settings: dict[str, Any] = {
            "address": address,
            "profiling": profiling,
            "timeout_seconds": timeout_seconds,
            "heartbeat_interval_seconds": heartbeat_interval_seconds,
            "serializer": serializer,
            "stream_output": stream_output,
            "object_storage_address": object_storage_address,
            "keys": None if keys is None else security[0],
            "insecure": insecure,
            "block": flag("block", block),
            "name": name,
        }
        self._timeout_seconds, self._identity, self._name = timeout_seconds, new_identity(), client_name(name)
        named = connection.SessionName.of(session, session_secret) if session is not None else None
        self._io, self._inside = connection.connect(
            runtime(), address, self._identity, self._name, timeout_seconds, object_storage_address, security, named
        )
        try:
            self._calls = CallSubmitter(
                self._io, self._inside, serializer, stream_output, waits=block, patience=float(timeout_seconds)
            )
        except BaseException:
            if self._inside is None:
                self._io.stop()
            raise
        self._session = self._calls.session(session) if session is not None else None

    # --- calls ------------------------------------------------------------------------------------------------------

    @overload
    def submit(self, fn: Callable[..., Coroutine[Any, Any, T]], /, *args: Any, **kwargs: Any) -> ScalerFuture[T]: ...

    @overload
    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> ScalerFuture[T]: ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ScalerFuture[Any]:
        """Submit one call; does not wait for it, only for room, see `block` of Client.

        Args:
            fn: any callable. If it returns a coroutine, the worker awaits it.
            args, kwargs: its arguments; futures and ObjectReferences are replaced by their values, at any depth.
                `profiling=True` is ignored, for older programs, unless the function takes it.

        Raises:
            TypeError: the function does not accept these arguments, or something cannot be serialized: then it may also
                be `pickle.PicklingError`, or what a `__reduce__` raises.
            SubmitLimitError: there is no room, and this is a client with `block=False`.
            ClientQuitError: the client is disconnected.

        >>> client.submit(max, [3, 1, 2], default=0).result()
        3
        """
        calls = self._calls
        callee = calls.find(fn)
        if kwargs and "profiling" in kwargs and callee.check.known and not callee.check.takes_profiling:
            del kwargs["profiling"]
        callee.check.check(*args, **kwargs)
        group = callee.group if self._inside is None else None
        return calls.send(group or calls.group(callee), args, kwargs)

    def submit_verbose(
        self,
        fn: Callable[..., T],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        capabilities: Mapping[str, int] | None = None,
        *,
        reserialize: bool = False,
        priority: int = 0,
        retries: int = 0,
        task_timeout_seconds: float | None = None,
    ) -> ScalerFuture[T]:
        """Submit one call with options; does not wait for it.

        Args:
            fn: any callable.
            args, kwargs: its arguments, as a sequence and as a mapping.
            capabilities: what a worker must offer, by name; -1 for presence, otherwise a quantity.
            reserialize: serialize the function and large arguments again although they seem unchanged.
            priority: higher is more urgent.
            retries: how often to run a call again after an exception of its code.
            task_timeout_seconds: seconds from the start of a run; None for the default of the cluster.

        Raises:
            CapabilityError, ValueError, TypeError: an option is invalid, or the call, as in `submit`.
            SubmitLimitError, ClientQuitError: as in `submit`.

        >>> client.submit_verbose(round, (3.14159, 2), {}, retries=1, task_timeout_seconds=30).result()
        3.14
        """
        options = TaskOptions.of(capabilities, reserialize, priority, retries, task_timeout_seconds)
        return OptionedCalls(self._calls, options).submit(fn, *items("args", args), **keywords("kwargs", kwargs))

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        capabilities: Mapping[str, int] | None = None,
        reserialize: bool = False,
        priority: int = 0,
        retries: int = 0,
        task_timeout_seconds: float | None = None,
        speculate: bool = False,
        progress: bool = False,
        return_exceptions: bool = False,
    ) -> list[T]:
        """Wait for the results of the builtin `map(fn, *iterables)`, as a list in order.

        The first failure is raised, with a note of its item, and the remaining calls are cancelled. A single list or
        tuple of 1-tuples gives a FutureWarning, and is unpacked if the first call raises TypeError.

        Args:
            fn: a callable with as many parameters as there are iterables.
            iterables: the arguments; the shortest one ends the map.
            capabilities: what a worker must offer, by name; -1 for presence, otherwise a quantity.
            reserialize: serialize the function and large arguments again although they seem unchanged.
            priority: higher is more urgent.
            retries: how often to run a call again after an exception of its code.
            task_timeout_seconds: seconds from the start of a run; None for the default of the cluster.
            speculate: whether a call that takes far longer than the others is run a second time, on an idle worker of
                another host; the first outcome counts. For functions without side effects.
            progress: whether to show a progress bar on standard error; needs tqdm.
            return_exceptions: whether an exception takes the place of its result, and nothing is cancelled.

        Raises:
            CapabilityError, ValueError, TypeError: an option or a call is invalid.
            ImportError: `progress` without tqdm.
            SubmitLimitError, ClientQuitError: as in `submit`.

        >>> client.map(pow, [2, 3], [3, 2])
        [8, 9]
        """
        options = TaskOptions.of(capabilities, reserialize, priority, retries, task_timeout_seconds, speculate)
        progress, exceptions = flag("progress", progress), flag("return_exceptions", return_exceptions)
        rows_of_arguments = columns("map()", iterables)
        callee = self._calls.find(fn, options.reserialize)
        prefetchable = can_prefetch(iterables)
        run = partial(self._calls.run, callee, options=options, prefetchable=prefetchable, return_exceptions=exceptions)
        return run_map(run, partial(run, progress=progress), callee.check, iterables, rows_of_arguments)

    def starmap(
        self,
        fn: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        capabilities: Mapping[str, int] | None = None,
        reserialize: bool = False,
        *,
        priority: int = 0,
        retries: int = 0,
        task_timeout_seconds: float | None = None,
        speculate: bool = False,
        progress: bool = False,
        return_exceptions: bool = False,
    ) -> list[T]:
        """Wait for the results of `itertools.starmap(fn, iterable)`, as a list in order.

        The first failure is raised, with a note of its item, and the remaining calls are cancelled.

        Args:
            fn: any callable.
            iterable: the arguments of each call, as an iterable.
            capabilities: what a worker must offer, by name; -1 for presence, otherwise a quantity.
            reserialize: serialize the function and large arguments again although they seem unchanged.
            priority: higher is more urgent.
            retries: how often to run a call again after an exception of its code.
            task_timeout_seconds: seconds from the start of a run; None for the default of the cluster.
            speculate: whether a call that takes far longer than the others is run a second time, on an idle worker of
                another host; the first outcome counts. For functions without side effects.
            progress: whether to show a progress bar on standard error; needs tqdm.
            return_exceptions: whether an exception takes the place of its result, and nothing is cancelled.

        Raises:
            CapabilityError, ValueError, TypeError: an option or a call is invalid.
            ImportError: `progress` without tqdm.
            SubmitLimitError, ClientQuitError: as in `submit`.

        >>> client.starmap(pow, [(2, 3), (3, 2)])
        [8, 9]
        """
        options = TaskOptions.of(capabilities, reserialize, priority, retries, task_timeout_seconds, speculate)
        return OptionedCalls(self._calls, options).starmap(
            fn, iterable, progress=progress, return_exceptions=return_exceptions
        )

    def imap(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        buffersize: int = BUFFER,
        return_exceptions: bool = False,
    ) -> Iterator[T]:
        """Yield the results of the builtin `map(fn, *iterables)` in order, lazily.

        The first `buffersize` calls are submitted at once, and another one with each result that is taken. So endless
        iterables may be mapped. A failure is raised in its place, with a note of its item; this, or closing the
        iterator, cancels the calls that are under way. `options(…).imap` takes options.

        Args:
            fn: a callable with as many parameters as there are iterables.
            iterables: the arguments; the shortest one ends the map.
            buffersize: how many calls are submitted ahead of the result that is taken next.
            return_exceptions: whether an exception takes the place of its result.

        Raises:
            ValueError, TypeError: a parameter or a call is invalid.
            SubmitLimitError, ClientQuitError: as in `submit`.

        >>> import itertools
        >>> squares = client.imap(pow, itertools.count(), itertools.repeat(2), buffersize=10)
        >>> [next(squares) for _ in range(4)]
        [0, 1, 4, 9]
        """
        return self.options().imap(fn, *iterables, buffersize=buffersize, return_exceptions=return_exceptions)

    def imap_unordered(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        buffersize: int = BUFFER,
        return_exceptions: bool = False,
    ) -> Iterator[T]:
        """Yield the results of the builtin `map(fn, *iterables)` as they come, lazily; otherwise as `imap`.

        Args:
            fn: a callable with as many parameters as there are iterables.
            iterables: the arguments; the shortest one ends the map.
            buffersize: how many calls are under way at most.
            return_exceptions: whether an exception takes the place of its result.

        Raises:
            ValueError, TypeError: a parameter or a call is invalid.
            SubmitLimitError, ClientQuitError: as in `submit`.

        >>> sorted(client.imap_unordered(pow, [2, 3], [3, 2]))
        [8, 9]
        """
        return self.options().imap_unordered(fn, *iterables, buffersize=buffersize, return_exceptions=return_exceptions)

    def options(
        self,
        *,
        capabilities: Mapping[str, int] | None = None,
        reserialize: bool = False,
        priority: int = 0,
        retries: int = 0,
        timeout: float | None = None,
    ) -> OptionedCalls:
        """Calls with options: `submit`, `map`, `starmap`, `imap` and `imap_unordered` of what is returned have them.

        Args:
            capabilities: what a worker must offer, by name; -1 for presence, otherwise a quantity.
            reserialize: serialize the function and large arguments again although they seem unchanged.
            priority: higher is more urgent.
            retries: how often to run a call again after an exception of its code.
            timeout: seconds from the start of a run; None for the default of the cluster.

        Raises:
            CapabilityError, ValueError, TypeError: an option is invalid.

        >>> client.options(priority=5, retries=2, timeout=30).submit(pow, 2, 10).result()
        1024
        """
        options = TaskOptions.of(capabilities, reserialize, priority, retries, timeout, timeout_name="timeout")
        return OptionedCalls(self._calls, options)

    def get(
        self,
        graph: Mapping[Any, Any],
        keys: Iterable[Hashable],
        block: bool = True,
        capabilities: Mapping[str, int] | None = None,
        reserialize: bool = False,
        *,
        priority: int = 0,
        retries: int = 0,
        progress: bool = False,
    ) -> dict[Any, Any]:
        """Run what some nodes of a graph need; returns these nodes by key, in the order of `keys`.

        Args:
            graph: nodes by key. A node is a call, `(callable, argument, …)`, or data. An argument that equals a key is
                the value of that node.
            keys: the requested keys.
            block: whether to wait and return values; otherwise futures are returned.
            capabilities: what a worker must offer, by name; -1 for presence, otherwise a quantity.
            reserialize: serialize the function and large arguments again although they seem unchanged.
            priority: higher is more urgent.
            retries: how often to run a call again after an exception of its code.
            progress: whether to show a progress bar on standard error; needs tqdm and `block`.

        Raises:
            KeyError: a key is unknown or requested twice, or a string argument is no key.
            graphlib.CycleError: the needed nodes have a cycle.
            CapabilityError, ValueError, TypeError: an option or a call is invalid.
            ImportError: `progress` without tqdm.
            SubmitLimitError: the graph has more nodes than this client may have unfinished tasks; or as in `submit`.
            ClientQuitError: the client is disconnected.
            With `block` also the first exception of a requested node, with a note of the path to the node that failed;
            the remaining nodes are cancelled then.

        >>> client.get({"a": 2, "b": (pow, "a", 3), "c": (max, "a", "b")}, keys=["c"])
        {'c': 8}
        """
        options = TaskOptions.of(capabilities, reserialize, priority, retries, None)
        block, progress = flag("block", block), flag("progress", progress)
        if not isinstance(graph, Mapping):
            raise TypeError(f"graph is {shown(graph)}, not a mapping from keys to nodes")
        if progress and not block:
            raise ValueError("progress=True needs block=True: the bar is shown while get waits")
        self._check()
        keys = keys if isinstance(keys, str | bytes) else list(items("keys", keys))
        submission = self._calls.graph(graph, keys, options, watched=progress)
        with progress_bar(submission.progress) if progress else nullcontext():
            submission.submit()
            return (submission.results if block else submission.all_futures)(_value, keys)

    def executor(self) -> ClientExecutor:
        """This client as a `concurrent.futures.Executor`, whose `shutdown` does not disconnect the client.

        >>> with client.executor() as executor:
        ...     list(executor.map(abs, [-1, -2]))
        [1, 2]
        """
        from scaler_client.api.executor import ClientExecutor

        return ClientExecutor(self.submit_verbose, lambda: self.workers().count)

    # --- objects ----------------------------------------------------------------------------------------------------

    def send_object(self, obj: T, name: str | bytes | None = None) -> ObjectReference[T]:
        """Send an object once; returns a reference to use as an argument of many calls.

        The object is serialized now. It is freed with its last reference, or by `release`, `clear` or `disconnect`.

        Args:
            obj: any object that can be serialized.
            name: what monitors may call it.

        Raises:
            StorageLostError: the object is above 16 KiB, and the object storage server is unreachable.
            StorageFullError: the object storage server has no room for it.
            ValueError, TypeError: the name is invalid, or the object cannot be serialized, as in `submit`.
            ClientQuitError: the client is disconnected.

        >>> table = client.send_object({"one": 1})
        >>> client.submit(len, table).result()
        1
        """
        self._check()
        if name is not None and not isinstance(name, bytes):
            check("name", name, NAME)
        return self._calls.send_object(obj, name)

    def clear(self) -> None:
        """Cancel all unfinished calls and release all sent objects; the client stays connected.

        Raises:
            ClientQuitError: the client is disconnected.

        >>> client.clear()
        """
        self._check()
        self._calls.clear()

    @property
    def session(self) -> ClientSession:
        """The named session: its futures, their names, its end.

        Raises:
            ValueError: the client has no `session`.
            ClientQuitError: the client is disconnected.

        >>> with Client(address, session="api-session") as first:
        ...     future = first.submit(pow, 2, 10)
        >>> with Client(address, session="api-session") as second:
        ...     [future.result() for future in second.session.futures()]
        [1024]
        """
        self._check()
        if self._session is None:
            raise ValueError("this client's session has no name and ends with it: make Client(..., session='name')")
        return self._session

    # --- workers ----------------------------------------------------------------------------------------------------

    def workers(self) -> ConnectedWorkers:
        """The workers that are connected to the scheduler: `count`, and `hosts` with what each of them offers.

        Raises:
            SchedulerLostError: the scheduler is unreachable for the client's `timeout_seconds`.
            ValueError: this is inside a task.
            ClientQuitError: the client is disconnected.

        >>> workers = client.workers()
        >>> workers.count, workers.hosts[0].workers
        (2, 2)
        """
        from scaler_client.api.connected_workers import connected_workers

        return connected_workers(self._outside())

    def wait_for_workers(self, n: int, timeout: float | None = None) -> ConnectedWorkers:
        """Wait until at least `n` workers are connected to the scheduler; returns all of them.

        Args:
            n: number of workers.
            timeout: seconds; None for no limit.

        Raises:
            TimeoutError: there are fewer after `timeout` seconds; the message says how many.
            SchedulerLostError: the scheduler is unreachable for the client's `timeout_seconds`.
            ValueError: a parameter is invalid, or this is inside a task.
            ClientQuitError: the client is disconnected.

        >>> client.wait_for_workers(2, timeout=30).count
        2
        """
        from scaler_client.api.connected_workers import wait_for_workers

        return wait_for_workers(self._outside(), n, timeout)

    # --- the end ----------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> bytes:
        """The identity of this client: `Client|` and 32 hexadecimal digits, as bytes.

        >>> client.identity.startswith(b"Client|")
        True
        """
        return f"Client|{self._identity.hex()}".encode()

    @property
    def address(self) -> str | None:
        """The address of the scheduler; None inside a task.

        >>> client.address == address
        True
        """
        address: str | None = self._settings["address"]
        return address

    @property
    def name(self) -> str:
        """What pages, logs and events call this client.

        >>> with Client(address=address, name="nightly") as other:
        ...     other.name
        'nightly'
        """
        return self._name

    def disconnect(self) -> None:
        """Cancel unfinished calls and disconnect. Inside a task only this client is closed. May be called again.

        A client with a `session` leaves it: futures end as cancelled here only, and the calls go on.

        >>> client.disconnect()
        """
        if self._session is not None:
            self._io.leave(self._timeout_seconds)  # first, since calls that go on need what they refer to
        self._calls.close()
        if self._inside is None:
            self._io.stop()

    def shutdown(self) -> None:
        """End the scheduler with all its workers, and disconnect.

        Raises:
            ValueError: the scheduler is protected, which is the default, or this is inside a task; the client stays
                connected.
            ClientQuitError: the client is disconnected.

        >>> client.shutdown()
        Traceback (most recent call last):
            ...
        ValueError: Scheduler is in protected mode. Can't shutdown
        """
        self._check()
        if self._inside is not None:
            raise ValueError("a task cannot shut down the scheduler that runs it")
        answer = self._io.ask_shutdown(self._timeout_seconds)
        if answer is not None and not answer.accepted:
            raise ValueError(answer.reason or "Scheduler is in protected mode. Can't shutdown")
        self.disconnect()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.disconnect()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        import asyncio  # as late as possible: `import scaler` is to be fast

        await asyncio.to_thread(self.disconnect)

    def __repr__(self) -> str:
        return f"<Client {self._name!r} of {self.address or 'its task'}, {self._state}>"

    @property
    def _state(self) -> str:
        return "disconnected" if self._calls.is_closed else "connected"

    def _repr_html_(self) -> str:
        from scaler_client.api.notebook import html_table

        address, state = self.address or "inside a task", self._state
        rows = {"scheduler": address, "name": self._name, "state": state}
        return html_table("Scaler client", rows)

    def __reduce__(self) -> tuple[Any, ...]:
        scheduler = self._io.scheduler if self._inside is None else self._inside.scheduler
        return unpickled, (type(self), self._settings, scheduler)

    # --- within -----------------------------------------------------------------------------------------------------

    def _outside(self) -> IoThread:
        """The io thread; raises ValueError inside a task, which shares the connection of its worker's host."""
        self._check()
        if self._inside is not None:
            raise ValueError("a task cannot ask for the workers: ask where it is submitted, and pass it the answer")
        return self._io

    def _check(self) -> None:
        self._calls.check()


def _value(node: Any) -> Any:
    if isinstance(node, ScalerFuture):
        return node.result()
    return node.value() if isinstance(node, ObjectReference) else node
