"""Runner: the engine of a worker process. It runs the tasks of datagrams and writes one reply for each run.

An engine does work behind injected ports: `replies` (the pipe to the agent), `store` (object storage), and the clocks
are constructor arguments. It is not a core: it calls user code.

Theory. Runs are executed one after the other, in the order in which they arrive. Each is answered by exactly one
reply, in the same order:

    RESULT            the result or error is in the reply
    STORED_RESULT     it is in object storage, and the reply contains its reference
    FUNCTION_MISSING  the worker does not hold the function; the run was not started
    INPUT_MISSING     the run takes the result of the run before it, and there is none; the run was not started
    RETURNED          this run and the rest of its datagram were revoked before they started

Before each run the worker writes the run id and the start time into its cells of the shared state, and only then reads
the revoked sequence. So an agent that writes that sequence, waits, and reads the run id knows that the worker will not
run anything of the datagram beyond that run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from scaler_client.payloads.user_exceptions import formatted
from scaler_client.task_context import CurrentTask
from scaler_protocol.buffers import Buffer, Payload
from scaler_protocol.errors import DeserializeError, InitializerError, ScalerError, of_run
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.messages import Status
from scaler_protocol.outputs import TRACEBACK, StreamOutput
from scaler_protocol.profiles import LONGEST_TRANSFER_US
from scaler_protocol.result_sizes import limit_of
from scaler_protocol.tracebacks import excerpt, traceback_text
from scaler_worker.ipc.cells import REVOKED, RUN, STARTED
from scaler_worker.ipc.frames import (
    CALL_FLAGS,
    DEFINE,
    FOLLOWS,
    FUNCTION_MISSING,
    INPUT_MISSING,
    OUTPUT,
    READY,
    REPLY,
    RESULT,
    RESULT_SHIFT,
    RETIRED,
    RETURNED,
    SAMPLES,
    STORED,
    STORED_RESULT,
    WITH_INPUTS,
    Definition,
    unpack_definition,
    unpack_tasks,
)
from scaler_worker.ipc.inputs import split_inputs
from scaler_worker.worker.function_cache import FunctionCache
from scaler_worker.worker.invoke import Await, Invoker, check_definition, failed, load_invoker, raised
from scaler_worker.worker.output_prefixes import PrefixedLines

if TYPE_CHECKING:
    from scaler_worker.worker.ordered_replies import OrderedReplies, PendingReply

EVERYTHING: Final = 2**64 - 1
"""Revokes every datagram."""
INLINE_MOST: Final = 2**32 - 1
"""Bytes that a reply, and the message that it becomes, can contain."""
_TOO_BIG: Final = (
    "a result of {:,} bytes is too big for a message of at most {:,} bytes: start an object storage server "
    "(scaler_object_storage_server; a scheduler starts one itself unless its options say otherwise)"
)
BRIEF_NANOSECONDS: Final = 200_000
"""Shorter runs are assumed to be CPU-bound: reading the CPU clock costs more than many tasks."""
TEXT_LIMIT: Final = 4096 - REPLY.size
"""Bytes of output per reply: a reply of PIPE_BUF bytes in all is written atomically on Linux."""
_EXCERPT: Final = 2800
"""Characters from the end of a traceback that monitors are sent of an exception in object storage."""
LONG_NANOSECONDS: Final = 50_000_000
"""Peak memory is read after runs longer than this."""


class ObjectStore(Protocol):
    """Port to object storage, for payloads over INLINE_LIMIT."""

    fetching: int
    storing: int
    """Nanoseconds in which objects were fetched, and results stored, since these were set to 0."""

    @property
    def named(self) -> bool:
        """Whether the address of a server is known; without one every payload is inline."""

    def get(self, reference: bytes) -> Buffer:
        """Fetch an object; raises ScalerError."""

    def put(self, payload: Payload, task: int, run: int) -> bytes:
        """Store the result of a run in its task's session; returns the packed reference. Raises ScalerError."""

    def may_put_soon(self, size: int) -> bool:
        """Whether `size` bytes may be put without waiting."""

    def put_soon(self, payload: bytes, task: int, run: int, done: Callable[[ScalerError | None], object]) -> bytes:
        """As `put`, without waiting: `done` is called on another thread when storage has answered."""


class PrintedOutput(Protocol):
    """Port to what is kept of the output of runs."""

    is_unfinished: bool
    """Whether something was printed since `finish`."""

    def finish(self) -> None:
        """The run is over: send what it has printed."""

    def keep(self, number: int, run: int, data: bytes) -> None:
        """A run has written to a stream that its client reads."""


class RetiredError(ScalerError):
    """this worker can run no more tasks"""


class Runner:
    """Runs the tasks of one worker. Datagrams come in through `take`; replies go out through `replies`."""

    def __init__(
        self,
        *,
        name: str,
        host: str,
        number: int,
        pid: int,
        cells: Any,
        replies: OrderedReplies,
        capture: Callable[[Callable[[int, str], None]], AbstractContextManager[None]],
        finish: Await,
        clock: Callable[[], int],
        cpu_clock: Callable[[], int],
        peak_memory: Callable[[], int],
        damage: Callable[[], str] = str,
        may_have_changed: Callable[[], bool] = bool,
        store: ObjectStore | None = None,
        output: PrintedOutput | None = None,
        allow_functions: Sequence[str] = (),
    ) -> None:
        self.inputs: Mapping[int, tuple[bool, bytes]] = {}
        self.asked_to_end = ""
        """Why this process is to run no more tasks, although nothing is wrong with it."""
        self._name, self._number, self._pid = name, number, pid
        self._origin = f"{name}@{host}"
        self._cells, self._capture, self._finish = cells, capture, finish
        self._replies, self._write = replies, replies.write
        self._clock, self._cpu_clock, self._peak_memory = clock, cpu_clock, peak_memory
        self._find_damage, self._may_have_changed = damage, may_have_changed
        self._damage = ""
        self._last = self._undamaged_after = 0
        """The last finished run, and the last one after which this process was found undamaged."""
        self._store = store
        self._output = output
        self._allow_functions = allow_functions
        self._functions = FunctionCache()
        self._previous: dict[int, tuple[bool, bytes]] = {}
        """The result of the previous run, by its task: whether stored, and the payload or its reference."""
        self._pending_reply: PendingReply | None = None
        """The reply of the previous run, if its result is in transit to storage."""
        self._run, self._task, self._attempt, self._handle = 0, 0, 0, 0
        self._peak = peak_memory()

    def current(self) -> CurrentTask | None:
        """The current task; None between tasks."""
        return CurrentTask(self._task, self._attempt, self._name, self._run) if self._run else None

    @property
    def run_and_task(self) -> tuple[int, int]:
        """The current run and its task; 0 between tasks."""
        return self._run, self._task if self._run else 0

    @property
    def function(self) -> str:
        """The name of the function that the current run calls; empty between tasks. From any thread."""
        return self._functions.names.get(self._handle, "") if self._run else ""

    def send_samples(self, until: int, text: bytes) -> None:
        """Send what was sampled for the profile that ends then; from any thread."""
        *pieces, last = _pieces(text, TEXT_LIMIT)
        for piece in pieces:
            self._replies.write(self._packed(SAMPLES, 0, until, piece))
        self._replies.write(self._packed(SAMPLES, 1, until, last))

    def take(self, datagram: bytes) -> None:
        """Handle a datagram; raises RetiredError if this process can run no more tasks."""
        if datagram[0] == DEFINE:
            self._define(unpack_definition(datagram))
        else:
            self._run_tasks(datagram)
            self._run = 0
            if self._damage:
                self._retire(self._damage)

    def ready(self) -> None:
        """Tell the agent that this worker waits for tasks."""
        self._reply(READY, 0, self._pid, b"")

    def examine(self) -> None:
        """Look for damage; raises RetiredError if there is any."""
        if damage := self._find_damage():
            self._retire(damage)
        self._undamaged_after = self._last

    def _retire(self, why: str) -> NoReturn:
        self._reply(RETIRED, int(why == self.asked_to_end), 0, why.encode("utf-8", "replace")[:TEXT_LIMIT])
        raise RetiredError(why)

    def forget_unused(self) -> bool:
        """Evict functions that were not used since the last call; returns whether there were any."""
        return self._functions.forget_unused()

    def become_fork(self, end: Callable[[], NoReturn]) -> None:
        """The current run has forked this process: it may print, and calls `end` when the run returns."""
        self._store = None
        self._write = lambda reply: end()

    def _define(self, definition: Definition) -> None:
        """Defer loading to the first run, so that side effects and errors of the import belong to a run."""

        def load_and_run(call: Buffer) -> tuple[int, Payload]:
            try:
                check_definition(definition, self._allow_functions)
                whole = self._with_bodies(definition)
                invoker = load_invoker(whole, self._finish)
            except InitializerError as error:
                return raised(error, formatted(error), definition.encoding)
            except ScalerError as error:
                return failed(error)
            if definition.stream_output:
                invoker = self._capturing(invoker, prefixed=definition.stream_output == StreamOutput.PREFIXED)
            self._functions.replace(definition.handle, invoker, whole.size)
            return invoker(call)

        self._functions.add(definition.handle, load_and_run, definition.size, definition.name)

    def _run_tasks(self, datagram: bytes) -> None:
        sequence, runs, tasks, handles, lengths, attempts, flags, end = unpack_tasks(datagram)
        cells, clock, cpu_clock, invokers = self._cells, self._clock, self._cpu_clock, self._functions.use(handles)
        pack, pid, number, changes, output = REPLY.pack, self._pid, self._number, self._may_have_changed, self._output
        start, cpu_start, store = clock(), cpu_clock(), self._store
        for run, task, handle, length, attempt, flag in zip(
            runs, tasks, handles, lengths, attempts, flags, strict=True
        ):
            cells[STARTED] = start
            cells[RUN] = run
            if cells[REVOKED] >= sequence:
                self._reply(RETURNED, 0, run, sequence.to_bytes(8, "little"))
                break
            at, end = end, end + length
            invoker = invokers.get(handle)
            if invoker is None:
                self._decline(FUNCTION_MISSING, run)
                continue
            self._run, self._task, self._attempt, self._handle = run, task, attempt, handle
            call = datagram[at:end]
            result = self._run_flagged(invoker, call, flag) if flag & CALL_FLAGS else invoker(call)
            if result is None:
                self._decline(INPUT_MISSING, run)
                continue
            if output is not None and output.is_unfinished:
                output.finish()
            kind, reply, (status, payload) = RESULT, None, result
            if status or len(payload) > INLINE_LIMIT or changes():
                kind, status, payload, reply = self._finish_run(status, payload, limit_of(flag >> RESULT_SHIFT))
            # A later run of this datagram may take the result as its input; a stored result is a short reference here.
            small = not status and len(payload) <= INLINE_LIMIT
            self._previous = {task: (kind == STORED_RESULT, bytes(payload))} if small else {}
            self._pending_reply = reply
            # The end of this run is the start of the next one: one clock call per run.
            stop = clock()
            cpu = duration = stop - start
            if duration > BRIEF_NANOSECONDS:
                cpu_stop = cpu_clock()
                cpu, cpu_start = max(0, cpu_stop - cpu_start), cpu_stop
                if duration > LONG_NANOSECONDS:
                    self._peak = self._peak_memory()
            else:
                cpu_start += cpu
            start = stop
            moved = _transfers(store, duration) if store is not None and (store.fetching or store.storing) else (0, 0)
            profile = duration // 1000, cpu // 1000, self._peak, pid, number, attempt, *moved
            write = self._write if reply is None else partial(reply.complete, on_error=partial(_failing, run, profile))
            write(pack(kind, status, len(payload), run, *profile) + bytes(payload))
            self._last = run

    def _finish_run(self, status: int, payload: Payload, limit: int) -> tuple[int, int, Payload, PendingReply | None]:
        """As `_store_result` beyond `limit`, but look for damage first if the run failed or may have changed things.

        A damaged process runs nothing more. Raises RetiredError if this run failed and an earlier run may have done the
        damage, so that this one is retried elsewhere.
        """
        if (status or self._may_have_changed()) and (damage := self._find_damage()):
            if status and self._undamaged_after != self._last:
                self._retire(damage)
            self._damage = damage
            self._cells[REVOKED] = EVERYTHING
        if len(payload) > limit:
            return self._store_result(status, payload)
        return RESULT, status, of_run(bytes(payload), self._run) if status == Status.FAILED else payload, None

    def _decline(self, kind: int, run: int) -> None:
        """Report a run that was not started, and so has no result."""
        self._previous = {}
        self._reply(kind, 0, run, b"")

    def _run_flagged(self, invoker: Invoker, call: Buffer, flag: int) -> tuple[int, Payload] | None:
        """Run a call that is a reference or takes results of other tasks; None if such a result is missing."""
        try:
            if flag & WITH_INPUTS:
                call, inputs = split_inputs(bytes(call))
                if any(kind == FOLLOWS and not self._has_previous(task) for task, kind, _ in inputs):
                    return None
                self.inputs = {
                    task: self._previous[task] if kind == FOLLOWS else (kind == STORED, result)
                    for task, kind, result in inputs
                }
            if flag & STORED:
                call = self._stored().get(bytes(call))
        except ScalerError as error:
            return failed(error)
        try:
            return invoker(call)
        finally:
            self.inputs = {}

    def _has_previous(self, task: int) -> bool:
        """Whether the run with the previous id has just made the result of `task`; waits until it is stored.

        The worker may have executed an earlier run of the task, whose result is out of date.
        """
        if self._last != self._run - 1 or task not in self._previous:
            return False
        return self._pending_reply is None or self._pending_reply.wait()

    def _stored(self) -> ObjectStore:
        if self._store is None:
            raise DeserializeError("the call is in object storage, but this worker has no connection to object storage")
        return self._store

    def _with_bodies(self, definition: Definition) -> Definition:
        """The definition with stored bodies fetched."""
        if definition.body_stored:
            definition = replace(definition, body=self._stored().get(bytes(definition.body)))
        if definition.serializer_stored:
            definition = replace(definition, serializer_body=self._stored().get(bytes(definition.serializer_body)))
        return definition

    def _store_result(self, status: int, payload: Payload) -> tuple[int, int, bytes, PendingReply | None]:
        """Put a payload over INLINE_LIMIT into object storage.

        Returns kind, status and payload of the reply, and its reserved position while the result is in transit.
        """
        store = self._store
        if store is None or not store.named:
            if len(payload) > INLINE_MOST:
                status, payload = failed(ScalerError(_TOO_BIG.format(len(payload), INLINE_MOST)))
            return RESULT, status, bytes(payload), None
        if status == Status.RAISED:
            text = excerpt(traceback_text(bytes(payload)), _EXCERPT).encode("utf-8", "replace")
            self._replies.write(self._packed(OUTPUT, TRACEBACK, self._run, text[:TEXT_LIMIT]))
        try:
            if not store.may_put_soon(len(payload)):
                return STORED_RESULT, status, store.put(payload, self._task, self._run), None
        except ScalerError as error:
            status, reason = failed(error)
            return RESULT, status, of_run(reason, self._run), None
        reply, reference = self._replies.reserve(), b""
        try:
            reference = store.put_soon(bytes(payload), self._task, self._run, reply.stored)
        except ScalerError as error:
            reply.stored(error)
        return STORED_RESULT, status, reference, reply

    def _capturing(self, invoker: Invoker, *, prefixed: bool) -> Invoker:
        """Wrap an invoker so that its output is sent; `prefixed`: with task and worker before each line."""

        def run(call: Buffer) -> tuple[int, Payload]:
            current = self._run

            def send(stream: int, text: str) -> None:
                self.write_output(stream, current, data := text.encode("utf-8", "replace"))
                if self._output is not None:
                    self._output.keep(stream, current, data)

            if not prefixed:
                with self._capture(send):
                    return invoker(call)
            lines = PrefixedLines(f"[{self._task:x} {self._origin}] ", send)
            with self._capture(lines.send):
                result = invoker(call)
            lines.end()
            return result

        return run

    def write_output(self, stream: int, run: int, text: bytes) -> None:
        """Send what a run has written to a stream: see `scaler_protocol.outputs`."""
        for piece in _pieces(text, TEXT_LIMIT):
            self._replies.write(self._packed(OUTPUT, stream, run, piece))

    def _reply(self, kind: int, status: int, run: int, payload: bytes) -> None:
        self._write(self._packed(kind, status, run, payload))

    def _packed(self, kind: int, status: int, run: int, payload: bytes) -> bytes:
        return REPLY.pack(kind, status, len(payload), run, 0, 0, 0, self._pid, self._number, 0, 0, 0) + payload


CALLING_CODE: Final = Runner._run_tasks.__code__
"""What calls the functions of tasks: frames within it are theirs."""


def _pieces(text: bytes, limit: int) -> Iterator[bytes]:
    """Split UTF-8 text into pieces of at most `limit` bytes, between characters."""
    at = 0
    while len(text) - at > limit:
        end = at + limit
        while text[end] & 0xC0 == 0x80:
            end -= 1
        yield text[at:end]
        at = end
    yield text[at:]


def _transfers(store: ObjectStore, duration: int) -> tuple[int, int]:
    """The microseconds in which the run that ends has fetched objects, and stored its result.

    Together they are at most its duration, in nanoseconds: threads of a task may fetch at once.
    """
    fetching = min(store.fetching, duration)
    storing = min(store.storing, duration - fetching)
    store.fetching = store.storing = 0
    return min(fetching // 1000, LONGEST_TRANSFER_US), min(storing // 1000, LONGEST_TRANSFER_US)


def _failing(run: int, profile: tuple[int, ...], error: ScalerError) -> bytes:
    """The reply of a run whose result could not be stored."""
    status, reason = failed(error)
    reason = of_run(reason, run)
    return REPLY.pack(RESULT, status, len(reason), run, *profile) + reason
