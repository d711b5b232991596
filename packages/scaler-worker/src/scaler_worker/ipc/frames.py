"""The framing between an agent and its workers. Bytes only, no IO.

Agent to worker, over SOCK_SEQPACKET: one datagram is a TASKS (one task, or a chunk of tiny ones) or a DEFINE (what a
handle stands for). Columns are native integers, since both ends are on one host.

Worker to agent, over a pipe: records of a HEADER (kind, status, payload length, run, and the bytes of a PROFILE)
and a payload. A record cut short by the death of its writer is dropped.

Beside them stands a stream for the client inside a task: `scaler_worker.ipc.client_messages`.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from scaler_protocol.buffers import Buffer
from scaler_protocol.errors import MalformedMessageError
from scaler_protocol.ids import session_of
from scaler_protocol.objects import OBJECT_ID_BYTES

DATAGRAM_LIMIT: Final = 60 * 1024
"""Bytes of a datagram; a longer one travels as a memory file."""
COUNT_LIMIT: Final = 512
"""Tasks of one chunk."""
FUNCTIONS_LIMIT: Final = 1024
"""Functions that a worker holds."""

HEAD_BYTES: Final = 16
"""What of a datagram that travels as a memory file stands in the datagram itself."""

TASKS: Final = 1
DEFINE: Final = 2

PLAIN: Final = 0
STORED: Final = 1
"""Flag: the call is a reference into object storage."""
WITH_INPUTS: Final = 2
"""Flag: outcomes of other tasks follow the call."""
FOLLOWS: Final = 4
"""Flag: one of them is what the run before makes."""

# Nothing that a client or a scheduler can name, and no counter of a life of years, exceeds these fields.
_TASKS_HEAD: Final = struct.Struct("=B3xIQ")
_DEFINE_HEAD: Final = struct.Struct("=4BQIIIQQ")
_HANDLE: Final = struct.Struct("=4xQ")
_SESSION: Final = struct.Struct("<I")
_RUN_OF_WORKER: Final = struct.Struct("<QQI")


@lru_cache(COUNT_LIMIT)
def _layout(count: int) -> struct.Struct:
    return struct.Struct(f"=B3xIQ{count}Q{count}Q{count}Q{count}Q{count}I{count}B")


def pack_tasks(
    sequence: int,
    runs: Sequence[int],
    tasks: Sequence[int],
    handles: Sequence[int],
    calls: Sequence[bytes],
    attempts: Sequence[int],
    flags: Sequence[int],
) -> bytes:
    """A TASKS datagram, the worker's `sequence`-th."""
    count = len(runs)
    columns = _layout(count).pack(TASKS, count, sequence, *runs, *tasks, *handles, *map(len, calls), *attempts, *flags)
    return columns + b"".join(calls)


class TaskColumns(NamedTuple):
    """What a TASKS datagram holds."""

    sequence: int
    runs: tuple[int, ...]
    tasks: tuple[int, ...]
    handles: tuple[int, ...]
    lengths: tuple[int, ...]
    attempts: tuple[int, ...]
    flags: tuple[int, ...]
    start: int
    """Where the first call stands in the datagram."""


def unpack_tasks(datagram: bytes) -> TaskColumns:
    """The columns of a TASKS datagram; the calls stay where they are."""
    _, count, sequence = _TASKS_HEAD.unpack_from(datagram)
    layout = _layout(count)
    flat = layout.unpack_from(datagram)[3:]
    one, two, three, four, five = count, 2 * count, 3 * count, 4 * count, 5 * count
    columns = flat[:one], flat[one:two], flat[two:three], flat[three:four], flat[four:five], flat[five:]
    return TaskColumns(sequence, *columns, layout.size)


@dataclass(frozen=True, slots=True)
class Definition:
    """What a handle stands for: a function and how its calls and results are written."""

    handle: int
    function: bytes
    name: str
    body: Buffer
    encoding: int
    stream_output: int
    serializer: bytes = b""
    serializer_body: Buffer = b""
    body_stored: bool = False
    """Whether the body is a reference into object storage."""
    serializer_stored: bool = False

    @property
    def size(self) -> int:
        """Bytes of function and serializer, or of what stands for them."""
        return len(self.body) + len(self.serializer_body)


def pack_definition(definition: Definition) -> bytes:
    """A DEFINE datagram."""
    name = definition.name.encode()
    parts = (definition.function, definition.serializer, name, definition.body, definition.serializer_body)
    lengths = map(len, parts)
    stored = definition.body_stored + 2 * definition.serializer_stored
    head = _DEFINE_HEAD.pack(DEFINE, definition.stream_output, definition.encoding, stored, definition.handle, *lengths)
    return b"".join((head, *parts))


def unpack_definition(datagram: bytes) -> Definition:
    """What `pack_definition` packed."""
    _, stream_output, encoding, stored, handle, *lengths = _DEFINE_HEAD.unpack_from(datagram)
    at, parts = _DEFINE_HEAD.size, []
    for length in lengths:
        parts.append(datagram[at : at + length])
        at += length
    function, serializer, name, body, serializer_body = parts
    return Definition(
        handle,
        function,
        name.decode(),
        body,
        encoding,
        stream_output,
        serializer,
        serializer_body,
        bool(stored & 1),
        bool(stored & 2),
    )


def handle_of(datagram: bytes) -> int:
    """The handle that a DEFINE datagram, of which HEAD_BYTES suffice, defines."""
    handle: int = _HANDLE.unpack_from(datagram)[0]
    return handle


# --- records, worker to agent ---------------------------------------------------------------------------------------

RESULT: Final = 1
STORED_RESULT: Final = 2
OUTPUT: Final = 3
"""The status is the stream, the payload the text."""
FUNCTION_MISSING: Final = 4
"""The run was not started, for its handle is not known here."""
RETURNED: Final = 5
"""The run, and all behind it in its datagram, were not started: the datagram was revoked."""
READY: Final = 6
"""The worker is set up; the run is its process id."""
PRELOAD_FAILED: Final = 7
"""The payload says why; the worker ends."""
INPUT_MISSING: Final = 8
"""The run was not started, for the one before did not make what it takes."""
RETIRED: Final = 9
"""The payload says why the worker can run no more tasks; it ends."""

DESCRIPTORS_LOST: Final = 74
"""The exit code (EX_IOERR) of a worker that can say nothing more, since a task closed or overwrote its descriptors."""

RECORD: Final = struct.Struct("<BBxxIQQQQIII")
"""Kind, status, length of the payload, run; then a PROFILE: duration, CPU, peak memory, pid, worker, attempt."""
_SEEN: Final = struct.Struct("<BBxxIQQ")
_PROFILE_AT: Final = 16


@dataclass(frozen=True, slots=True)
class RunsEnded:
    """Outcomes, in the order in which the worker made them."""

    runs: list[int]
    statuses: list[int]
    durations: list[int]
    profiles: list[bytes]
    payloads: list[bytes]
    stored: list[int]
    """Positions of the payloads that are references."""

    def part(self, start: int, end: int) -> RunsEnded:
        """Those from `start` up to `end`."""
        return RunsEnded(
            self.runs[start:end],
            self.statuses[start:end],
            self.durations[start:end],
            self.profiles[start:end],
            self.payloads[start:end],
            [position - start for position in self.stored if start <= position < end],
        )


@dataclass(frozen=True, slots=True)
class OutputWritten:
    """A run wrote to stdout (1) or stderr (2)."""

    run: int
    stream: int
    text: bytes


@dataclass(frozen=True, slots=True)
class FunctionMissing:
    """A run was not started, for its worker no longer holds the function."""

    run: int


@dataclass(frozen=True, slots=True)
class InputMissing:
    """A run was not started, for the one before did not make what it takes."""

    run: int


@dataclass(frozen=True, slots=True)
class DatagramReturned:
    """This run and all behind it in its datagram were not started."""

    run: int


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker waits for tasks."""

    pid: int


@dataclass(frozen=True, slots=True)
class PreloadFailed:
    """A worker could not be set up."""

    text: str


@dataclass(frozen=True, slots=True)
class WorkerRetired:
    """A worker ends because it can run no more tasks; a run that it has not answered is lost."""

    text: str


_RunEvent = RunsEnded | OutputWritten | FunctionMissing | InputMissing | DatagramReturned
RecordEvent = _RunEvent | WorkerReady | PreloadFailed | WorkerRetired

_RARE: Final[dict[int, Callable[[int, int, bytes], RecordEvent]]] = {
    OUTPUT: lambda status, run, payload: OutputWritten(run, status, payload),
    FUNCTION_MISSING: lambda status, run, payload: FunctionMissing(run),
    INPUT_MISSING: lambda status, run, payload: InputMissing(run),
    RETURNED: lambda status, run, payload: DatagramReturned(run),
    READY: lambda status, run, payload: WorkerReady(run),
    PRELOAD_FAILED: lambda status, run, payload: PreloadFailed(payload.decode("utf-8", "replace")),
    RETIRED: lambda status, run, payload: WorkerRetired(payload.decode("utf-8", "replace")),
}


class RecordReader:
    """Cuts what comes out of a worker's pipe into events, in order.

    Raises MalformedMessageError where the bytes are no records: something else wrote into the pipe.
    """

    __slots__ = ("_have", "_need", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = RECORD.size

    def feed(self, data: bytes) -> list[RecordEvent]:
        """The events that are complete with `data`."""
        if self._pieces:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()
        elif len(data) < self._need:
            self._keep(data, 0)
            return []
        return self._cut(data)

    def _keep(self, data: bytes, at: int) -> None:
        rest = data[at:]
        self._have, self._need = len(rest), RECORD.size
        if rest:
            self._pieces.append(rest)
            if len(rest) >= RECORD.size:
                self._need += _SEEN.unpack_from(rest)[2]

    def _cut(self, data: bytes) -> list[RecordEvent]:
        events: list[RecordEvent] = []
        at, size = 0, RECORD.size
        while True:
            at, batch = _cut_results(data, at)
            if batch.runs:
                events.append(batch)
            if at + size > len(data):
                break
            kind, status, length, run, _ = _SEEN.unpack_from(data, at)
            if kind not in _RARE and kind not in (RESULT, STORED_RESULT):
                raise MalformedMessageError(f"there is no record of kind {kind}")
            end = at + size + length
            if end > len(data):
                break
            events.append(_RARE[kind](status, run, data[at + size : end]))
            at = end
        self._keep(data, at)
        return events


def _cut_results(data: bytes, at: int) -> tuple[int, RunsEnded]:
    """The complete results that stand one behind the other from `at`, and where they end."""
    stored: list[int] = []
    batch = RunsEnded([], [], [], [], [], stored)
    take_run, take_status, take_duration = batch.runs.append, batch.statuses.append, batch.durations.append
    take_profile, take_payload = batch.profiles.append, batch.payloads.append
    see, size, total = _SEEN.unpack_from, RECORD.size, len(data)
    while at + size <= total:
        kind, status, length, run, duration = see(data, at)
        body = at + size
        end = body + length
        if not 0 < kind <= STORED_RESULT or end > total:
            break
        if kind == STORED_RESULT:
            stored.append(len(batch.runs))
        take_run(run)
        take_status(status)
        take_duration(duration)
        take_profile(data[at + _PROFILE_AT : body])
        take_payload(data[body:end])
        at = end
    return at, batch


def result_name(secret: bytes, task: int, run: int, pid: int) -> bytes:
    """The id of the object that the outcome of a task's run becomes if it is big: an HMAC that only its host can tell.

    The key is the session's: an HMAC of its number by the secret of the host. Run and worker are in it, as what one run
    has stored may be deleted while another one stores. Should the worker die, the agent knows the id.
    """
    key = hmac.digest(secret, _SESSION.pack(session_of(task)), "sha256")
    return hmac.digest(key, _RUN_OF_WORKER.pack(task, run, pid), "sha256")[:OBJECT_ID_BYTES]
