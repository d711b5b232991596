"""Rebuilding: the values from which objects are put again after a restarted server has lost them.

A source keeps nothing alive by itself: a value is collected when its owner drops it, and a value that was modified
after its object was put is not used.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from xxhash import xxh3_128

from scaler_protocol.buffers import BufferedPickle, Payload

CHECKSUM_BYTES: Final = 16
_STEP_BYTES: Final = 256 * 1024
"""Bytes that stay in the cache of a CPU core between the two hashes."""


def pieces(payload: Payload) -> tuple[Any, ...]:
    """The buffers of a payload, in order."""
    return tuple(payload.pieces) if isinstance(payload, BufferedPickle) else (payload,)


def checksum(payload: Payload) -> bytes:
    """The XXH3 of a payload, CHECKSUM_BYTES long: detects modification at the speed of memory.

    Not secure against deliberate collisions.
    """
    found = xxh3_128()
    for piece in pieces(payload):
        found.update(piece)
    return found.digest()


def content_key(payload: Payload) -> bytes:
    """Identifies a payload by its content: its checksum, then a BLAKE3 of 32 bytes. Memory is read once for both."""
    from blake3 import blake3  # 0.7 MB for programs that have no big arguments

    quick, strong = xxh3_128(), blake3()
    for piece in pieces(payload):
        view = memoryview(piece).cast("B")
        for at in range(0, len(view), _STEP_BYTES):
            step = view[at : at + _STEP_BYTES]
            quick.update(step)
            strong.update(step)
    return quick.digest() + strong.digest()


class CheckedCopy:
    """A `Copying` that computes the checksum of what is stored, even if the buffers change meanwhile."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin at the first byte of the object, for the first time or again."""
        self._found = xxh3_128()

    def copy(self, piece: memoryview) -> bytes:
        """Copy the next bytes of the object."""
        copied = bytes(piece)
        self._found.update(copied)
        return copied

    @property
    def checksum(self) -> bytes:
        """The checksum of all bytes that were copied."""
        return self._found.digest()


class RebuildSource:
    """How to find a value, how to serialize it (`dump`), and the checksum of the payload that was stored."""

    __slots__ = ("_checksum", "_dump", "_find")

    def __init__(self, find: Callable[[], Any], dump: Callable[[Any], Payload], checksum: bytes) -> None:
        self._find, self._dump, self._checksum = find, dump, checksum

    @property
    def alive(self) -> bool:
        """Whether the value still exists."""
        return self._find() is not None

    def payload(self) -> bytes | None:
        """The bytes of the object; None if the value is gone or modified. Raises what serializing the value raises."""
        value = self._find()
        if value is None:
            return None
        payload = bytes(self._dump(value))  # a copy, because the owner of the value may modify it
        return payload if checksum(payload) == self._checksum else None


def weak_source(value: Any, dump: Callable[[Any], Payload], checksum: bytes) -> RebuildSource | None:
    """A source that refers to the value weakly; None if the value has no weak references."""
    try:
        return RebuildSource(weakref.ref(value), dump, checksum)
    except TypeError:
        return None


def strong_source(value: Any, dump: Callable[[Any], Payload], checksum: bytes) -> RebuildSource:
    """A source that keeps the value alive."""
    return RebuildSource(lambda: value, dump, checksum)
