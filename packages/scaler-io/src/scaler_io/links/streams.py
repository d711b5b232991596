"""Numbered streams between two incarnations: a message that is lost with a connection is sent again, exactly once.

Every message starts with a header of two little-endian 64-bit numbers: the message's sequence (0 for messages that only
make and keep the connection) and the highest sequence received from the peer. Acknowledgements are cumulative and
travel in the header of any message; a separate Acknowledge follows only after ACK_SECONDS, HEAVY_ACK_SECONDS or
ACK_MESSAGES (one per message triples the 99th percentile of a round trip). An acknowledgement means that the peer's
process has the message, nothing more; outcomes are released by other messages.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

from scaler_protocol.codec import decode, encode
from scaler_protocol.errors import MalformedMessageError, ProtocolError
from scaler_protocol.handshake import Acknowledge, Heartbeat, Hello, NeedHello, Refused, Welcome
from scaler_protocol.messages import MESSAGE_LIMIT, Message

Frames = Sequence[Any]
"""Parts of a message: header, columns and an optional payload; on an in-process link header and the Message itself.

Nobody may change a message that is passed in process: sender and receiver share it.
"""

HEADER = struct.Struct("<QQ")
_COLUMNS_SIZE = struct.Struct("<Q")
_HEAD = _COLUMNS_SIZE.size + HEADER.size
ACK_SECONDS = 1.5
"""How long an acknowledgement waits for a message that carries it: each separate one wakes two processes.

Longer than the interval of heartbeats to up to 750 peers, which carry it at the latest.
"""
HEAVY_ACK_SECONDS = 0.05
"""The same of one for more than HEAVY_BYTES, which the sender keeps in memory, or counts as under way."""
HEAVY_BYTES = 16 * 1024
ACK_MESSAGES = 256
KEPT_LIMIT = 64 * 1024 * 1024
"""Bytes sent and not acknowledged, without the largest message, beyond which a peer must acknowledge some."""
KEPT_MOST = 4 * KEPT_LIMIT
"""Such bytes beyond which a peer is dropped as too slow at once."""
KEPT_OVERHEAD = 240
"""Bytes that a kept message takes beside its own (measured)."""
LONGEST_HEARTBEAT_SECONDS = 15.0
"""The longest interval between heartbeats of a service, however many peers it has."""
STUCK_SECONDS = 10.0
"""How long a peer may acknowledge nothing while more than KEPT_LIMIT bytes wait for it."""


def join(frames: Frames) -> bytes:
    """A message as one transport frame: the size of its columns, header, columns, payload.

    A transport takes longer for each frame than for the bytes in it.
    """
    return b"".join((_COLUMNS_SIZE.pack(sum(map(len, frames[1:2]))), *frames))


def cut(written: Any) -> list[bytes]:
    """The parts of a transport frame: header, columns and an optional payload; empty if it is no message.

    The payload is a view if `written` is a memoryview, unless the view would keep more of the frame than it shows: a
    receiver that stores the payload would store columns that it does not count.
    """
    if len(written) < _HEAD:
        return []
    end = _HEAD + _COLUMNS_SIZE.unpack_from(written)[0]
    if end > len(written):
        return []
    frames = [bytes(written[_COLUMNS_SIZE.size : _HEAD]), bytes(written[_HEAD:end])]
    if end == len(written):
        return frames
    payload = written[end:]
    return [*frames, payload if len(payload) > end else bytes(payload)]


_UNNUMBERED = frozenset({Hello, Welcome, Refused, NeedHello, Heartbeat, Acknowledge})
_UNNUMBERED_HEAD = bytes(8)


def is_numbered(header: bytes) -> bool:
    """Whether a message with this header is numbered."""
    return header[:8] != _UNNUMBERED_HEAD


def message_of(frames: Frames) -> Message:
    """Decode the message behind a header; raises MalformedMessageError."""
    if type(frames[1]) is bytes:
        return decode(frames[1:])
    message: Message = frames[1]
    return message


def size_of(frames: Frames) -> int:
    """The bytes of a message with its header; 0 for one that is passed in process."""
    return sum(map(len, frames)) if type(frames[1]) is bytes else 0


class StreamGapError(ProtocolError):
    """Messages of a numbered stream are missing: a new epoch must begin, which sends them again."""


class StreamMismatchError(ProtocolError):
    """The two sides do not agree on the stream: they must begin a new one."""


class Stream:
    """Both directions of one numbered stream; `in_process` if messages are passed as objects instead of encoded."""

    __slots__ = (
        "_kept",
        "_largest",
        "_longest",
        "_owed_bytes",
        "_written",
        "_written_before",
        "acknowledge_at",
        "in_process",
        "kept_bytes",
        "owed",
        "received",
        "sent",
    )  # fmt: skip

    def __init__(self, *, in_process: bool = False, longest: int | None = None) -> None:
        """`longest`: bytes of the longest message that the peer receives; None if it receives any."""
        self.in_process = in_process
        self._longest = longest
        self.sent = 0
        self.received = 0
        self.kept_bytes = 0
        self.owed = 0
        """Messages received and not yet acknowledged."""
        self.acknowledge_at = math.inf
        """When a separate Acknowledge must be sent for them."""
        self._kept: deque[tuple[int, int, Frames]] = deque()
        self._largest: deque[tuple[int, int]] = deque()
        """Sequence and size of the largest kept message, then of the largest after it, and so on.

        Only messages above MESSAGE_LIMIT are listed.
        """
        self._owed_bytes = 0
        self._written: int | None = None
        """The last message of this epoch that may have been written, once its connection is gone."""
        self._written_before = 0
        """The same of the epochs before."""

    def write(self, message: Message) -> Frames:
        """Number a message and return its frames; it is kept until the peer acknowledges it.

        Raises MalformedMessageError, and changes nothing, if it cannot be encoded or is too long.
        """
        body: Frames = (message,) if self.in_process else encode(message)
        if type(message) in _UNNUMBERED:
            sequence = 0
        else:
            size = 0 if self.in_process else sum(map(len, body))
            if self._longest is not None and size + _HEAD > self._longest:
                kind = type(message).__name__
                raise MalformedMessageError(
                    f"{kind} has {size:,} bytes, and services receive {self._longest:,} at most"
                )
            self.sent = sequence = self.sent + 1
            kept = 0 if self.in_process else size + KEPT_OVERHEAD
            self._kept.append((sequence, kept, body))
            self.kept_bytes += kept
            if size > MESSAGE_LIMIT:
                while self._largest and self._largest[-1][1] <= kept:
                    self._largest.pop()
                self._largest.append((sequence, kept))
        self.owed = self._owed_bytes = 0
        self.acknowledge_at = math.inf
        return [HEADER.pack(sequence, self.received), *body]

    def read(self, header: bytes, now: float, size: int = 0) -> bool:
        """Process the header of a received message of `size` bytes; False means that it is a duplicate.

        Raises StreamGapError if messages before it are missing, StreamMismatchError if it acknowledges a message that
        was never sent, ProtocolError if it is no header.
        """
        if len(header) != HEADER.size:
            raise ProtocolError(f"a header has {HEADER.size} bytes, not {len(header)}")
        sequence, acknowledged = HEADER.unpack(header)
        if acknowledged > self.sent:
            raise StreamMismatchError(f"message {acknowledged} is acknowledged, {self.sent} were sent")
        if self._kept:
            self.acknowledge(acknowledged)
        if not sequence:
            return True
        if sequence <= self.received:
            return False
        if sequence != self.received + 1:
            raise StreamGapError(f"message {sequence} came after message {self.received}")
        self.received = sequence
        self.owed += 1
        self._owed_bytes += size
        if self.owed >= ACK_MESSAGES:
            self.acknowledge_at = now
        elif self._owed_bytes > HEAVY_BYTES:
            self.acknowledge_at = min(self.acknowledge_at, now + HEAVY_ACK_SECONDS)
        elif self.owed == 1:
            self.acknowledge_at = now + ACK_SECONDS
        return True

    @property
    def is_heavy(self) -> bool:
        """Whether the messages that wait for an acknowledgement have more than HEAVY_BYTES."""
        return self._owed_bytes > HEAVY_BYTES

    def acknowledge(self, acknowledged: int) -> None:
        """Drop the kept messages up to this sequence: the peer has them."""
        kept = self._kept
        while kept and kept[0][0] <= acknowledged:
            self.kept_bytes -= kept.popleft()[1]
        while self._largest and self._largest[0][0] <= acknowledged:
            self._largest.popleft()

    @property
    def backlog(self) -> int:
        """Kept bytes without those of the largest message, whose size says nothing about how fast the peer reads."""
        return self.kept_bytes - (self._largest[0][1] if self._largest else 0)

    @property
    def oldest(self) -> int:
        """The sequence of the first unacknowledged message, or of the next one if all are acknowledged."""
        return self._kept[0][0] if self._kept else self.sent + 1

    def broken(self, unwritten: Frames | None = None) -> None:
        """The connection is gone, and did not take this message; what is sent from now on waits for the next epoch."""
        if self._written is None:
            self._written = self.sent
        if unwritten is not None and is_numbered(unwritten[0]):
            self._written = min(self._written, HEADER.unpack(unwritten[0])[0] - 1)

    def resumed(self) -> None:
        """A new epoch continues the stream."""
        self.broken()
        self._written_before, self._written = max(self._written_before, self._written or 0), None

    def unwritten(self) -> tuple[Frames, ...]:
        """The messages that no connection has taken, in order: the peer cannot have them."""
        last = self.sent if self._written is None else max(self._written_before, self._written)
        return tuple([HEADER.pack(sequence, 0), *body] for sequence, _, body in self._kept if sequence > last)

    def unacknowledged(self) -> list[Frames]:
        """The messages that a new epoch must send again, in order."""
        return [[HEADER.pack(sequence, self.received), *body] for sequence, _, body in self._kept]
