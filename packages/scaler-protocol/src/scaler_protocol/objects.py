"""Stored objects: references to them, and the parts in which they are sent."""

from __future__ import annotations

import os
import struct

from scaler_protocol.errors import MalformedMessageError
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.light_crypto import blake2b
from scaler_protocol.limits import SIZE
from scaler_protocol.messages import MESSAGE_LIMIT

OBJECT_ID_BYTES = 16
CHALLENGE_BYTES = 16
"""Bytes of the challenge in the Welcome of a storage server."""
PART_BYTES = MESSAGE_LIMIT
"""Bytes of every part of an object but the last; parts begin at multiples of it."""
SHARED_BYTES = 256 * 1024
"""Objects of at least this size in bytes are files, which peers on the server's host may write and map."""

_REFERENCE = struct.Struct(f"<{OBJECT_ID_BYTES}sQ")
REFERENCE_BYTES = _REFERENCE.size


def new_object_id() -> bytes:
    """Draw 128 random bits; they must be hard to guess, because the id grants read access."""
    return os.urandom(OBJECT_ID_BYTES)


def host_proof(token: bytes, challenge: bytes, identity: bytes) -> bytes:
    """The answer of a peer to a server's challenge: it knows the token (at most 64 bytes), and need not tell it."""
    return blake2b(challenge + identity, key=token, digest_size=32, person=b"scaler host").digest()


def part_count(size: int) -> int:
    """The number of parts of an object of `size` bytes; an empty object is one empty part."""
    return max(1, -(-size // PART_BYTES))


@dataclass(frozen=True, slots=True)
class Reference:
    """A stored object's id and size; packed, it replaces the bytes of the object in a payload column."""

    object: bytes
    size: int

    def pack(self) -> bytes:
        """The id (16 bytes) and the size (8 bytes, little-endian)."""
        return _REFERENCE.pack(self.object, self.size)

    @classmethod
    def unpack(cls, packed: bytes) -> Reference:
        """The inverse of `pack`; raises MalformedMessageError for other bytes."""
        if len(packed) != _REFERENCE.size:
            raise MalformedMessageError(f"a reference has {_REFERENCE.size} bytes, not {len(packed)}")
        name, size = _REFERENCE.unpack(packed)
        if not SIZE.fits(size):
            raise MalformedMessageError(f"the size of a reference {SIZE.fault(size)}")
        return cls(name, size)

    def __str__(self) -> str:
        return f"{self.object.hex()} of {self.size:,} bytes"
