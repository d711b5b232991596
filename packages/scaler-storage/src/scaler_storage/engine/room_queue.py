"""RoomQueue: requests that wait for room, in order of arrival. Pure, no IO."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final

from scaler_protocol.errors import StorageFullError
from scaler_protocol.storage import PutObject
from scaler_storage.engine.records import RoomEvent

WAITING_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the waiting requests of one peer; our own peers send 8 MiB ahead."""
REQUEST_BYTES: Final = 1024
"""Bytes that each request counts besides its content."""


class RoomQueue:
    """Waiting requests with their peers, and the bytes that those of each peer take."""

    def __init__(self) -> None:
        self._entries: deque[tuple[bytes, RoomEvent]] = deque()
        self._bytes: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[bytes, RoomEvent]]:
        return iter(self._entries)

    @property
    def first(self) -> RoomEvent:
        """The request that waits for the longest time."""
        return self._entries[0][1]

    def add(self, peer: bytes, event: RoomEvent) -> None:
        """Add a request at the end; raises StorageFullError if those of its peer take too much."""
        size = _size(event)
        if self._bytes[peer] + size > WAITING_BYTES:
            raise StorageFullError(f"requests with {self._bytes[peer]:,} bytes of this peer wait for room already")
        self._entries.append((peer, event))
        self._bytes[peer] += size

    def put_back(self, peer: bytes, event: RoomEvent) -> None:
        """Add a request that was the first one."""
        self._entries.appendleft((peer, event))
        self._bytes[peer] += _size(event)

    def next(self) -> tuple[bytes, RoomEvent]:
        """Remove and return the first request."""
        peer, event = self._entries.popleft()
        self._count_removed(peer, event)
        return peer, event

    def remove(self, is_removed: Callable[[bytes, RoomEvent], bool]) -> list[tuple[bytes, RoomEvent]]:
        """Remove and return the requests for which this holds."""
        removed = [entry for entry in self._entries if is_removed(*entry)]
        if removed:
            self._entries = deque(entry for entry in self._entries if not is_removed(*entry))
        for peer, event in removed:
            self._count_removed(peer, event)
        return removed

    def _count_removed(self, peer: bytes, event: RoomEvent) -> None:
        self._bytes[peer] -= _size(event)
        if not self._bytes[peer]:
            del self._bytes[peer]

    def check(self) -> None:
        """Assert the invariants."""
        sizes: Counter[bytes] = Counter()
        for peer, event in self._entries:
            sizes[peer] += _size(event)
        assert sizes == self._bytes


def _size(event: RoomEvent) -> int:
    return REQUEST_BYTES + (len(event.parts.frame) if isinstance(event, PutObject) else 0)
