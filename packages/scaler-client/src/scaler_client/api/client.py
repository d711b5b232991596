"""The client: calls go out, futures come back."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from scaler_client.api.map_of_tuples import is_old_form, run_items, run_old_form
from scaler_client.api.notebook import html_table
from scaler_client.calls.arguments import ArgumentCache
from scaler_client.calls.encoding import Callee, Callees, CallWriter, FailedArgumentError, PartCalls, PickledCalls
from scaler_client.calls.object_reference import ObjectReference, SentObjects
from scaler_client.calls.task_options import TaskOptions
from scaler_client.core.records import CallGroup
from scaler_client.futures.futures import ScalerFuture
from scaler_client.futures.waiters import FutureOwner
from scaler_client.objects.handles import StoredPayload, pending_puts
from scaler_client.objects.rebuild import weak_source
from scaler_client.parameters import can_prefetch, check, check_client, flag, items, keywords, rows
from scaler_client.payloads.serializers import DefaultSerializer
from scaler_client.runtime.lifetimes import ClientLife
from scaler_client.task_context import runtime
from scaler_protocol.errors import (
    ClientQuitError,
    HandshakeRefusedError,
    ObjectRefusedError,
    ScalerError,
    StorageLostError,
    describe,
)
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.ids import new_identity
from scaler_protocol.limits import NAME
from scaler_protocol.messages import Status
from scaler_protocol.ranges import shown
from scaler_protocol.serializer import Serializer

if TYPE_CHECKING:
    from scaler_client.api.executor import ClientExecutor
    from scaler_client.runtime.io_thread import IoThread

T = TypeVar("T")


class Client:
    """Sends calls to a cluster and hands back futures; several threads may use it.

    `address` is the scheduler's. Inside a task it may be left out, and the client then belongs to the cluster that runs
    the task; the address of that cluster means the same. Connecting takes at most `timeout_seconds`, after which
    SchedulerLostError says what to do; a scheduler that is away for longer than that later on ends the futures with the
    same error. Profiles are always taken and the scheduler says how often hearts beat: `profiling` and
    `heartbeat_interval_seconds` are there for older programs.
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
    ) -> None:
        if security_config is not None:
            raise ValueError("security_config is no longer taken: keys are found in the user's runtime directory")
        check_client(address, timeout_seconds, serializer, stream_output, object_storage_address)
        # ZeroMQ, Cap'n Proto and cloudpickle take most of the start-up time: services start meanwhile.
        from scaler_client.runtime import connection

        self._settings: dict[str, Any] = {
            "address": address,
            "profiling": profiling,
            "timeout_seconds": timeout_seconds,
            "heartbeat_interval_seconds": heartbeat_interval_seconds,
            "serializer": serializer,
            "stream_output": stream_output,
            "object_storage_address": object_storage_address,
        }
        self._timeout_seconds = timeout_seconds
        self._identity = new_identity()
        self._closed = False
        self._io, self._inside = connection.connect(
            runtime(), address, self._identity, float(timeout_seconds), object_storage_address or ""
        )
        try:
            self._prepare(serializer, stream_output)
        except BaseException:
            if self._inside is None:
                self._io.stop()
            raise

    def _prepare(self, serializer: Serializer | type[Serializer], stream_output: bool | str) -> None:
        # The clients inside a process's tasks share one connection, which lasts as long as the process.
        self._owner: FutureOwner = ClientLife(self._io) if self._inside is None else self._io
        place = self._io.storage.store
        self._arguments = ArgumentCache(self._owner, self._io.storage)
        self._objects = SentObjects()
        default = serializer is DefaultSerializer or type(serializer) is DefaultSerializer
        self._writer: CallWriter = (
            PickledCalls(self._owner, self._arguments) if default else PartCalls(self._owner, serializer, place)
        )
        self._callees = Callees(self._writer, stream_output=stream_output, store=place)

    # --- calls ------------------------------------------------------------------------------------------------------

    @overload
    def submit(self, fn: Callable[..., Coroutine[Any, Any, T]], /, *args: Any, **kwargs: Any) -> ScalerFuture[T]: ...

    @overload
    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> ScalerFuture[T]: ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ScalerFuture[Any]:
        """One call. Raises the TypeError that Python would raise for it. A coroutine is awaited in the worker.

        `profiling=True` is taken, for older programs, where the function cannot take it itself.
        """
        callee = self._find(fn)
        if kwargs and "profiling" in kwargs and callee.check.known and not callee.check.takes_profiling:
            del kwargs["profiling"]
        callee.check.check(*args, **kwargs)
        group = callee.group if self._inside is None else None
        return self._send(group or self._callees.group(callee), args, kwargs)

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
        """One call with options: what a worker must have, urgency (higher first), how often to try again after an
        exception, seconds from the start of the run. `reserialize` writes function and arguments anew."""
        options = TaskOptions.of(capabilities, reserialize, priority, retries, task_timeout_seconds)
        args, kwargs = tuple(items("args", args)), keywords("kwargs", kwargs)
        callee = self._find(fn, options.reserialize)
        callee.check.check(*args, **kwargs)
        return self._send(self._group(callee, options), args, kwargs, set() if options.reserialize else None)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        capabilities: Mapping[str, int] | None = None,
        reserialize: bool = False,
        priority: int = 0,
        retries: int = 0,
        task_timeout_seconds: float | None = None,
        progress: bool = False,
    ) -> list[T]:
        """The results of `map(fn, *iterables)`, in order. The first failure is raised, and the rest cancelled.

        `progress` shows a bar on standard error, where tqdm is installed.

        A single list or tuple of 1-tuples gives a FutureWarning, and is unpacked where the first call raises TypeError.
        """
        if not iterables:
            raise TypeError("map() takes a function and at least one iterable")
        options = TaskOptions.of(capabilities, reserialize, priority, retries, task_timeout_seconds)
        progress = flag("progress", progress)
        callee = self._find(fn, options.reserialize)
        columns = [items(f"iterable {at} of map()", column) for at, column in enumerate(iterables, 1)]
        run = partial(self._run, callee, options=options, prefetchable=can_prefetch(iterables))
        if len(iterables) > 1:
            return run(zip(*columns, strict=False), progress=progress)
        if not is_old_form(iterables[0]):
            return run_items(partial(run, progress=progress), callee.check, columns[0])
        return run_old_form(run, partial(run, progress=progress), callee.check, iterables[0])

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
    ) -> list[T]:
        """The results of `itertools.starmap(fn, iterable)`, in order. The first failure is raised, the rest
        cancelled."""
        options = TaskOptions.of(capabilities, reserialize, priority, retries, task_timeout_seconds)
        arguments, prefetchable = rows("starmap()", iterable), can_prefetch((iterable,)) and can_prefetch(iterable)
        return self._run(self._find(fn, options.reserialize), arguments, options, prefetchable=prefetchable)

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
        """The requested nodes of a graph, in the order of `keys`: their values, or futures without `block`.

        A node is a call, `(function, argument, …)`, or data; an argument that equals a key is that node. Raises
        KeyError, TypeError or graphlib.CycleError for a graph that makes no sense, and the first exception of a
        requested node, with a note of the way to the node that failed; nothing else of the graph is run then.
        `progress` shows a bar meanwhile, where tqdm is installed.
        """
        from scaler_client.graphs.planner import plan
        from scaler_client.graphs.submission import GraphSubmission

        options = TaskOptions.of(capabilities, reserialize, priority, retries, None)
        block, progress, reserialize = flag("block", block), flag("progress", progress), options.reserialize
        if not isinstance(graph, Mapping):
            raise TypeError(f"graph is {shown(graph)}, not a mapping from keys to nodes")
        if progress and not block:
            raise ValueError("progress=True shows how far a graph is while get waits for it: not with block=False")

        def find_group(fn: Callable[..., Any], arity: int) -> CallGroup:
            callee = self._find(fn, reserialize)
            callee.check.check(*(None,) * arity)
            return self._group(callee, options)

        self._check()
        keys = keys if isinstance(keys, str | bytes) else list(items("keys", keys))
        reserialized: set[int] | None = set() if reserialize else None
        submission = GraphSubmission(
            self._io, self._writer, find_group, plan(graph, keys), watched=progress, reserialized=reserialized
        )
        with _bar(submission.progress) if progress else nullcontext():
            submission.submit()
            return (submission.results if block else submission.all_futures)(self._value, keys)

    def executor(self) -> ClientExecutor:
        """This client as a `concurrent.futures.Executor`."""
        from scaler_client.api.executor import ClientExecutor

        return ClientExecutor(self)

    # --- objects ----------------------------------------------------------------------------------------------------

    def send_object(self, obj: T, name: str | bytes | None = None) -> ObjectReference[T]:
        """A reference to use in place of the object, which is written once. Its state is that of this moment.

        It is kept until its last reference is gone, or `release`, `clear` or `disconnect`.
        One that is not small may raise StorageLostError or StorageFullError.
        """
        self._check()
        if name is not None and not isinstance(name, bytes):
            check("name", name, NAME)
        dump = self._writer.dump_object
        payload = dump(obj)
        sent = self._objects.add(self._arguments.store(payload, partial(weak_source, obj, dump)))
        label = name if name is not None else f"object {sent.object_id.hex()[:8]}"
        label = label.encode() if isinstance(label, str) else label
        return ObjectReference(label, len(payload), sent, self._writer.load)

    def clear(self) -> None:
        """Cancel all that is under way and forget objects and functions: references are void from now on."""
        self._check()
        self._io.clear()
        self._objects.clear()
        self._arguments.clear()
        self._callees.clear()

    # --- the end ----------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> bytes:
        """Who this client is, `Client|` and 32 hexadecimal digits."""
        return f"Client|{self._identity.hex()}".encode()

    def disconnect(self) -> None:
        """Cancel what is under way and leave. Inside a task only this door is closed. May be called again."""
        self._closed = True
        self._objects.clear()
        self._arguments.clear()
        if self._inside is None:
            self._io.stop()

    def shutdown(self) -> None:
        """Ask the scheduler to end with all its workers, and leave.

        Raises ValueError, and stays connected, where the scheduler is protected.
        """
        self._check()
        if self._inside is not None:
            raise ValueError("a task can not shut the scheduler down that runs it")
        answer = self._io.ask_shutdown(self._timeout_seconds)
        if answer is not None and not answer.accepted:
            raise ValueError(answer.reason or "Scheduler is in protected mode. Can't shutdown")
        self.disconnect()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.disconnect()

    def _repr_html_(self) -> str:
        address = self._settings["address"] or "inside a task"
        state = "disconnected" if self._closed else "connected"
        rows = {"scheduler": address, "name": self.identity.decode(), "state": state}
        return html_table("Scaler client", rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._settings,)

    # --- within -----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise ClientQuitError
        self._io.mailbox.check()

    def _find(self, fn: Callable[..., Any], fresh: bool = False) -> Callee:
        if self._closed:
            raise ClientQuitError
        if self._inside is not None:
            task = self._inside.current()
            self._callees.parent = task.run if task is not None else 0
        return self._callees.write(fn) if fresh else self._callees.find(fn)

    def _group(self, callee: Callee, options: TaskOptions) -> CallGroup:
        return self._callees.group_with(
            callee,
            options.capabilities,
            priority=options.priority,
            retries=options.retries,
            timeout_seconds=options.timeout_seconds,
        )

    def _send(
        self, group: CallGroup, args: tuple[Any, ...], kwargs: dict[str, Any], reserialized: set[int] | None = None
    ) -> ScalerFuture[Any]:
        io = self._io
        try:
            call, needs = self._writer.write(args, kwargs, reserialized)
            placed = call if type(call) is bytes and len(call) <= INLINE_LIMIT else io.storage.store(call, soon=True)
        except FailedArgumentError as failed:
            future: ScalerFuture[Any] = ScalerFuture(self._owner, io.next_task(), group, b"")
            future.end_like(failed.argument)
            return future
        except (ObjectRefusedError, StorageLostError, HandshakeRefusedError) as error:
            future = ScalerFuture(self._owner, io.next_task(), group, b"")
            future.settle(Status.FAILED, describe(error))
            return future
        future = ScalerFuture(self._owner, io.next_task(), group, placed, needs)
        io.mailbox.put(future)
        if needs or type(placed) is StoredPayload:
            for kept in pending_puts(needs, placed):
                kept.add_put_callback(partial(_follow_put, io, future))
        return future

    def _run(
        self,
        callee: Callee,
        rows: Iterable[tuple[Any, ...]],
        options: TaskOptions,
        progress: bool = False,
        *,
        prefetchable: bool,
    ) -> list[Any]:
        from scaler_client.api.map import MapSubmission

        self._io.mailbox.check()
        reserialized: set[int] | None = set() if options.reserialize else None
        group, patience = self._group(callee, options), float(self._timeout_seconds)
        submission = MapSubmission(self._io, self._writer, group, callee.check, patience)
        with _bar(submission.progress) if progress else nullcontext():
            return submission.run(rows, reserialized, prefetchable=prefetchable)

    def _value(self, node: Any) -> Any:
        if isinstance(node, ScalerFuture):
            return node.result()
        return node.value() if isinstance(node, ObjectReference) else node


def _bar(count: Callable[[], tuple[int, int]]) -> AbstractContextManager[None]:
    from scaler_client.api.progress import ProgressBar

    return ProgressBar(count)


def _follow_put(io: IoThread, future: ScalerFuture[Any], error: ScalerError | None) -> None:
    """Storage has an object that a call names, or has refused it."""
    if error is None:
        io.mailbox.wake()
    elif future.settle(Status.FAILED, describe(error)):
        io.cancel((future.task_id,))
        io.call_soon(future.invoke_callbacks)


def _again(settings: dict[str, Any]) -> Client:
    """A pickled client: inside a task a door to the task's own cluster, elsewhere a new connection."""
    if runtime() is None:
        return Client(**settings)
    client = Client(**{**settings, "address": None})
    client._settings = settings
    return client
