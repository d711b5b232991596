"""The messages by which peers on the storage's host write and map its segments by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostProof:
    """The content of the file `token` in the storage's segment directory: the sender is on its host.

    `life` is a file in `peers` there, if any, that the sender keeps locked (flock) as long as it lives.
    """

    token: bytes
    life: str = ""


@dataclass(frozen=True, slots=True)
class AllocateObject:
    """A segment is wanted, to write an object of `size` bytes into; answered by ObjectAllocated."""

    object: bytes
    size: int
    session: int = 0
    request: int = 0


@dataclass(frozen=True, slots=True)
class ObjectAllocated:
    """The file in the segment directory to write to, empty where the object is stored already; or `error`."""

    object: bytes
    segment: str = ""
    request: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class SealObject:
    """The segment is written and will not be touched again: the object is complete; answered by ObjectStored."""

    object: bytes
    segment: str
    request: int = 0


@dataclass(frozen=True, slots=True)
class MapObject:
    """The segment of an object of `size` bytes is wanted, to be read; answered by ObjectMapped."""

    object: bytes
    size: int
    request: int = 0


@dataclass(frozen=True, slots=True)
class ObjectMapped:
    """The file in the segment directory that begins with the object and stays until `pin` is given back."""

    object: bytes
    found: bool
    segment: str = ""
    pin: int = 0
    request: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class UnpinObjects:
    """Pins that are given back; of those in `lent` a process that the storage does not know may have the mapping."""

    pins: Sequence[int] = ()
    lent: Sequence[int] = ()


SegmentMessage = HostProof | AllocateObject | ObjectAllocated | SealObject | MapObject | ObjectMapped | UnpinObjects
