"""SegmentPool: allocates segments within a memory limit and recycles freed ones. No IO but through Segments.

Freed segments are kept for RECYCLE_SECONDS for the next object of their size class, up to a quarter of the limit. They
are freed first when memory is needed.
"""

from __future__ import annotations

from collections import OrderedDict

from scaler_protocol.errors import StorageFullError
from scaler_storage.engine.object_budgets import RECORD_BYTES
from scaler_storage.engine.segments import Segment, Segments

OVERHEAD_BYTES = RECORD_BYTES
"""Bytes an object is charged beside its content, so that many empty objects reach the limit, too."""
RECYCLE_SECONDS = 30.0
_RECYCLABLE_SHARE = 4


class SegmentPool:
    """Allocates and recycles segments."""

    def __init__(self, segments: Segments, limit: int) -> None:
        self._segments = segments
        self.limit = limit
        self.trouble = ""
        """The error of the last allocation that failed below the limit."""
        self.used = 0
        """Bytes of the segments in use, with their overhead."""
        self.recyclable = 0
        """Bytes of the freed segments that are kept."""
        self._kept: OrderedDict[Segment, float] = OrderedDict()
        """When each kept segment was freed, the earliest first."""
        self._by_capacity: dict[int, list[Segment]] = {}

    @staticmethod
    def cost(segment: Segment) -> int:
        """The bytes a segment is charged."""
        return segment.capacity + OVERHEAD_BYTES

    def lack(self, size: int) -> int:
        """The bytes that must be given back before an object of `size` bytes is within the limit; 0: none."""
        return max(0, self.used + self._segments.capacity(size) + OVERHEAD_BYTES - self.limit)

    def take(self, size: int) -> Segment | None:
        """Return a segment for `size` bytes, or None if others must be freed first."""
        capacity = self._segments.capacity(size)
        if self.lack(size):
            return None
        waiting = self._by_capacity.get(capacity)
        if waiting:
            segment = waiting[-1]
            self._remove(segment)
        else:
            while self._kept and self.used + self.recyclable + capacity + OVERHEAD_BYTES > self.limit:
                self._free_oldest()
            allocated = self._allocate(size)
            if allocated is None:
                return None
            segment = allocated
        self.used += self.cost(segment)
        return segment

    def _allocate(self, size: int) -> Segment | None:
        while True:
            try:
                return self._segments.allocate(size)
            except StorageFullError as full:
                self.trouble = str(full)
                if not self._kept:
                    return None
                self._free_oldest()

    def forget_kept(self) -> None:
        """Forget the kept segments: their files were removed."""
        while self._kept:
            self._free_oldest()

    def give(self, segment: Segment, now: float) -> None:
        """Recycle or free a segment."""
        self.used -= self.cost(segment)
        if segment.retired or not segment.name or segment.capacity > self.limit // _RECYCLABLE_SHARE:
            self._segments.free(segment)
            return
        self._kept[segment] = now
        self._by_capacity.setdefault(segment.capacity, []).append(segment)
        self.recyclable += segment.capacity
        while self.recyclable > self.limit // _RECYCLABLE_SHARE:
            self._free_oldest()

    def trim(self, now: float) -> None:
        """Free segments that were kept for too long."""
        while (due := self.due()) is not None and due <= now:
            self._free_oldest()

    def due(self) -> float | None:
        """When `trim` has something to do, or None."""
        return next(iter(self._kept.values())) + RECYCLE_SECONDS if self._kept else None

    def _free_oldest(self) -> None:
        segment = next(iter(self._kept))
        self._remove(segment)
        self._segments.free(segment)

    def _remove(self, segment: Segment) -> None:
        del self._kept[segment]
        same = self._by_capacity[segment.capacity]
        same.remove(segment)
        if not same:
            del self._by_capacity[segment.capacity]
        self.recyclable -= segment.capacity

    def check(self) -> None:
        """Assert the invariants."""
        assert self.recyclable == sum(segment.capacity for segment in self._kept)
        assert self.used >= 0 and self.used + self.recyclable <= self.limit
        assert set(self._kept) == {segment for same in self._by_capacity.values() for segment in same}
        assert not any(segment.retired for segment in self._kept)
