"""SegmentPool: segments within a limit, and the freed ones that are used again. Pure, no IO.

Freed segments wait for the next object of their class, at most a quarter of the limit of them and RECYCLE_SECONDS
long, and are given up first when memory is needed.
"""

from __future__ import annotations

from collections import OrderedDict

from scaler_protocol.errors import StorageFullError
from scaler_storage.engine.segments import Segment, Segments

OVERHEAD_BYTES = 1024
"""What an object costs beside its bytes, so that a flood of empty ones meets the limit too."""
RECYCLE_SECONDS = 30.0
_RECYCLABLE_SHARE = 4


class SegmentPool:
    """Takes segments, and gives them back."""

    def __init__(self, segments: Segments, limit: int) -> None:
        self._segments = segments
        self.limit = limit
        self.trouble = ""
        """Why there was no memory below the limit when it was needed last."""
        self.used = 0
        """Bytes of the segments that are taken, with their overhead."""
        self.recyclable = 0
        """Bytes of those that wait."""
        self._waiting: OrderedDict[Segment, float] = OrderedDict()
        """When each was freed, the longest ago first."""
        self._by_capacity: dict[int, list[Segment]] = {}

    @staticmethod
    def cost(segment: Segment) -> int:
        """What a segment takes of the limit."""
        return segment.capacity + OVERHEAD_BYTES

    def lack(self, size: int) -> int:
        """The bytes that must be given back before an object of `size` bytes is within the limit; 0: none."""
        return max(0, self.used + self._segments.capacity(size) + OVERHEAD_BYTES - self.limit)

    def take(self, size: int) -> Segment | None:
        """A segment for `size` bytes, or None where that needs others to be given back first."""
        capacity = self._segments.capacity(size)
        if self.lack(size):
            return None
        waiting = self._by_capacity.get(capacity)
        if waiting:
            segment = waiting[-1]
            self._take_out(segment)
        else:
            while self._waiting and self.used + self.recyclable + capacity + OVERHEAD_BYTES > self.limit:
                self._give_up()
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
                if not self._waiting:
                    return None
                self._give_up()

    def forget_waiting(self) -> None:
        """The files of those that wait are gone."""
        while self._waiting:
            self._give_up()

    def give(self, segment: Segment, now: float) -> None:
        """A segment is not needed any more."""
        self.used -= self.cost(segment)
        if segment.lent or not segment.name or segment.capacity > self.limit // _RECYCLABLE_SHARE:
            self._segments.free(segment)
            return
        self._waiting[segment] = now
        self._by_capacity.setdefault(segment.capacity, []).append(segment)
        self.recyclable += segment.capacity
        while self.recyclable > self.limit // _RECYCLABLE_SHARE:
            self._give_up()

    def trim(self, now: float) -> None:
        """Give up what has waited for too long."""
        while (due := self.due()) is not None and due <= now:
            self._give_up()

    def due(self) -> float | None:
        """When there is something to trim."""
        return next(iter(self._waiting.values())) + RECYCLE_SECONDS if self._waiting else None

    def _give_up(self) -> None:
        segment = next(iter(self._waiting))
        self._take_out(segment)
        self._segments.free(segment)

    def _take_out(self, segment: Segment) -> None:
        del self._waiting[segment]
        same = self._by_capacity[segment.capacity]
        same.remove(segment)
        if not same:
            del self._by_capacity[segment.capacity]
        self.recyclable -= segment.capacity

    def check(self) -> None:
        """Assert the invariants."""
        assert self.recyclable == sum(segment.capacity for segment in self._waiting)
        assert self.used >= 0 and self.used + self.recyclable <= self.limit
        assert set(self._waiting) == {segment for same in self._by_capacity.values() for segment in same}
        assert not any(segment.lent for segment in self._waiting)
