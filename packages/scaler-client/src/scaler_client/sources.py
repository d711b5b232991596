"""Sources: what objects are made of once more where their server was started again and has lost them.

A source holds nothing that would not be held without it: a value goes when its owner drops it, and one that was changed
since its object was put is none any more.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from blake3 import blake3
from xxhash import xxh3_128

from scaler_protocol.buffers import BufferedPickle, Payload


def pieces(payload: Payload) -> tuple[Any, ...]:
    """The buffers that a payload is written as, one behind the other."""
    return tuple(payload.pieces) if isinstance(payload, BufferedPickle) else (payload,)


def content_digest(payload: Payload) -> bytes:
    """What equal payloads, and only those, have in common: a BLAKE3, of 32 bytes."""
    digest = blake3()
    for piece in pieces(payload):
        digest.update(piece)
    return digest.digest()


def checksum(payload: Payload) -> bytes:
    """Tells a payload from what it was before as fast as memory can be read: an XXH3, of 16 bytes.

    Not for those who want two payloads to look the same.
    """
    found = xxh3_128()
    for piece in pieces(payload):
        found.update(piece)
    return found.digest()


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
