"""Figures of the cluster for each minute, over days. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from operator import attrgetter
from typing import NamedTuple

from scaler_ui.model.moments import Moment, mean_latency

MINUTES = 30 * 1440
"""Minutes that are remembered: 30 days."""


MOMENTS = 600
"""Statuses of a minute that count, at most: a scheduler whose clock stands still ends none."""


class Minute(NamedTuple):
    """Means of the minute that began at `at`, in seconds since 1970: tasks per second, seconds, tasks, cores, bytes."""

    at: int
    rate: float
    latency: float | None
    waiting: float
    queued: float
    running: float
    cpu: float
    rss: float


class Minutes:
    """The last minutes, in order; a minute is added when the next one begins.

    A clock that was ahead, and goes back, has left minutes of the future: others are added before them.
    """

    def __init__(self) -> None:
        self.rows: deque[Minute] = deque(maxlen=MINUTES)
        self.new: deque[Minute] = deque(maxlen=MINUTES)
        """Those that were added; who keeps them elsewhere empties it."""
        self._open: list[Moment] = []

    def add(self, moment: Moment, *, follows: bool) -> None:
        """Count a status; its totals continue those of the one before if it `follows` it."""
        if self._open:
            before = self._open[-1].at
            if not follows or moment.at < before or moment.at // 60 != before // 60:
                self._close()
        self._open.append(moment)
        if len(self._open) > MOMENTS:
            del self._open[1]  # the first and the last say how much has ended

    def _close(self) -> None:
        moments, first, last = self._open, self._open[0], self._open[-1]
        self._open = []
        at, seconds, count = int(last.at // 60 * 60), last.at - first.at, len(moments)
        place = bisect_left(self.rows, at, key=attrgetter("at"))
        if seconds <= 0 or (place < len(self.rows) and self.rows[place].at == at):
            return
        minute = Minute(
            at,
            max(0, last.ended - first.ended) / seconds,
            mean_latency(first, last),
            *(sum(getattr(each, name) for each in moments) / count for name in Minute._fields[3:]),
        )
        if len(self.rows) == MINUTES:
            self.rows.popleft()
            place = max(0, place - 1)
        self.rows.insert(place, minute)
        self.new.append(minute)
