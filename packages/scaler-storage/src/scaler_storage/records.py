"""Rows of the storage's core, and its figures."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class PeerRecord:
    """One connected client or worker."""

    role: int
    session: int
    uploads: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class ObjectRecord:
    """A complete object."""

    session: int
    size: int
    parts: list[bytes | memoryview]


@dataclass(slots=True)
class UploadRecord:
    """An object that one peer is writing."""

    session: int
    size: int
    missing: int
    parts: dict[int, bytes | memoryview] = field(default_factory=dict)


@dataclass(slots=True)
class ShelfRecord:
    """What belongs to a session, and the clients that it ends with."""

    owners: set[bytes] = field(default_factory=set)
    objects: set[bytes] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """Totals. `bytes` is what the memory limit counts, objects still being written included."""

    objects: int
    writing: int
    sessions: int
    peers: int
    bytes: int
    memory_limit: int
    refused: int
