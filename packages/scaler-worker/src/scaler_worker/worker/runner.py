"""Runner: the engine of a worker process. It runs the tasks of datagrams and writes one record for each run.

An engine does work behind injected ports: `replies` (the pipe to the agent), `store` (object storage), and the clocks
are constructor arguments. It is not a core: it calls user code.

Theory. Runs are executed one after the other, in the order in which they arrive. Each is answered by exactly one
record, in the same order:

    RESULT            the result or error is in the record
    STORED_RESULT     it is in object storage, and the record holds its reference
    FUNCTION_MISSING  the worker does not hold the function; the run was not started
    INPUT_MISSING     the run takes the result of the run before it, and there is none; the run was not started
    RETURNED          this run and the rest of its datagram were revoked before they started

Before each run the worker writes the run id and the start time into its cells of the shared state, and only then reads
the revoked sequence. So an agent that writes that sequence, waits, and reads the run id knows that the worker will not
run anything of the datagram beyond that run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Final, NoReturn, Protocol

from scaler_client.task_context import CurrentTask
from scaler_protocol.buffers import Buffer, Payload
from scaler_protocol.errors import DeserializeError, ScalerError
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.outputs import StreamOutput
from scaler_worker.ipc.frames import (
    DEFINE,
    FOLLOWS,
    FUNCTION_MISSING,
    INPUT_MISSING,
    OUTPUT,
    READY,
    RECORD,
    RESULT,
    RETIRED,
    RETURNED,
    STORED,
    STORED_RESULT,
    WITH_INPUTS,
    Definition,
    unpack_definition,
    unpack_tasks,
)
from scaler_worker.ipc.inputs import split_inputs
from scaler_worker.worker.function_cache import FunctionCache
from scaler_worker.worker.invoke import Await, Invoker, failed, load_invoker
from scaler_worker.worker.output_prefixes import PrefixedLines

RUN: Final = 0
STARTED: Final = 1
REVOKED: Final = 2
"""Places in a worker's word: the current run, when it started (monotonic nanoseconds), the revoked sequence."""
EVERYTHING: Final = 2**64 - 1
"""The revoked sequence of a worker that runs nothing any more."""
INLINE_MOST: Final = 2**32 - 1
"""Bytes that a record, and the messages behind it, can hold."""
_TOO_BIG: Final = (
    "a result of {:,} bytes is too big for a message, which holds {:,}: start an object storage server, which takes it "
    "(scaler_object_storage_server; a scheduler starts one by itself unless it is told not to)"
)
BRIEF_NANOSECONDS: Final = 200_000
"""Runs up to this are taken to use the CPU all the time: to ask costs more than many a task."""
TEXT_LIMIT: Final = 4096 - RECORD.size
"""Bytes of output in one record: with Linux' PIPE_BUF in all no other process can write in the middle of it."""
LONG_NANOSECONDS: Final = 50_000_000
"""Runs longer than this have their peak memory read."""


class ObjectStore(Protocol):
    """Where payloads too big to travel inline are."""

    @property
    def named(self) -> bool:
        """Whether there is a server: without one everything travels inline."""

    def get(self, reference: bytes) -> Buffer:
        """The object; raises ScalerError."""

    def put(self, payload: Payload, task: int, run: int) -> bytes:
        """Store the outcome of a task's run, for its session; returns its packed reference. Raises ScalerError."""

    def may_put_soon(self, size: int) -> bool:
        """Whether so many bytes may be put without waiting."""

    def put_soon(self, payload: bytes, task: int, run: int, done: Callable[[ScalerError | None], object]) -> bytes:
        """As `put`, but does not wait: `done` hears of its end, on another thread."""


class DeferredReply(Protocol):
    """A record that has its place, and leaves when it is both known and stored."""

    def say(self, record: bytes, on_error: Callable[[ScalerError], bytes]) -> None:
        """What to say when the outcome is stored, and what where it could not be."""

    def stored(self, error: ScalerError | None) -> None:
        """Storage has the outcome, or why it has not; from any thread."""

    def wait(self) -> bool:
        """Whether storage has the outcome; blocks until that is known."""


class ReplyPort(Protocol):
    """The way to the agent."""

    def write(self, record: bytes) -> None:
        """Say this behind all that was to be said before."""

    def reserve(self) -> DeferredReply:
        """The next place."""


class RetiredError(ScalerError):
    """This worker can run no more tasks, and the agent knows why."""


class Runner:
    """One worker's functions and its current run. `take` is the way in, `answers` the way out."""

    def __init__(
        self,
        *,
        name: str,
        host: str,
        number: int,
        pid: int,
        word: Any,
        answers: ReplyPort,
        capture: Callable[[Callable[[int, str], None]], AbstractContextManager[None]],
        finish: Await,
        clock: Callable[[], int],
        cpu_clock: Callable[[], int],
        peak_memory: Callable[[], int],
        damage: Callable[[], str] = str,
        suspected: Callable[[], bool] = bool,
        store: ObjectStore | None = None,
    ) -> None:
        self.inputs: Mapping[int, tuple[bool, bytes]] = {}
        self._name, self._number, self._pid = name, number, pid
        self._place = f"{name}@{host}"
        self._word, self._capture, self._finish = word, capture, finish
        self._answers, self._write = answers, answers.write
        self._clock, self._cpu_clock, self._peak_memory = clock, cpu_clock, peak_memory
        self._find_damage, self._suspected = damage, suspected
        self._damaged = ""
        self._last = self._whole_after = 0
        """The last run that ended, and the one after which this process was found whole."""
        self._store = store
        self._functions = FunctionCache()
        self._made: dict[int, tuple[bool, bytes]] = {}
        """What the run before has made, by its task."""
        self._making: DeferredReply | None = None
        """Its answer, where that is on the way to storage."""
        self._run, self._task, self._attempt = 0, 0, 0
        self._peak = peak_memory()

    def current(self) -> CurrentTask | None:
        """The task being run."""
        return CurrentTask(self._task, self._attempt, self._name, self._run) if self._run else None

    def take(self, datagram: bytes) -> None:
        """Do what a datagram says; raises RetiredError where this process can go on no more."""
        if datagram[0] == DEFINE:
            self._define(unpack_definition(datagram))
        else:
            self._run_tasks(datagram)
            self._run = 0
            if self._damaged:
                self._retire(self._damaged)

    def ready(self) -> None:
        """Say that tasks may come."""
        self._record(READY, 0, self._pid, b"")

    def examine(self) -> None:
        """See whether this process can go on running tasks; raises RetiredError where it can not."""
        if damage := self._find_damage():
            self._retire(damage)
        self._whole_after = self._last

    def _retire(self, why: str) -> NoReturn:
        self._record(RETIRED, 0, 0, why.encode("utf-8", "replace")[:TEXT_LIMIT])
        raise RetiredError(why)

    def forget_unused(self) -> bool:
        """Let go of functions that no run has needed since this was called before; whether there were any."""
        return self._functions.forget_unused()

    def become_fork(self, end: Callable[[], NoReturn]) -> None:
        """This process was forked by the current run: it may print, and calls `end` where the run comes to its end."""
        self._store = None
        self._write = lambda record: end()

    def _define(self, definition: Definition) -> None:
        """Loading waits for the first run, so that what it does is the doing of that run."""

        def load_and_run(call: Buffer) -> tuple[int, Payload]:
            try:
                whole = self._with_bodies(definition)
                invoker = load_invoker(whole, self._finish)
            except ScalerError as error:
                return failed(error)
            if definition.stream_output:
                invoker = self._capturing(invoker, prefixed=definition.stream_output == StreamOutput.PREFIXED)
            self._functions.replace(definition.handle, invoker, whole.size)
            return invoker(call)

        self._functions.add(definition.handle, load_and_run, definition.size)

    def _run_tasks(self, datagram: bytes) -> None:
        sequence, runs, tasks, handles, lengths, attempts, flags, end = unpack_tasks(datagram)
        word, clock, cpu_clock, invokers = self._word, self._clock, self._cpu_clock, self._functions.use(handles)
        pack, pid, number, suspected = RECORD.pack, self._pid, self._number, self._suspected
        start, cpu_start = clock(), cpu_clock()
        for run, task, handle, length, attempt, flag in zip(
            runs, tasks, handles, lengths, attempts, flags, strict=True
        ):
            word[STARTED] = start
            word[RUN] = run
            if word[REVOKED] >= sequence:
                self._record(RETURNED, 0, run, b"")
                break
            at, end = end, end + length
            invoker = invokers.get(handle)
            if invoker is None:
                self._decline(FUNCTION_MISSING, run)
                continue
            self._run, self._task, self._attempt = run, task, attempt
            if flag:
                outcome = self._run_flagged(invoker, datagram[at:end], flag)
                if outcome is None:
                    self._decline(INPUT_MISSING, run)
                    continue
                status, payload = outcome
            else:
                status, payload = invoker(datagram[at:end])
            kind, answer = RESULT, None
            if status or len(payload) > INLINE_LIMIT or suspected():
                kind, status, payload, answer = self._place_outcome(status, payload)
            small = not status and len(payload) <= INLINE_LIMIT
            self._made = {task: (kind == STORED_RESULT, bytes(payload))} if small else {}
            self._making = answer
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
            profile = duration // 1000, cpu // 1000, self._peak, pid, number, attempt
            record = pack(kind, status, len(payload), run, *profile) + bytes(payload)
            if answer is None:
                self._write(record)
            else:
                answer.say(record, partial(_failing, run, profile))
            self._last = run

    def _place_outcome(self, status: int, payload: Payload) -> tuple[int, int, Payload, DeferredReply | None]:
        """As `_place_result`, for runs that failed or are suspected, too.

        Such a run is the last one of a process that is damaged. Raises RetiredError for one that failed, so that it is
        tried again elsewhere, where an earlier run may have done the damage.
        """
        if (status or self._suspected()) and (damage := self._find_damage()):
            if status and self._whole_after != self._last:
                self._retire(damage)
            self._damaged = damage
            self._word[REVOKED] = EVERYTHING
        if len(payload) > INLINE_LIMIT:
            return self._place_result(status, payload)
        return RESULT, status, payload, None

    def _decline(self, kind: int, run: int) -> None:
        """Say that a run can not be, and so makes nothing."""
        self._made = {}
        self._record(kind, 0, run, b"")

    def _run_flagged(self, invoker: Invoker, call: Buffer, flag: int) -> tuple[int, Payload] | None:
        """A call that is a reference, or comes with outcomes of other tasks; None where one of these is not here."""
        try:
            if flag & WITH_INPUTS:
                call, inputs = split_inputs(bytes(call))
                if any(kind == FOLLOWS and not self._has_made(task) for task, kind, _ in inputs):
                    return None
                self.inputs = {
                    task: self._made[task] if kind == FOLLOWS else (kind == STORED, result)
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

    def _has_made(self, task: int) -> bool:
        """Whether the run before has made what is to be taken; waits until that is stored."""
        return task in self._made and (self._making is None or self._making.wait())

    def _stored(self) -> ObjectStore:
        if self._store is None:
            raise DeserializeError("the call is in object storage, and this worker is connected to none")
        return self._store

    def _with_bodies(self, definition: Definition) -> Definition:
        """The definition with its bytes in it."""
        if definition.body_stored:
            definition = replace(definition, body=self._stored().get(bytes(definition.body)))
        if definition.serializer_stored:
            definition = replace(definition, serializer_body=self._stored().get(bytes(definition.serializer_body)))
        return definition

    def _place_result(self, status: int, payload: Payload) -> tuple[int, int, bytes, DeferredReply | None]:
        """Put an outcome beyond INLINE_LIMIT into object storage.

        Returns the record's kind, status and payload, and the answer that it is for where it is not stored yet.
        """
        store = self._store
        if store is None or not store.named:
            if len(payload) > INLINE_MOST:
                status, payload = failed(ScalerError(_TOO_BIG.format(len(payload), INLINE_MOST)))
            return RESULT, status, bytes(payload), None
        try:
            if not store.may_put_soon(len(payload)):
                return STORED_RESULT, status, store.put(payload, self._task, self._run), None
        except ScalerError as error:
            status, reason = failed(error)
            return RESULT, status, bytes(reason), None
        answer, reference = self._answers.reserve(), b""
        try:
            reference = store.put_soon(bytes(payload), self._task, self._run, answer.stored)
        except ScalerError as error:
            answer.stored(error)
        return STORED_RESULT, status, reference, answer

    def _capturing(self, invoker: Invoker, *, prefixed: bool) -> Invoker:
        """The invoker with what it prints sent along, where wanted with its task and worker before each line."""

        def run(call: Buffer) -> tuple[int, Payload]:
            current = self._run

            def send(stream: int, text: str) -> None:
                for piece in _pieces(text.encode("utf-8", "replace"), TEXT_LIMIT):
                    self._answers.write(self._packed(OUTPUT, stream, current, piece))

            if not prefixed:
                with self._capture(send):
                    return invoker(call)
            lines = PrefixedLines(f"[{self._task:x} {self._place}] ", send)
            with self._capture(lines.send):
                outcome = invoker(call)
            lines.end()
            return outcome

        return run

    def _record(self, kind: int, status: int, run: int, payload: bytes) -> None:
        self._write(self._packed(kind, status, run, payload))

    def _packed(self, kind: int, status: int, run: int, payload: bytes) -> bytes:
        return RECORD.pack(kind, status, len(payload), run, 0, 0, 0, self._pid, self._number, 0) + payload


def _pieces(text: bytes, limit: int) -> Iterator[bytes]:
    """Text in UTF-8 in pieces of at most so many bytes, cut between characters."""
    at = 0
    while len(text) - at > limit:
        end = at + limit
        while text[end] & 0xC0 == 0x80:
            end -= 1
        yield text[at:end]
        at = end
    yield text[at:]


def _failing(run: int, profile: tuple[int, ...], error: ScalerError) -> bytes:
    """The record of a run whose outcome could not be stored."""
    status, reason = failed(error)
    return RECORD.pack(RESULT, status, len(reason), run, *profile) + reason
