"""Durations: how long runs took and tasks waited, counted in the buckets of monitors. Pure, no IO.

What is added costs an append: it is counted when somebody reads it, many at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from struct import Struct
from typing import Final

from scaler_protocol.monitoring import DURATION_BOUNDS
from scaler_protocol.profiles import PROFILE

_RUN: Final = Struct("<Q16xI16x")
"""Of a profile: duration in microseconds, and process id, which is 0 of a task that never ran."""
assert _RUN.size == PROFILE.size
_MICROSECONDS: Final = [round(bound * 1e6) for bound in DURATION_BOUNDS]
_UNREAD_BYTES: Final = 2**20


class Durations:
    """A histogram."""

    def __init__(self) -> None:
        self._buckets = [0] * len(DURATION_BOUNDS)
        self._count = 0
        self._seconds = 0.0
        self._profiles = bytearray()
        self._begins: dict[float, int] = {}
        """Durations that end `_now`, by their begins: many of a turn have the same one."""
        self._now = 0.0

    def add_waits(self, begins: Iterable[tuple[float, int]], now: float) -> None:
        """Count durations that began at these times, each so many times, and end now; in the order of `now`."""
        if now != self._now:
            self._count_waits()
            self._now = now
        known = self._begins
        for begin, count in begins:
            known[begin] = known.get(begin, 0) + count

    def add_runs(self, profiles: bytes) -> None:
        """Count the runs of these packed profiles."""
        self._profiles += profiles
        if len(self._profiles) > _UNREAD_BYTES:
            self._count_runs()

    def read(self) -> tuple[list[int], int, float]:
        """How many durations are in each bucket, the number of all, and their sum.

        A bucket is from the bound before it, which it does not include, to its own; long durations are in none.
        """
        self._count_runs()
        self._count_waits()
        return list(self._buckets), self._count, self._seconds

    def _count_waits(self) -> None:
        for begin, count in self._begins.items():
            seconds = max(0.0, self._now - begin)
            self._count += count
            self._seconds += seconds * count
            if (bucket := bisect_left(DURATION_BOUNDS, seconds)) < len(self._buckets):
                self._buckets[bucket] += count
        self._begins.clear()

    def _count_runs(self) -> None:
        runs = sorted([duration for duration, pid in _RUN.iter_unpack(self._profiles) if pid])
        self._profiles.clear()
        self._count += len(runs)
        self._seconds += sum(runs) / 1e6
        below = 0
        for bucket, bound in enumerate(_MICROSECONDS):
            end = bisect_right(runs, bound, below)
            self._buckets[bucket] += end - below
            below = end
