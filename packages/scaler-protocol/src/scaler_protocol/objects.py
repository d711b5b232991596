"""Stored objects: how they are referred to, and the parts they are kept and sent in."""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass

from scaler_protocol.errors import MalformedMessageError
from scaler_protocol.limits import SIZE
from scaler_protocol.messages import MESSAGE_LIMIT

OBJECT_ID_BYTES = 16
PART_BYTES = MESSAGE_LIMIT
"""Every part of an object but the last has this many bytes, and begins at a multiple of it."""
SHARED_BYTES = 256 * 1024
"""Objects from this size on stand in files, which peers on the server's host may write and map."""

_REFERENCE = struct.Struct(f"<{OBJECT_ID_BYTES}sQ")
REFERENCE_BYTES = _REFERENCE.size


def new_object_id() -> bytes:
    """128 random bits: whoever can name an object may read it."""
    return secrets.token_bytes(OBJECT_ID_BYTES)


def part_count(size: int) -> int:
    """The parts of an object of `size` bytes; an empty object is one empty part."""
    return max(1, -(-size // PART_BYTES))


@dataclass(frozen=True, slots=True)
class Reference:
    """What stands for a stored object in a payload column: its id and, little-endian in 8 bytes, its size."""

    object: bytes
    size: int

    def pack(self) -> bytes:
        """The 24 bytes that travel."""
        return _REFERENCE.pack(self.object, self.size)

    @classmethod
    def unpack(cls, packed: bytes) -> Reference:
        """What `pack` wrote; raises MalformedMessageError for anything else."""
        if len(packed) != _REFERENCE.size:
            raise MalformedMessageError(f"a reference has {_REFERENCE.size} bytes, not {len(packed)}")
        name, size = _REFERENCE.unpack(packed)
        if not SIZE.fits(size):
            raise MalformedMessageError(f"the size of a reference {SIZE.fault(size)}")
        return cls(name, size)

    def __str__(self) -> str:
        return f"{self.object.hex()} of {self.size:,} bytes"
