"""The law that turns outstanding work into workers. Pure, no IO.

Theory. Work is measured in seconds: the durations of the tasks that wait, and what the running ones still need. The
law wants all of it done TARGET_SECONDS after a unit that is ordered now would be up.

- Order: until then a worker that has joined works S + T seconds (S: start-up of a unit, T: TARGET_SECONDS), one that
  was ordered `a` seconds ago works T + min(a, S), one that is ordered now works T. New workers are ordered for the
  work that is left, never more than there are tasks. Dask's adaptive rule divides work by a target, too, but knows no
  start-up; without the term `a` work that comes in while units start is ordered again and again.
- Keep: as many workers as would do the work in T, and at least those that are busy. The S in the order is the
  hysteresis between both.
- Cool-down: an offer keeps the most that it needed within the last max(cool-down, 2 S) seconds, as Kubernetes'
  HorizontalPodAutoscaler does. So a unit that was started is not given up before it could work. What starts in hours
  is not kept for hours: 2 S counts up to LONGEST_KEEP_SECONDS.
- A function that was never measured costs T for each task, so each gets a worker (Dask assumes 0.5 s and hardly
  grows); but at most PROBE_WORKERS are ordered for such tasks until one of them has run for T: a thousand tasks may
  take a millisecond each. From then on each is assumed to take as long as the longest has run so far.
- Rounding is up in both directions, of the same quantities: rounding a need up for orders and down for drains would
  start and stop one unit for ever.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaler_scheduler.scaling.capacity import Demand

TARGET_SECONDS = 12.0
"""How soon outstanding work should be done once the units for it are up."""
PROBE_WORKERS = 32
"""Workers ordered at most for functions of which no call has run for TARGET_SECONDS or ended."""
COOLDOWN_SECONDS = 30.0
"""How long a worker is kept after it was last needed."""
LONGEST_KEEP_SECONDS = 300.0
"""How long a worker that is not needed is kept at most for being slow to start."""
LATE_SECONDS = 60.0
"""A worker that has been starting for longer, and longer than LATE_STARTUPS start-ups of its manager, is late: nobody
knows when it comes, so others are asked for its share."""
LATE_STARTUPS = 3


def late_seconds(startup: float) -> float:
    """How long a worker may have been starting before it is late, in seconds; `startup` is the S of its manager."""
    return max(LATE_SECONDS, LATE_STARTUPS * startup)


def keep_seconds(cooldown: float, startup: float) -> float:
    """How long a worker is kept after it was last needed, in seconds; `startup` is the S of its manager."""
    return max(cooldown, min(2 * startup, LONGEST_KEEP_SECONDS))


def outstanding_seconds(demand: Demand) -> float:
    """The work of a demand in seconds, with an estimate for functions never measured."""
    unmeasured = demand.unmeasured * demand.elapsed
    if demand.elapsed < TARGET_SECONDS:
        unmeasured = min(demand.unmeasured, PROBE_WORKERS) * TARGET_SECONDS
    return demand.seconds + unmeasured + demand.running_seconds


class RecentPeak:
    """The highest of the values of the last seconds."""

    def __init__(self) -> None:
        self._falling: deque[tuple[float, int]] = deque()
        """Time and value, from old and high to new and low."""

    def add(self, value: int, now: float, seconds: float) -> int:
        """Add a value; returns the peak since `now - seconds`, both ends included."""
        while self._falling and self._falling[-1][1] <= value:
            self._falling.pop()
        self._falling.append((now, value))
        while self._falling[0][0] < now - seconds:
            self._falling.popleft()
        return self._falling[0][1]


class PendingAges:
    """Since when the workers of an offer have been starting; those that started first are assumed to join first."""

    def __init__(self) -> None:
        self._since: deque[tuple[float, int]] = deque()

    def observe(self, starting: int, now: float) -> None:
        """So many workers are starting now."""
        more = starting - sum(workers for _, workers in self._since)
        if more > 0:
            self._since.append((now, more))
        while more < 0:
            since, workers = self._since.popleft()
            more += workers
            if more > 0:
                self._since.appendleft((since, more))

    def oldest(self, now: float) -> float:
        """Seconds since the first of them was ordered; 0 if there is none."""
        return now - self._since[0][0] if self._since else 0.0

    def older(self, now: float, seconds: float) -> int:
        """How many of them have been starting for more than so many seconds."""
        return sum(workers for since, workers in self._since if now - since > seconds)

    def mean(self, now: float, limit: float) -> float:
        """The mean of their ages in seconds, each counted up to `limit`; 0 if there is none."""
        workers = sum(workers for _, workers in self._since)
        return sum(min(now - since, limit) * count for since, count in self._since) / workers if workers else 0.0
