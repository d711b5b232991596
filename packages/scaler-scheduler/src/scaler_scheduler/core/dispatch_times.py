"""DispatchTimes: when runs were dispatched, so that no report of an agent says that one took longer. Pure, no IO."""

from __future__ import annotations

from bisect import bisect_right

RESOLUTION_SECONDS = 1.0
ENTRIES_LIMIT = 65_536
"""Seconds in which runs were dispatched that are remembered; a run before them counts as one of the first of them."""


class DispatchTimes:
    """Run ids are given in order, so that one entry tells the time of all runs of about a second."""

    def __init__(self) -> None:
        self._runs: list[int] = []
        self._times: list[float] = []

    def note(self, run: int, now: float) -> None:
        """This run, which is newer than all others, is dispatched."""
        if not self._times or now >= self._times[-1] + RESOLUTION_SECONDS:
            self._runs.append(run)
            self._times.append(now)
            if len(self._times) > ENTRIES_LIMIT:
                del self._runs[: ENTRIES_LIMIT // 2], self._times[: ENTRIES_LIMIT // 2]

    def longest(self, run: int, now: float) -> float:
        """The most seconds that a run can have taken, about a second too long; 0 if none was ever dispatched."""
        if not self._times:
            return 0.0
        return now - self._times[max(0, bisect_right(self._runs, run) - 1)]
