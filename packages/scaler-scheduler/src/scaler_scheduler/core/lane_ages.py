"""LaneAges: how long the tasks of a lane have waited. Pure, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import field

from scaler_protocol.lazy_dataclass import dataclass

AGE_SECONDS, AGE_SHARE = 0.01, 128
"""How exactly the age of waiting tasks is known: within AGE_SECONDS, and this share of the oldest age of the lane."""


@dataclass(slots=True, eq=False)
class LaneAges:
    """When the tasks of a lane were added: an entry for an interval, not for a task; about 1,500 of them for a day.

    Tasks leave about in the order in which they came; where they do not, others of the lane count as older or younger.
    """

    _added: int = 0
    _batches: deque[tuple[float, int]] = field(default_factory=deque)
    """Times, and how many tasks had been added at the end of the interval that begins then."""

    def added(self, count: int, size: int, now: float) -> None:
        """So many tasks were added to the lane, which had `size` ones."""
        batches = self._batches
        self._added += count
        if not size:
            batches.clear()
        elif (since := now - batches[-1][0]) < AGE_SECONDS or since < (now - batches[0][0]) / AGE_SHARE:
            batches[-1] = batches[-1][0], self._added
            return
        batches.append((now, self._added))

    def first(self, count: int, size: int) -> Iterable[tuple[float, int]]:
        """When the first `count` of the `size` tasks that the lane has were added: times, and of how many tasks."""
        begin = self._added - size
        end = begin + count
        if not count:
            return ()
        at, batch_end = self._batches[0]
        return ((at, count),) if begin < end <= batch_end else self._between(begin, end)

    def _between(self, begin: int, end: int) -> Iterator[tuple[float, int]]:
        for at, batch_end in self._batches:
            if begin >= end:
                return
            if batch_end > begin:
                yield at, min(batch_end, end) - begin
                begin = batch_end

    def oldest(self, size: int) -> float:
        """When the first task was added, of the `size` ones that the lane has."""
        batches = self._batches
        while len(batches) > 1 and batches[0][1] <= self._added - size:
            batches.popleft()
        return batches[0][0] if batches else 0.0

    def when(self, size: int, gone: int) -> float:
        """When the task was added that is first after `gone` of the `size` ones have left."""
        gone += self._added - size
        return next((at for at, end in self._batches if end > gone), 0.0)
