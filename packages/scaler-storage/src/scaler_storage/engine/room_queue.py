"""RoomQueue: requests that wait for room, in order of arrival. Pure, no IO.

Those of one peer, and those of all, take limited memory. When all take that much, those are refused whose key (without
keys: whose peer) has more than an equal share.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final

from scaler_protocol.errors import StorageFullError
from scaler_protocol.storage import PutObject
from scaler_storage.engine.records import RoomEvent

WAITING_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the waiting requests of one peer; our own peers send 8 MiB ahead."""
LEAST_BYTES: Final = 256 * 1024 * 1024
"""Bytes that the requests of all peers may always take; with much memory it is a share of the memory limit."""
_SHARE: Final = 2
"""All may take the memory limit divided by this."""
REQUEST_BYTES: Final = 1024
"""Bytes that each request counts besides its content."""


class RoomQueue:
    """Waiting requests with their peers, and the bytes that those of each peer take."""

    def __init__(self, memory_limit: int, key_of: Callable[[bytes], bytes]) -> None:
        """`key_of` tells the key that a peer has proved; empty without keys."""
        self._most = max(LEAST_BYTES, memory_limit // _SHARE)
        self._key_of = key_of
        self._keys: dict[bytes, bytes] = {}
        """The key of each peer with requests; the peer itself without keys."""
        self._shares: Counter[bytes] = Counter()
        """Bytes by key."""
        self._total = 0
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
        """Add a request at the end; raises StorageFullError if those of its peer, or of its key, take too much."""
        size = _size(event)
        if self._bytes[peer] + size > WAITING_BYTES:
            raise StorageFullError(f"requests with {self._bytes[peer]:,} bytes of this peer wait for room already")
        key = self._keys.get(peer) or self._key_of(peer) or peer
        own, share = self._shares[key], self._most // len({*self._shares, key})
        if self._total + size > self._most and own + size > share:
            raise StorageFullError(
                f"requests with {self._total:,} bytes wait for room already, {own:,} of them of this client's key"
            )
        self._entries.append((peer, event))
        self._count(peer, size)

    def put_back(self, peer: bytes, event: RoomEvent) -> None:
        """Add a request that was the first one."""
        self._entries.appendleft((peer, event))
        self._count(peer, _size(event))

    def next(self) -> tuple[bytes, RoomEvent]:
        """Remove and return the first request."""
        peer, event = self._entries.popleft()
        self._count(peer, -_size(event))
        return peer, event

    def remove(self, is_removed: Callable[[bytes, RoomEvent], bool]) -> list[tuple[bytes, RoomEvent]]:
        """Remove and return the requests for which this holds."""
        removed = [entry for entry in self._entries if is_removed(*entry)]
        if removed:
            self._entries = deque(entry for entry in self._entries if not is_removed(*entry))
        for peer, event in removed:
            self._count(peer, -_size(event))
        return removed

    def _count(self, peer: bytes, size: int) -> None:
        """A peer has so many more bytes; fewer, if it is negative."""
        key = self._keys.setdefault(peer, self._key_of(peer) or peer)
        self._total += size
        self._bytes[peer] += size
        self._shares[key] += size
        if not self._bytes[peer]:
            del self._bytes[peer], self._keys[peer]
        if not self._shares[key]:
            del self._shares[key]

    def check(self) -> None:
        """Assert the invariants."""
        sizes, shares = Counter[bytes](), Counter[bytes]()
        for peer, event in self._entries:
            sizes[peer] += _size(event)
            shares[self._keys[peer]] += _size(event)
        assert (sizes, shares, sizes.total()) == (self._bytes, self._shares, self._total)
        assert self._keys.keys() == sizes.keys()


def _size(event: RoomEvent) -> int:
    return REQUEST_BYTES + (len(event.parts.frame) if isinstance(event, PutObject) else 0)
