"""Figures of the cluster for each minute, over days. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from scaler_ui.model.moments import Moment, mean_latency

MINUTES = 30 * 1440
"""Minutes that are remembered: 30 days."""


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
    """The last minutes, in order; a minute is added when the next one begins."""

    def __init__(self) -> None:
        self.rows: deque[Minute] = deque(maxlen=MINUTES)
        self._open: list[Moment] = []

    def add(self, moment: Moment, *, follows: bool) -> None:
        """Count a status; its totals continue those of the one before if it `follows` it."""
        if self._open and (not follows or moment.at // 60 != self._open[-1].at // 60):
            self._close()
        self._open.append(moment)

    def _close(self) -> None:
        moments, first, last = self._open, self._open[0], self._open[-1]
        self._open = []
        at, seconds, count = int(last.at // 60 * 60), last.at - first.at, len(moments)
        if seconds <= 0 or (self.rows and at <= self.rows[-1].at):
            return
        self.rows.append(
            Minute(
                at,
                max(0, last.ended - first.ended) / seconds,
                mean_latency(first, last),
                *(sum(getattr(each, name) for each in moments) / count for name in Minute._fields[3:]),
            )
        )
