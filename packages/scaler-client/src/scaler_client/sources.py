"""Sources: what objects are made of once more where their server was started again and has lost them.

A source holds nothing that would not be held without it: a value goes when its owner drops it, and one that was changed
since its object was put is none any more.
"""

from __future__ import annotations

import sys
import weakref
import zlib
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

from scaler_client.side_by_side import side_by_side
from scaler_protocol.buffers import BufferedPickle, Payload

_DIGEST_BYTES: Final = 32
_ROW: Final = 1024
_BLOCK: Final = 64
"""Rows that stay in a core's own cache from the sums to the XOR."""
_PART: Final = 512
"""Rows that are worth a thread."""


def pieces(payload: Payload) -> tuple[Any, ...]:
    """The buffers that a payload is written as, one behind the other."""
    return tuple(payload.pieces) if isinstance(payload, BufferedPickle) else (payload,)


def content_digest(payload: Payload) -> bytes:
    """What equal payloads, and only those, have in common."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for piece in pieces(payload):
        digest.update(piece)
    return digest.digest()


def checksum(payload: Payload) -> int:
    """Tells a payload from what it was before: as good as certain, and nearly as fast as memory can be read."""
    found = 0
    for piece in pieces(payload):
        found = _add(memoryview(piece), found)
    return found


def _add(piece: memoryview, found: int) -> int:
    """Where NumPy is there anyway: of words in rows the sum of each row and the XOR of each column, twice as fast."""
    numpy: Any = sys.modules.get("numpy")
    rows = len(piece) // (8 * _ROW)
    if not rows or not hasattr(numpy, "bitwise_xor"):
        return zlib.crc32(piece, found)
    words = numpy.frombuffer(piece, numpy.uint64, rows * _ROW).reshape(rows, _ROW)
    sums = numpy.empty(rows, numpy.uint64)

    def add_up(start: int, stop: int) -> Any:
        columns = numpy.zeros(_ROW, numpy.uint64)
        for at in range(start, stop, _BLOCK):
            block = slice(at, min(at + _BLOCK, stop))
            numpy.sum(words[block], axis=1, out=sums[block])
            columns ^= numpy.bitwise_xor.reduce(words[block], axis=0)
        return columns

    columns = numpy.bitwise_xor.reduce(side_by_side(add_up, rows, _PART), axis=0)
    found = zlib.crc32(columns, zlib.crc32(sums, found))
    return zlib.crc32(piece[8 * _ROW * rows :], found)


class Source:
    """A value, or the way to find it; `dump` writes it."""

    __slots__ = ("_digest", "_dump", "_find")

    def __init__(self, find: Callable[[], Any], dump: Callable[[Any], Payload], digest: bytes) -> None:
        self._find, self._dump, self._digest = find, dump, digest

    @property
    def alive(self) -> bool:
        """Whether the value is still there."""
        return self._find() is not None

    def payload(self) -> bytes | None:
        """The bytes of the object, None where they can not be had any more. Raises what writing the value raises."""
        value = self._find()
        if value is None:
            return None
        payload = bytes(self._dump(value))  # a copy, as the value's owner may be about to change it
        return payload if content_digest(payload) == self._digest else None


def source_of(value: Any, dump: Callable[[Any], Payload], digest: bytes) -> Source | None:
    """A source as long as the value lives; None where nobody can tell that."""
    try:
        return Source(weakref.ref(value), dump, digest)
    except TypeError:
        return None


def lasting_source(value: Any, dump: Callable[[Any], Payload], digest: bytes) -> Source:
    """A source that keeps the value."""
    return Source(lambda: value, dump, digest)
