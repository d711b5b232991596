"""The frames between an agent and its workers. Pure: bytes, no IO.

Agent to worker, over SOCK_SEQPACKET: a datagram is either TASKS (one task, or a batch of short ones) or DEFINE (the
function behind a handle). Columns are native integers, since both ends are on one host.

Worker to agent, over a pipe: replies of a HEADER (kind, status, payload length, run, and the bytes of a PROFILE)
and a payload. A reply that its writer did not complete before it died is discarded.

The client inside a task has a separate stream: `scaler_worker.ipc.client_messages`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from scaler_protocol.buffers import Buffer
from scaler_protocol.errors import MalformedMessageError
from scaler_protocol.ids import session_of
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.light_crypto import blake2b
from scaler_protocol.objects import OBJECT_ID_BYTES

DATAGRAM_LIMIT: Final = 60 * 1024
"""Bytes of the calls of one batch."""
DIRECT_LIMIT: Final = DATAGRAM_LIMIT + 32 * 1024
"""Bytes; a longer datagram is passed as a memory file. A batch has its head and its functions beside the calls."""
RECEIVE_SIZE: Final = 2 * DATAGRAM_LIMIT
"""Bytes of room for a datagram."""
COUNT_LIMIT: Final = 512
"""Tasks in one datagram."""
FUNCTIONS_LIMIT: Final = 1024
"""Functions that a worker caches."""

HEAD_BYTES: Final = 16
"""First bytes of a memory file's content that the datagram repeats, so that a recall can identify it unread."""

TASKS: Final = 1
DEFINE: Final = 2

PLAIN: Final = 0
STORED: Final = 1
"""Flag: the call is a reference to an object in storage."""
WITH_INPUTS: Final = 2
"""Flag: results of other tasks follow the call."""
FOLLOWS: Final = 4
"""Flag: one of these is the result of the previous run in the datagram."""
CALL_FLAGS: Final = STORED | WITH_INPUTS | FOLLOWS
RESULT_SHIFT: Final = 4
"""Above these bits flags have the class (`scaler_protocol.result_sizes`) of results that the reply may contain."""

# The fields are large enough for all values that a client or scheduler can send, and for counters over years.
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
    """Encode a TASKS datagram, the `sequence`-th of its worker."""
    count = len(runs)
    columns = _layout(count).pack(TASKS, count, sequence, *runs, *tasks, *handles, *map(len, calls), *attempts, *flags)
    return columns + b"".join(calls)


class TaskColumns(NamedTuple):
    """The columns of a TASKS datagram."""

    sequence: int
    runs: tuple[int, ...]
    tasks: tuple[int, ...]
    handles: tuple[int, ...]
    lengths: tuple[int, ...]
    attempts: tuple[int, ...]
    flags: tuple[int, ...]
    start: int
    """Offset of the first call in the datagram."""


def unpack_tasks(datagram: bytes) -> TaskColumns:
    """Decode the columns of a TASKS datagram; calls are not copied."""
    _, count, sequence = _TASKS_HEAD.unpack_from(datagram)
    layout = _layout(count)
    flat = layout.unpack_from(datagram)[3:]
    one, two, three, four, five = count, 2 * count, 3 * count, 4 * count, 5 * count
    columns = flat[:one], flat[one:two], flat[two:three], flat[three:four], flat[four:five], flat[five:]
    return TaskColumns(sequence, *columns, layout.size)


@dataclass(frozen=True, slots=True)
class Definition:
    """The meaning of a handle: a function, and the encoding of its calls and results."""

    handle: int
    function: bytes
    name: str
    body: Buffer
    encoding: int
    stream_output: int
    serializer: bytes = b""
    serializer_body: Buffer = b""
    body_stored: bool = False
    """Whether the body is a reference to an object in storage."""
    serializer_stored: bool = False

    @property
    def size(self) -> int:
        """Bytes of function and serializer, or of their references."""
        return len(self.body) + len(self.serializer_body)


def pack_definition(definition: Definition) -> bytes:
    """Encode a DEFINE datagram."""
    name = definition.name.encode()
    parts = (definition.function, definition.serializer, name, definition.body, definition.serializer_body)
    lengths = map(len, parts)
    stored = definition.body_stored + 2 * definition.serializer_stored
    head = _DEFINE_HEAD.pack(DEFINE, definition.stream_output, definition.encoding, stored, definition.handle, *lengths)
    return b"".join((head, *parts))


def unpack_definition(datagram: bytes) -> Definition:
    """Decode a DEFINE datagram."""
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


def sequence_of(datagram: bytes) -> int:
    """The sequence of a TASKS datagram; the first HEAD_BYTES suffice."""
    sequence: int = _TASKS_HEAD.unpack_from(datagram)[2]
    return sequence


def handle_of(datagram: bytes) -> int:
    """The handle of a DEFINE datagram; the first HEAD_BYTES suffice."""
    handle: int = _HANDLE.unpack_from(datagram)[0]
    return handle


# --- replies, worker to agent ---------------------------------------------------------------------------------------

RESULT: Final = 1
STORED_RESULT: Final = 2
OUTPUT: Final = 3
"""The status is the stream, the payload the text."""
FUNCTION_MISSING: Final = 4
"""The run was not started: the worker does not know its handle."""
RETURNED: Final = 5
"""This run and the rest of its datagram were not started: it was revoked. The payload is the datagram's sequence."""
READY: Final = 6
"""The worker waits for tasks; the run field holds its process id."""
PRELOAD_FAILED: Final = 7
"""The payload is the reason; the worker exits."""
INPUT_MISSING: Final = 8
"""The run was not started: the previous run has no result for it."""
RETIRED: Final = 9
"""The payload is the reason why the worker runs no more tasks; it exits. The status is 1 if it was asked to."""
SAMPLES: Final = 10
"""Samples of a profile, which the run field names; the status is 1 for the last piece."""

DESCRIPTORS_LOST: Final = 74
"""Exit code (EX_IOERR) of a worker whose task closed or replaced its descriptors, so that it cannot report."""

REPLY: Final = struct.Struct("<BBxxIQQQQIIIII")
"""Kind, status, length of the payload, run; then a PROFILE."""
_SEEN: Final = struct.Struct("<BBxxIQQ")
_PROFILE_AT: Final = 16


@dataclass(frozen=True, slots=True)
class RunsEnded:
    """Finished runs, in execution order, as columns."""

    runs: list[int]
    statuses: list[int]
    durations: list[int]
    profiles: list[bytes]
    payloads: list[bytes]
    stored: list[int]
    """Positions of payloads that are references to objects in storage."""

    def part(self, start: int, end: int) -> RunsEnded:
        """The slice from `start` up to `end`."""
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
    """A run wrote to stdout (1) or stderr (2); plus 2: to be kept by the scheduler."""

    run: int
    stream: int
    text: bytes


@dataclass(frozen=True, slots=True)
class FunctionMissing:
    """A run was not started: the worker no longer holds its function."""

    run: int


@dataclass(frozen=True, slots=True)
class InputMissing:
    """A run was not started: the previous run has no result for it."""

    run: int


@dataclass(frozen=True, slots=True)
class DatagramReturned:
    """This run and the rest of its datagram, the `sequence`-th of its worker, were not started."""

    run: int
    sequence: int


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker waits for tasks."""

    pid: int


@dataclass(frozen=True, slots=True)
class PreloadFailed:
    """The preload of a worker failed."""

    text: str


@dataclass(frozen=True, slots=True)
class WorkerRetired:
    """A worker exits because it can run no more tasks, or was asked to; a run without a reply is lost."""

    text: str
    was_asked: bool = False


@dataclass(frozen=True, slots=True)
class SamplesTaken:
    """A piece of what a worker has sampled for the profile that ends at this time, in monotonic nanoseconds."""

    until: int
    is_last: bool
    text: bytes


_RunEvent = RunsEnded | OutputWritten | FunctionMissing | InputMissing | DatagramReturned
ReplyEvent = _RunEvent | WorkerReady | PreloadFailed | WorkerRetired | SamplesTaken

_RARE: Final[dict[int, Callable[[int, int, bytes], ReplyEvent]]] = {
    OUTPUT: lambda status, run, payload: OutputWritten(run, status, payload),
    FUNCTION_MISSING: lambda status, run, payload: FunctionMissing(run),
    INPUT_MISSING: lambda status, run, payload: InputMissing(run),
    RETURNED: lambda status, run, payload: DatagramReturned(run, int.from_bytes(payload[:8], "little")),
    READY: lambda status, run, payload: WorkerReady(run),
    PRELOAD_FAILED: lambda status, run, payload: PreloadFailed(payload.decode("utf-8", "replace")),
    RETIRED: lambda status, run, payload: WorkerRetired(payload.decode("utf-8", "replace"), bool(status)),
    SAMPLES: lambda status, run, payload: SamplesTaken(run, bool(status), payload),
}


class ReplyReader:
    """Splits the bytes of a worker's pipe into events, in order.

    Raises MalformedMessageError for bytes that are not replies: a task has written into the pipe.
    """

    __slots__ = ("_have", "_need", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = REPLY.size

    def feed(self, data: bytes) -> list[ReplyEvent]:
        """Append `data`; returns the events that are now complete."""
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
        self._have, self._need = len(rest), REPLY.size
        if rest:
            self._pieces.append(rest)
            if len(rest) >= REPLY.size:
                self._need += _SEEN.unpack_from(rest)[2]

    def _cut(self, data: bytes) -> list[ReplyEvent]:
        events: list[ReplyEvent] = []
        at, size = 0, REPLY.size
        while True:
            at, batch = _cut_results(data, at)
            if batch.runs:
                events.append(batch)
            if at + size > len(data):
                break
            kind, status, length, run, _ = _SEEN.unpack_from(data, at)
            if kind not in _RARE and kind not in (RESULT, STORED_RESULT):
                raise MalformedMessageError(f"unknown reply kind {kind}")
            end = at + size + length
            if end > len(data):
                break
            events.append(_RARE[kind](status, run, data[at + size : end]))
            at = end
        self._keep(data, at)
        return events


def _cut_results(data: bytes, at: int) -> tuple[int, RunsEnded]:
    """Decode consecutive complete results from `at`; returns the end offset and the batch."""
    stored: list[int] = []
    batch = RunsEnded([], [], [], [], [], stored)
    take_run, take_status, take_duration = batch.runs.append, batch.statuses.append, batch.durations.append
    take_profile, take_payload = batch.profiles.append, batch.payloads.append
    see, size, total = _SEEN.unpack_from, REPLY.size, len(data)
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
    """The object id of a stored result: a keyed hash that only this host can compute.

    The key belongs to the session: a hash of its number, keyed with the host's secret. The id covers run and worker,
    because the object of one run may be deleted while another run stores its own. If the worker dies, the agent knows
    the id.
    """
    key = blake2b(_SESSION.pack(session_of(task)), key=secret).digest()
    return blake2b(_RUN_OF_WORKER.pack(task, run, pid), key=key, digest_size=OBJECT_ID_BYTES).digest()
