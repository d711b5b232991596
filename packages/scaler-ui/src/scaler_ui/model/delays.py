"""Delays: how far a monitor is behind the scheduler, and what it misses. Pure. Times are those of the model's clock."""

from __future__ import annotations

from collections import deque
from typing import Final

REMEMBERED_SECONDS: Final = 60.0
LOSSES: Final = 1_000


class MonitorDelays:
    """How long messages waited while the monitor was busy, and when some were missing."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=LOSSES)
        """When messages of the scheduler were missing."""
        self._delays: deque[tuple[float, float]] = deque()

    def add(self, now: float, seconds: float) -> None:
        """All that had arrived is processed, so many seconds after the first of it may have come."""
        self._delays.append((now, seconds))
        while self._delays[0][0] < now - REMEMBERED_SECONDS:
            self._delays.popleft()

    @property
    def longest(self) -> float:
        """How old what the monitor showed was in the last minute, at most, in seconds."""
        return max((seconds for _, seconds in self._delays), default=0.0)
