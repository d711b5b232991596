"""Rows of the storage's core."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaler_protocol.storage import AllocateObject, GetObject, MapObject, PutObject
from scaler_storage.engine.segments import Segment


@dataclass(slots=True)
class PeerRecord:
    """One connected client or worker."""

    role: int
    session: int
    local: bool = False
    """Whether it has proven to be on this host."""
    host: bytes = b""
    """The other host that it speaks for, if any."""
    uploads: set[bytes] = field(default_factory=set)
    pins: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class ObjectRecord:
    """A complete object."""

    session: int
    size: int
    segment: Segment | None
    edition: int = 0
    here: bool = True
    """Whether its segment holds its bytes."""
    ticket: int = 0
    """Of its copy on disk, or on the way there or back; 0: none."""
    pins: int = 0
    host: bytes = b""
    """The one that holds it, where its bytes are nowhere else."""
    asked: bytes = b""
    """The peer that is to bring it from there."""
    freed: bool = False
    """Whether it has no name any more, only readers."""
    waiting: list[tuple[bytes, GetObject | MapObject]] = field(default_factory=list)
    """Who wants it and waits for it to be here."""


@dataclass(slots=True)
class UploadRecord:
    """An object that one peer is writing, part by part or, where it was `allocated`, by itself."""

    session: int
    size: int
    segment: Segment
    missing: int
    allocated: bool = False
    edition: int = 0
    """Of the held object that is being brought; 0: a new writing."""
    parts: set[int] = field(default_factory=set)


@dataclass(slots=True)
class ShelfRecord:
    """What belongs to a session, and the clients that it ends with."""

    owners: set[bytes] = field(default_factory=set)
    key: bytes | None = None
    """What its owners have in common; None while it has had none."""
    objects: set[bytes] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class LoadObject:
    """Somebody waits for an object that is on disk."""

    object: bytes


RoomEvent = PutObject | AllocateObject | LoadObject
"""What may have to wait for room."""
