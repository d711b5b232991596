"""A numbered stream of messages between two incarnations: what was lost with a connection is sent again, once.

Every message starts with a header of two little-endian 64-bit numbers: the message's sequence (0 for messages that
only make and keep the connection) and the highest sequence received from the peer. Acknowledgements are
cumulative and ride on whatever is sent; alone they go only after ACK_SECONDS or ACK_MESSAGES (one per message triples
the 99th percentile of a round trip). An acknowledgement says that the peer's process has the message, nothing more:
release is a matter of tasks.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

from scaler_protocol.codec import decode, encode
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Acknowledge, Heartbeat, Hello, NeedHello, Refused, Welcome
from scaler_protocol.messages import MESSAGE_LIMIT, Message

Frames = Sequence[Any]
"""The header of a message, columns and, where there is one, payload; or header and message, if it was *handed over*.

Handed over is what does not leave its process: as it is, and nobody may change it.
"""

HEADER = struct.Struct("<QQ")
_COLUMNS_SIZE = struct.Struct("<Q")
_HEAD = _COLUMNS_SIZE.size + HEADER.size
ACK_SECONDS = 0.05
ACK_MESSAGES = 256
KEPT_LIMIT = 64 * 1024 * 1024
"""Bytes sent to a peer and not acknowledged, beside the largest message, after which it must acknowledge some."""
KEPT_MOST = 4 * KEPT_LIMIT
"""After which it is cut off as too slow at once."""
STUCK_SECONDS = 10.0
"""How long a peer may acknowledge nothing while more than KEPT_LIMIT waits for it."""


def join(frames: Frames) -> bytes:
    """A message as it travels: the size of its columns, header, columns, payload, all in one.

    A transport takes longer for each part than for the bytes in it.
    """
    return b"".join((_COLUMNS_SIZE.pack(sum(map(len, frames[1:2]))), *frames))


def cut(written: Any) -> list[bytes]:
    """Header, columns and, where there is one, payload of a message as it travels; nothing of what can be none.

    Of a memoryview the payload is a part, not a copy.
    """
    if len(written) < _HEAD:
        return []
    end = _HEAD + _COLUMNS_SIZE.unpack_from(written)[0]
    if end > len(written):
        return []
    frames = [bytes(written[_COLUMNS_SIZE.size : _HEAD]), bytes(written[_HEAD:end])]
    return [*frames, written[end:]] if end < len(written) else frames


_UNNUMBERED = frozenset({Hello, Welcome, Refused, NeedHello, Heartbeat, Acknowledge})
_UNNUMBERED_HEAD = bytes(8)


def is_numbered(header: bytes) -> bool:
    """Whether a message with this header has a place in the stream."""
    return header[:8] != _UNNUMBERED_HEAD


def opened(frames: Frames) -> Message:
    """The message behind a header; raises MalformedMessageError."""
    if type(frames[1]) is bytes:
        return decode(frames[1:])
    handed: Message = frames[1]
    return handed


class StreamGapError(ProtocolError):
    """Messages of a numbered stream are missing: the connection must start a new epoch."""


class StreamMismatchError(ProtocolError):
    """The two ends do not speak of the same stream: they must begin a new one."""


class Stream:
    """Both directions of one numbered stream, whose messages are written or handed over."""

    __slots__ = ("_kept", "_largest", "_owed_since", "handed", "kept_bytes", "owed", "received", "sent")

    def __init__(self, *, handed: bool = False) -> None:
        self.handed = handed
        self.sent = 0
        self.received = 0
        self.kept_bytes = 0
        self.owed = 0
        """Messages received since the last acknowledgement."""
        self._kept: deque[tuple[int, int, Frames]] = deque()
        self._largest: deque[tuple[int, int]] = deque()
        """Sequence and size of the largest kept message, the largest behind that, and so on, but for usual ones."""
        self._owed_since = 0.0

    def write(self, message: Message) -> Frames:
        """The frames of a message; a numbered one is kept until it is acknowledged."""
        body: Frames = (message,) if self.handed else encode(message)
        if type(message) in _UNNUMBERED:
            sequence = 0
        else:
            self.sent = sequence = self.sent + 1
            size = 0 if self.handed else sum(map(len, body))
            self._kept.append((sequence, size, body))
            self.kept_bytes += size
            if size > MESSAGE_LIMIT:
                while self._largest and self._largest[-1][1] <= size:
                    self._largest.pop()
                self._largest.append((sequence, size))
        self.owed = 0
        return [HEADER.pack(sequence, self.received), *body]

    def read(self, header: bytes, now: float) -> bool:
        """Take the header of a message from the peer; False means it is a duplicate.

        Raises StreamGapError where messages before it are missing, StreamMismatchError where it acknowledges what was
        never sent, ProtocolError for a header that is none.
        """
        if len(header) != HEADER.size:
            raise ProtocolError(f"a header has {HEADER.size} bytes, not {len(header)}")
        sequence, acknowledged = HEADER.unpack(header)
        if acknowledged > self.sent:
            raise StreamMismatchError(f"message {acknowledged} is acknowledged, {self.sent} were sent")
        self.acknowledge(acknowledged)
        if not sequence:
            return True
        if sequence <= self.received:
            return False
        if sequence != self.received + 1:
            raise StreamGapError(f"message {sequence} came after message {self.received}")
        self.received = sequence
        if not self.owed:
            self._owed_since = now
        self.owed += 1
        return True

    def acknowledge(self, acknowledged: int) -> None:
        """The peer has everything up to this sequence."""
        kept = self._kept
        while kept and kept[0][0] <= acknowledged:
            self.kept_bytes -= kept.popleft()[1]
        while self._largest and self._largest[0][0] <= acknowledged:
            self._largest.popleft()

    @property
    def backlog(self) -> int:
        """Bytes that are kept beside the largest message: whose size says nothing about who reads it."""
        return self.kept_bytes - (self._largest[0][1] if self._largest else 0)

    @property
    def oldest(self) -> int:
        """The sequence of the first message that is not acknowledged, or will be sent next."""
        return self._kept[0][0] if self._kept else self.sent + 1

    def owes_acknowledgement(self, now: float) -> bool:
        """Whether an acknowledgement has waited long enough to be sent alone."""
        return self.owed >= ACK_MESSAGES or (self.owed > 0 and now >= self._owed_since + ACK_SECONDS)

    def acknowledgement_due(self) -> float | None:
        """When an acknowledgement must go alone, if one is owed."""
        return self._owed_since + ACK_SECONDS if self.owed else None

    def unacknowledged(self) -> list[Frames]:
        """What a new epoch has to send again, in order."""
        return [[HEADER.pack(sequence, self.received), *body] for sequence, _, body in self._kept]
