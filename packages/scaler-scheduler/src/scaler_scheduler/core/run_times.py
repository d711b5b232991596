"""Run times of a group's function: when a run is late, and how much work second runs of it have cost. Pure."""

from __future__ import annotations

import math
from collections import deque

LATE_FACTOR = 2.0
"""A run is late when it takes so many times longer than three quarters of the latest runs."""
LATE_SECONDS = 0.1
"""And so much longer: what messages, queues of agents and the import of modules take does not make a run late."""
MEASURED_RUNS = 5
"""Fewer ended runs do not tell how long others should take."""
LATEST_RUNS = 100
SHARE = 0.05
"""What second runs may take of the worker time of the other runs, beside the longest of them."""


class RunTimes:
    """Times are in seconds. Only runs that ended with an outcome of user code are measured."""

    __slots__ = ("_late_after", "_latest", "_runs", "_worked", "longest", "spent")

    def __init__(self) -> None:
        self.spent = 0.0
        """Time of second runs that are over."""
        self.longest = 0.0
        """Of these, the longest one."""
        self._worked = 0.0
        self._runs = 0
        self._latest: deque[float] = deque(maxlen=LATEST_RUNS)
        self._late_after: float | None = None
        """None if it must be computed."""

    def measured(self, seconds: float) -> None:
        """A run has ended."""
        self._worked += seconds
        self._runs += 1
        self._latest.append(seconds)
        self._late_after = None

    def spend(self, seconds: float) -> None:
        """A second run is over."""
        self.spent += seconds
        self.longest = max(self.longest, seconds)

    @property
    def late_after(self) -> float:
        """How long after its dispatch a run is late; infinity while too few are measured."""
        if self._runs < MEASURED_RUNS:
            return math.inf
        if self._late_after is None:
            self._late_after = LATE_FACTOR * self.expected + LATE_SECONDS
        return self._late_after

    @property
    def expected(self) -> float:
        """Three quarters of the latest runs took at most this long; 0 if none was measured."""
        ordered = sorted(self._latest)
        return ordered[math.ceil(0.75 * len(ordered)) - 1] if ordered else 0.0

    @property
    def share(self) -> float:
        """What second runs may take, beside the longest of them."""
        return SHARE * self._worked
