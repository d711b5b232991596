"""The message stream between the client inside a task and the agent: two lengths, then one or two frames."""

from __future__ import annotations

import struct
from typing import Any, Final

from scaler_protocol.codec import decode, encode
from scaler_protocol.messages import Message

_LENGTHS: Final = struct.Struct("=QQ")


def pack_message(message: Message) -> bytes:
    """Encode a message for the stream between a worker's client and the agent."""
    frames = encode(message)
    payload = frames[1] if len(frames) == 2 else b""
    return b"".join((_LENGTHS.pack(len(frames[0]), len(payload)), frames[0], payload))


class MessageReader:
    """Splits the stream between a worker's client and the agent into messages."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Append `data`; returns the messages that are now complete. Raises MalformedMessageError."""
        buffer = self._buffer
        buffer += data
        at, messages = 0, []
        while at + _LENGTHS.size <= len(buffer):
            columns, payload = _LENGTHS.unpack_from(buffer, at)
            middle = at + _LENGTHS.size + columns
            end = middle + payload
            if end > len(buffer):
                break
            frames = [bytes(buffer[at + _LENGTHS.size : middle])]
            if payload:
                frames.append(bytes(buffer[middle:end]))
            messages.append(decode(frames))
            at = end
        del buffer[:at]
        return messages
