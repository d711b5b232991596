"""A pickle and its out-of-band buffers (pickle protocol 5) as the bytes of one object. Pure, no IO.

    8 bytes magic · u32 count of buffers · u32 zero · u64 bytes of the pickle     all numbers little-endian
    per buffer: u64 offset · u64 bytes
    the pickle
    each buffer at its offset, which is a multiple of 64

Bytes that do not begin with the magic are a pickle alone, which begins with 0x80. If an object is mapped at the
beginning of a page, every buffer is aligned to 64 bytes, a cache line, as vector instructions prefer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from scaler_protocol.errors import MalformedMessageError

MAGIC: Final = b"SCALERB\x01"
ALIGNMENT: Final = 64

_HEAD: Final = struct.Struct("<8sIIQ")
_SPAN: Final = struct.Struct("<QQ")

Buffer = bytes | bytearray | memoryview


class BufferedPickle:
    """The layout of a pickle and its buffers: the object is the concatenation of `pieces`. Nothing is copied."""

    __slots__ = ("_size", "pieces")

    def __init__(self, pickle: bytes, buffers: Sequence[Buffer]) -> None:
        at = _HEAD.size + _SPAN.size * len(buffers)
        spans: list[bytes] = []
        body: list[Buffer] = [pickle]
        at += len(pickle)
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            padding = -at % ALIGNMENT
            if padding:
                body.append(bytes(padding))
            spans.append(_SPAN.pack(at + padding, len(view)))
            body.append(view)
            at += padding + len(view)
        head = _HEAD.pack(MAGIC, len(buffers), 0, len(pickle))
        self.pieces: Sequence[Buffer] = [b"".join((head, *spans)), *body]
        self._size = at

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)


Payload = bytes | BufferedPickle
"""A pickle, with or without buffers."""


def split(payload: Buffer) -> tuple[memoryview, list[memoryview]]:
    """The pickle and read-only views of its buffers, of which there may be none; raises MalformedMessageError."""
    view = memoryview(payload).toreadonly().cast("B")
    buffers: list[memoryview] = []
    if bytes(view[: len(MAGIC)]) != MAGIC:
        return view, buffers
    if len(view) < _HEAD.size:
        raise MalformedMessageError(f"an object with buffers ends inside its head, at byte {len(view)}")
    _, count, zero, size = _HEAD.unpack_from(view)
    start = _HEAD.size + count * _SPAN.size
    end = start + size
    if zero or end > len(view):
        raise MalformedMessageError(
            f"an object of {len(view)} bytes cannot hold {count} buffers and a pickle of {size} bytes"
        )
    pickle = view[start:end]
    for at in range(_HEAD.size, start, _SPAN.size):
        offset, size = _SPAN.unpack_from(view, at)
        if offset % ALIGNMENT or offset < end or offset + size > len(view):
            raise MalformedMessageError(f"buffer {len(buffers)} cannot be {size} bytes at {offset} of {len(view)}")
        end = offset + size
        buffers.append(view[offset:end])
    return pickle, buffers
