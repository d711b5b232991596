"""The records in the tables of StorageEngine."""

from __future__ import annotations

from dataclasses import field

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.storage import AllocateObject, GetObject, MapObject, PutObject
from scaler_storage.engine.segments import Segment

Read = GetObject | MapObject


@dataclass(slots=True)
class PeerRecord:
    """One connected client or worker."""

    role: int
    session: int
    local: bool = False
    """Whether it has proven that it is on this host."""
    host: bytes = b""
    """The remote host whose objects it serves; empty: none."""
    kept: set[int] = field(default_factory=set)
    """The sessions that it owns for their clients."""
    uploads: set[bytes] = field(default_factory=set)
    pins: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class ObjectRecord:
    """A complete object."""

    session: int
    size: int
    segment: Segment | None
    version: int = 0
    in_memory: bool = True
    """Whether its segment has its bytes."""
    ticket: int = 0
    """The ticket of its copy on disk, also while it is spilled or loaded; 0: none."""
    pins: int = 0
    host: bytes = b""
    """The remote host with the only copy; empty: this server has the bytes."""
    fetching_from: bytes = b""
    """The replica server that was asked to put it here; empty: none."""
    freed: bool = False
    """Whether it was deleted and exists only for its pins or a move in progress."""
    waiting: list[tuple[bytes, Read]] = field(default_factory=list)
    """Reads that wait until it is in memory; only AwaitedReads changes it."""


@dataclass(slots=True)
class SessionObjects:
    """The objects of a session and the peers that own it; it ends with the last owner."""

    owners: set[bytes] = field(default_factory=set)
    key: bytes | None = None
    """The secret that all owners present; None before the first owner."""
    named: bool = False
    """Whether it outlives its last owner, because others may come. Only the scheduler can say so."""
    holder: bytes = b""
    """The key that its last owner has proved; empty without keys, or before the first owner."""
    account: bytes = b""
    """Whose objects its objects count as: the holder's; without keys its own, and before the first owner nobody's."""
    objects: set[bytes] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class LoadObject:
    """A spilled object is to be loaded for a reader."""

    object: bytes


RoomEvent = PutObject | AllocateObject | LoadObject
"""Requests that may wait for room."""
