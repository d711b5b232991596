"""Sources: what objects are made of once more where their server was started again and has lost them.

A source holds nothing that would not be held without it: a value goes when its owner drops it, and one that was changed
since its object was put is none any more.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from blake3 import blake3
from xxhash import xxh3_128

from scaler_protocol.buffers import BufferedPickle, Payload

CHECKSUM_BYTES: Final = 16
_STEP_BYTES: Final = 256 * 1024
"""What stays in a core's own cache between two hashes."""


def pieces(payload: Payload) -> tuple[Any, ...]:
    """The buffers that a payload is written as, one behind the other."""
    return tuple(payload.pieces) if isinstance(payload, BufferedPickle) else (payload,)


def checksum(payload: Payload) -> bytes:
    """Tells a payload from what it was before as fast as memory can be read: an XXH3, of CHECKSUM_BYTES.

    Not for those who want two payloads to look the same.
    """
    found = xxh3_128()
    for piece in pieces(payload):
        found.update(piece)
    return found.digest()


def content_key(payload: Payload) -> bytes:
    """What equal payloads, and only those, have in common: their checksum, and a BLAKE3 of 32 bytes.

    Memory is read once for both.
    """
    quick, strong = xxh3_128(), blake3()
    for piece in pieces(payload):
        view = memoryview(piece).cast("B")
        for at in range(0, len(view), _STEP_BYTES):
            step = view[at : at + _STEP_BYTES]
            quick.update(step)
            strong.update(step)
    return quick.digest() + strong.digest()


class CheckedCopy:
    """A `Copying` that knows the checksum of what was stored, whatever happens to the buffers."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """The object is written from its beginning (again)."""
        self._found = xxh3_128()

    def copy(self, piece: memoryview) -> bytes:
        """The next bytes of the object, as they are written."""
        copied = bytes(piece)
        self._found.update(copied)
        return copied

    @property
    def checksum(self) -> bytes:
        """Of all that was copied."""
        return self._found.digest()


class RebuildSource:
    """A value, or the way to find it; `dump` writes it, and the pickle that was stored had this `checksum`."""

    __slots__ = ("_checksum", "_dump", "_find")

    def __init__(self, find: Callable[[], Any], dump: Callable[[Any], Payload], checksum: bytes) -> None:
        self._find, self._dump, self._checksum = find, dump, checksum

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
        return payload if checksum(payload) == self._checksum else None


def weak_source(value: Any, dump: Callable[[Any], Payload], checksum: bytes) -> RebuildSource | None:
    """A source as long as the value lives; None where nobody can tell that."""
    try:
        return RebuildSource(weakref.ref(value), dump, checksum)
    except TypeError:
        return None


def strong_source(value: Any, dump: Callable[[Any], Payload], checksum: bytes) -> RebuildSource:
    """A source that keeps the value."""
    return RebuildSource(lambda: value, dump, checksum)
