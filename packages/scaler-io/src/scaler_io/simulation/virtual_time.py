"""The time of a simulation: it passes from one planned call to the next, without waiting. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count


class VirtualTime:
    """A clock in seconds, and the calls that are planned. Calls planned for one time are made in the order of plans."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._plans: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def clock(self) -> float:
        """The time, as a function."""
        return self.now

    def run(self, seconds: float) -> None:
        """Let this time pass."""
        self.run_until(lambda: False, seconds)

    def run_until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Let time pass until `done()`, at most `seconds`; returns the last `done()`."""
        until = self.now + seconds
        while not done():
            if not self._plans or self._plans[0][0] > until:
                self.now = until
                return done()
            at, _, act = heapq.heappop(self._plans)
            self.now = max(self.now, at)
            act()
        return True

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Call `act` at this time; never, if it is infinity."""
        if time < math.inf:
            heapq.heappush(self._plans, (time, next(self._numbers), act))
