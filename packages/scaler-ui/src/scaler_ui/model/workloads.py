"""Workloads: a client's calls of one function without a long break, so that one night is compared with another. Pure.

DurationCounts are counted in buckets, so that a workload takes as much memory for ten tasks as for ten million.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import field, replace
from itertools import accumulate
from operator import attrgetter

from scaler_protocol.ids import is_nested
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Status

BREAK_SECONDS = 3600.0
"""After so long without an end, the next one begins another workload."""
LONGEST_SECONDS = 86_400.0
"""After so long a workload without a break is followed by another one."""
WORKLOADS = 2_000
FORGOTTEN = 10_000
"""Numbers of forgotten ones that are remembered for who keeps workloads elsewhere, who takes them each second."""
EXCEPTIONS = 20
"""Types of exceptions that are counted for a workload; further ones count as OTHERS."""
OTHERS = "others"
_BEGIN, _END = attrgetter("began"), attrgetter("ended")
_STEP = math.log(1.04)
_LEAST = 1e-6


@dataclass(slots=True)
class DurationCounts:
    """Seconds: their sum, the longest, and how many were about equal; quantiles are right within 2 %."""

    total: float = 0.0
    longest: float = 0.0
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.total += seconds
        self.longest = max(self.longest, seconds)
        bucket = round(math.log(max(seconds, _LEAST)) / _STEP)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def copy(self) -> DurationCounts:
        """The same counts, which do not go on."""
        return replace(self, buckets=self.buckets.copy())

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.buckets.values())

    @property
    def mean(self) -> float | None:
        """The mean in seconds; None if there is none."""
        count = self.count
        return self.total / count if count else None

    def quantile(self, share: float) -> float | None:
        """The seconds that this share of the durations does not exceed; None if there are none."""
        left = share * self.count
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return min(math.exp(bucket * _STEP), self.longest)
        return None


@dataclass(slots=True)
class Workload:
    """What the calls took: seconds, bytes; times are seconds since 1970, from the first submission to the last end."""

    number: int
    function: str
    session: int
    """0 for the calls that tasks have made."""
    began: float
    ended: float
    endings: dict[int, int] = field(default_factory=dict)
    """Tasks by status."""
    runs: DurationCounts = field(default_factory=DurationCounts)
    waits: DurationCounts = field(default_factory=DurationCounts)
    """From the submission of a task to the begin of its run."""
    cpu: float = 0.0
    memory: int = 0
    """The greatest of a run."""
    exceptions: dict[str, int] = field(default_factory=dict)
    """Failures by type of exception."""
    transfers: float = 0.0
    """In which objects were fetched and results stored."""

    def copy(self) -> Workload:
        """The same figures, which do not go on."""
        return replace(
            self,
            endings=self.endings.copy(),
            runs=self.runs.copy(),
            waits=self.waits.copy(),
            exceptions=self.exceptions.copy(),
        )

    @property
    def tasks(self) -> int:
        """Tasks that ended."""
        return sum(self.endings.values())

    @property
    def failures(self) -> int:
        """Tasks that raised or could not run."""
        return self.tasks - self.endings.get(Status.VALUE, 0) - self.endings.get(Status.CANCELLED, 0)

    def ran(self, waited: float, took: float, cpu: float, memory: int, transfers: float) -> None:
        """Count a run."""
        self.runs.add(took)
        self.waits.add(max(0.0, waited))
        self.cpu += cpu
        self.transfers += transfers
        self.memory = max(self.memory, memory)

    def failed(self, exception: str) -> None:
        """Count a failure with this type of exception."""
        if exception not in self.exceptions and len(self.exceptions) >= EXCEPTIONS:
            exception = OTHERS
        self.exceptions[exception] = self.exceptions.get(exception, 0) + 1


class WorkloadTable:
    """The last workloads; of several sessions the one with most of them loses its oldest first."""

    def __init__(self, limit: int = WORKLOADS) -> None:
        self.rows: dict[int, Workload] = {}
        """By number, the oldest first."""
        self.changed: set[int] = set()
        """Numbers of those that have changed; who keeps them elsewhere empties it."""
        self.forgotten: set[int] = set()
        """Numbers of those that are not remembered any more; who keeps them elsewhere empties it."""
        self._limit = limit
        self._latest: dict[tuple[int, str], Workload] = {}
        self._sessions: Counter[int] = Counter()
        self._next = 1

    def restore(self, workload: Workload) -> None:
        """Add a workload that is older than all others."""
        self._add(workload)
        self.changed.discard(workload.number)

    def ended(self, function: str, session: int, status: int, since: float, time: float) -> Workload:
        """Count the end of a task; returns its workload."""
        session = 0 if is_nested(session) else session
        found = self._latest.get((session, function))
        # A clock that was ahead goes back: then it is earlier than what has ended.
        if found is None or abs(time - found.ended) > BREAK_SECONDS or time > found.began + LONGEST_SECONDS:
            found = Workload(self._next, function, session, since, time)
            self._add(found)
        found.began, found.ended = min(found.began, since), max(found.ended, time)
        found.endings[status] = found.endings.get(status, 0) + 1
        self.changed.add(found.number)
        return found

    def failed(self, function: str, session: int, exception: str) -> None:
        """Count the type of exception of a task whose end was counted."""
        found = self._latest.get((0 if is_nested(session) else session, function))
        if found is not None:
            found.failed(exception)

    def of_function(self, function: str) -> list[Workload]:
        """Those of a function, the latest first."""
        found = [each for each in self.rows.values() if each.function == function]
        return sorted(found, key=lambda each: each.ended, reverse=True)

    def before(self, workload: Workload) -> Workload | None:
        """The workload of the same function that ended last before this one began; else of those that began before."""
        return _before(self.of_function(workload.function)).get(workload.number)

    def before_each(self) -> dict[int, Workload]:
        """The one before each workload that has one, by number."""
        by_function: dict[str, list[Workload]] = {}
        for each in self.rows.values():
            by_function.setdefault(each.function, []).append(each)
        return {number: found for each in by_function.values() for number, found in _before(each).items()}

    def _add(self, workload: Workload) -> None:
        self.rows[workload.number] = workload
        self._latest[workload.session, workload.function] = workload
        self._sessions[workload.session] += 1
        self._next = max(self._next, workload.number + 1)
        self.changed.add(workload.number)
        if len(self.rows) > self._limit:
            most = max(self._sessions.values())
            self._forget(next(each for each in self.rows.values() if self._sessions[each.session] == most))

    def _forget(self, workload: Workload) -> None:
        del self.rows[workload.number]
        self._sessions[workload.session] -= 1
        if not self._sessions[workload.session]:
            del self._sessions[workload.session]
        if self._latest.get((workload.session, workload.function)) is workload:
            del self._latest[workload.session, workload.function]
        self.changed.discard(workload.number)
        if len(self.forgotten) >= FORGOTTEN:
            self.forgotten.clear()  # nobody keeps them
        self.forgotten.add(workload.number)


def _before(workloads: list[Workload]) -> dict[int, Workload]:
    """The one before each of these, which are of one function, by number."""
    by_end, by_begin = sorted(workloads, key=_END), sorted(workloads, key=_BEGIN)
    latest: list[Workload] = list(accumulate(by_begin, lambda one, other: max(one, other, key=_END)))
    ends, begins = [each.ended for each in by_end], [each.began for each in by_begin]
    found = {}
    for each in workloads:
        if ended := bisect_left(ends, each.began):
            found[each.number] = by_end[ended - 1]
        elif begun := bisect_left(begins, each.began):
            found[each.number] = latest[begun - 1]
    return found
