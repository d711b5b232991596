"""From a client's call to tasks in the mailbox: find the function, encode the call, make the future.

Graphs and maps are planned elsewhere; they take the functions, groups and arguments that are encoded here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scaler_client.calls.arguments import ArgumentCache, store
from scaler_client.calls.encoding import Callee, Callees, CallWriter, PartCalls, PickledCalls
from scaler_client.calls.environments import ClientEnvironment
from scaler_client.calls.object_reference import ObjectReference, SentObjects
from scaler_client.calls.task_options import TaskOptions
from scaler_client.core.records import CallGroup
from scaler_client.futures.futures import FailedArgumentError, ScalerFuture
from scaler_client.futures.waiters import FutureOwner
from scaler_client.objects.handles import StoredPayload, pending_puts
from scaler_client.objects.rebuild import weak_source
from scaler_client.payloads.serializers import DefaultSerializer
from scaler_client.runtime.lifetimes import ClientLife
from scaler_client.task_context import TaskRuntime
from scaler_io.reentrant_lock import ReentrantLock
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
from scaler_protocol.messages import Status
from scaler_protocol.serializer import Serializer

if TYPE_CHECKING:
    from scaler_client.api.client_session import ClientSession
    from scaler_client.calls.bundles import Bundle
    from scaler_client.graphs.submission import GraphSubmission
    from scaler_client.runtime.io_thread import IoThread

T = TypeVar("T")
_TASK_ENDED: Final = (
    "the task that this client belonged to has ended: let a task wait for its threads that submit calls"
)


def _pickled_calls(tracing: bool) -> type[PickledCalls]:
    """How calls are written; raises ImportError for `tracing` without OpenTelemetry."""
    if not tracing:
        return PickledCalls
    try:
        from scaler_client.calls.tracing import TracedCalls
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise ImportError("tracing=True needs OpenTelemetry: pip install scaler[otel]") from error
    return TracedCalls


class CallSubmitter:
    """Submits the calls of one client through the connection of its io thread. Thread-safe.

    `inside` is the runtime of the task that the client was made in, if there is one; its calls are nested then. Calls
    wait for room if `waits`, and `patience` is how many seconds a map waits for a lost scheduler.
    """

    def __init__(
        self,
        io: IoThread,
        inside: TaskRuntime | None,
        serializer: Serializer | type[Serializer],
        stream_output: bool | str,
        *,
        waits: bool,
        patience: float,
        initializer: Callable[[], object] | None = None,
        tracing: bool = False,
    ) -> None:
        self._io, self._inside, self._waits, self._patience = io, inside, waits, patience
        self.is_closed = False
        # All clients inside the tasks of a process share one connection, which lasts as long as the process.
        self._owner: FutureOwner = ClientLife(io, waits=waits) if inside is None else io
        store = io.storage.store
        self._arguments = ArgumentCache(self._owner, io.storage)
        self._objects = SentObjects()
        default = serializer is DefaultSerializer or type(serializer) is DefaultSerializer
        self._writer: CallWriter = (
            _pickled_calls(tracing)(self._owner, self._arguments)
            if default
            else PartCalls(self._owner, serializer, store)
        )
        if tracing and not default:
            raise ValueError("tracing=True: calls of a client with a serializer of its own cannot be traced")
        self._callees = Callees(self._writer, stream_output=stream_output, store=store)
        self._uploading = ReentrantLock()
        if initializer is not None and inside is None:
            self._callees.enter(ClientEnvironment({}, initializer, new_identity()))

    def session(self, name: str) -> ClientSession:
        """The named session of this client."""
        from scaler_client.api.client_session import ClientSession

        return ClientSession(name, self._io, self._owner, self._writer)

    def check(self) -> None:
        """Raise ClientQuitError if the client is disconnected."""
        if self.is_closed:
            raise ClientQuitError
        self._io.mailbox.check()

    @property
    def waiting(self) -> AbstractContextManager[None]:
        """Entered by a thread while it blocks on futures; see BlockingSection."""
        return self._io.waiting

    def nest(self, run: int) -> None:
        """Make all calls children of a run, which hold no credit of their own."""
        self._callees.parent = run
        self._io.gate.exempt = True

    def clear(self) -> None:
        """Cancel all calls; forget functions, arguments and sent objects."""
        self._io.clear()
        self._objects.clear()
        self._arguments.clear()
        self._callees.clear()

    def close(self) -> None:
        """Refuse further calls; forget arguments and sent objects."""
        self.is_closed = True
        self._objects.clear()
        self._arguments.clear()

    def send_object(self, obj: T, name: str | bytes | None) -> ObjectReference[T]:
        """Store an object; see Client."""
        dump = self._writer.dump_object
        payload = dump(obj)
        sent = self._objects.add(store(self._io.storage, payload, partial(weak_source, obj, dump)))
        label = name if name is not None else f"object {sent.object_id.hex()[:8]}"
        label = label.encode() if isinstance(label, str) else label
        return ObjectReference(label, len(payload), sent, self._writer.load)

    def upload(self, bundle: Bundle) -> None:
        """Later calls find these modules; raises ValueError, ScalerError."""
        with self._uploading:
            self._callees.upload(bundle)

    def find_own(self, fn: Callable[..., Any]) -> Callee:
        """A function of the engine, encoded, which needs nothing of what the client has uploaded."""
        return Callees(self._writer, stream_output=False, store=self._io.storage.store).write(fn)

    def find(self, fn: Callable[..., Any], fresh: bool = False) -> Callee:
        """The encoded function; with `fresh` it is encoded again. Raises ClientQuitError."""
        if self.is_closed:
            raise ClientQuitError
        if self._inside is not None:
            task = self._inside.current()
            if task is None:
                raise ClientQuitError(_TASK_ENDED)
            self._callees.parent = task._run
        return self._callees.write(fn) if fresh else self._callees.find(fn)

    def group(self, callee: Callee) -> CallGroup:
        """The group of calls of this function without options."""
        return self._callees.group(callee)

    def group_with(self, callee: Callee, options: TaskOptions) -> CallGroup:
        """The group of calls of this function with these options."""
        return self._callees.group_with(
            callee,
            options.capabilities,
            priority=options.priority,
            retries=options.retries,
            timeout_seconds=options.timeout_seconds,
            speculate=options.speculate,
            worker=options.worker,
        )

    def send(
        self, group: CallGroup, args: tuple[Any, ...], kwargs: dict[str, Any], reserialized: set[int] | None = None
    ) -> ScalerFuture[Any]:
        """Encode and submit one call. An argument that failed, or that storage refuses, is the future's failure."""
        io = self._io
        try:
            call, needs = self._writer.write(args, kwargs, reserialized, io.carries)
            placed = call if type(call) is bytes and len(call) <= INLINE_LIMIT else io.place(call)
        except FailedArgumentError as failed:
            future: ScalerFuture[Any] = ScalerFuture(self._owner, io.next_task(), group, b"")
            future._end_like(failed.argument)
            return future
        except (ObjectRefusedError, StorageLostError, HandshakeRefusedError) as error:
            future = ScalerFuture(self._owner, io.next_task(), group, b"")
            future._settle(Status.FAILED, describe(error))
            return future
        future = ScalerFuture(self._owner, io.next_task(), group, placed, needs)
        if io.gate.limit:
            io.gate.put(future, 1, block=self._waits)
        else:
            io.mailbox.put(future)
        if needs or type(placed) is StoredPayload:
            for kept in pending_puts(needs, placed):
                kept.add_put_callback(partial(_follow_put, io, future))
        return future

    def run(
        self,
        callee: Callee,
        rows: Iterable[tuple[Any, ...]],
        options: TaskOptions,
        progress: bool = False,
        *,
        prefetchable: bool,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """The results of a call for each row of arguments; raises the first failure, or has it among them."""
        from scaler_client.api.map import MapSubmission

        self._io.mailbox.check()
        reserialized: set[int] | None = set() if options.reserialize else None
        group = self.group_with(callee, options)
        submission = MapSubmission(
            self._io,
            self._writer,
            group,
            callee.check,
            self._patience,
            waits=self._waits,
            return_exceptions=return_exceptions,
        )
        with progress_bar(submission.progress) if progress else nullcontext():
            return submission.run(rows, reserialized, prefetchable=prefetchable)

    def graph(
        self, graph: Mapping[Any, Any], keys: Iterable[Hashable], options: TaskOptions, *, watched: bool
    ) -> GraphSubmission:
        """Plan what these nodes of a graph need; nothing is submitted yet. Raises KeyError, CycleError, TypeError."""
        from scaler_client.graphs.planner import plan
        from scaler_client.graphs.submission import GraphSubmission

        def find_group(fn: Callable[..., Any], arity: int) -> CallGroup:
            callee = self.find(fn, options.reserialize)
            callee.check.check(*(None,) * arity)
            return self.group_with(callee, options)

        reserialized: set[int] | None = set() if options.reserialize else None
        planned = plan(graph, keys)
        return GraphSubmission(
            self._io,
            self._writer,
            find_group,
            planned,
            watched=watched,
            waits=self._waits,
            reserialized=reserialized,
        )


def progress_bar(count: Callable[[], tuple[int, int]]) -> AbstractContextManager[None]:
    """A bar on standard error that shows how many of how many are done."""
    from scaler_client.api.progress import ProgressBar

    return ProgressBar(count)


def _follow_put(io: IoThread, future: ScalerFuture[Any], error: ScalerError | None) -> None:
    """Storage has confirmed an object that a call refers to, or has refused it."""
    if error is None:
        io.mailbox.wake()
    elif future._settle(Status.FAILED, describe(error)):
        io.cancel((future.task_id,))
        io.call_soon(future._invoke_callbacks)
