"""RunFigures: what the last runs of functions say about hosts and workers. Pure.

Scheduler and monitors count runs in the same way. A monitor that comes late is sent what the scheduler has counted, and
goes on from there, so that what it says of slow hosts and of leaks does not depend on when it came.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import field
from typing import Any, Final

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.profiles import Profile

RECENT_RUNS: Final = 50
ENTRIES: Final = 20_000
"""Most functions on hosts, and most functions in worker processes, that are known."""
NOTED: Final = 4000
"""Most runs that are noted and not yet counted."""
SENT: Final = 10_000
"""Most of each that a monitor is sent: the last ones."""


@dataclass(slots=True)
class RecentRuns:
    """The last RECENT_RUNS runs of a function on a host: means of seconds, of their squares, and of failures."""

    count: int = 0
    seconds: float = 0.0
    squares: float = 0.0
    failures: float = 0.0

    def add(self, seconds: float, failed: bool) -> None:
        """Count a run; later ones have more weight."""
        self.count += 1
        weight = 1 / min(self.count, RECENT_RUNS)
        self.seconds += weight * (seconds - self.seconds)
        self.squares += weight * (seconds * seconds - self.squares)
        self.failures += weight * (failed - self.failures)

    @property
    def deviation(self) -> float:
        """The standard deviation of the seconds."""
        return math.sqrt(max(0.0, self.squares - self.seconds**2))


@dataclass(slots=True)
class Growth:
    """How the runs of a function have raised the peak memory of one worker process, in bytes.

    The first of them is not counted: it needs what every run needs.
    """

    peak: int
    runs: int = 0
    raised: int = 0
    """Runs that have raised the peak."""
    size: int = 0
    """By how much, all together; other functions may have raised it meanwhile."""

    def ran(self, before: int, peak: int) -> None:
        """Count a run that has raised the peak from `before`, or left it there."""
        self.runs += 1
        self.raised += peak > before
        self.size += peak - before
        self.peak = peak


@dataclass(slots=True)
class RunFigures:
    """The figures, the oldest entries first."""

    runs: dict[tuple[str, str], RecentRuns] = field(default_factory=dict)
    """By function and host."""
    growths: dict[tuple[str, int, int], Growth] = field(default_factory=dict)
    """By function, agent and worker process."""
    _peaks: dict[tuple[int, int], int] = field(default_factory=dict)
    """The peak memory of each worker process, by agent."""
    _noted: deque[tuple[str, str, int, Profile, bool]] = field(default_factory=lambda: deque(maxlen=NOTED))

    def ran(self, function: str, host: str, agent: int, profile: Profile, *, failed: bool) -> None:
        """Count a run."""
        runs = self.runs.get((function, host))
        if runs is None:
            runs = self.runs[function, host] = RecentRuns()
            _forget_oldest(self.runs)
        runs.add(profile.duration_us / 1e6, failed)
        peak, key, worker = profile.peak_memory, (function, agent, profile.pid), (agent, profile.pid)
        before = self._peaks.get(worker)
        if before is None or peak > before:
            self._peaks[worker] = peak
            _forget_oldest(self._peaks)
        growth = self.growths.get(key)
        if growth is None:
            self.growths[key] = Growth(peak)
            _forget_oldest(self.growths)
        elif before is not None:
            growth.ran(before, max(before, peak))

    def forget_workers(self) -> None:
        """Forget what is counted by worker: from now on agents have other numbers."""
        self.growths.clear()
        self._peaks.clear()

    def note(self, function: str, host: str, agent: int, profile: Profile, failed: bool) -> None:
        """Keep a run, to be counted later: this costs an append. Of many ones the last NOTED are kept."""
        self._noted.append((function, host, agent, profile, failed))

    def count_noted(self) -> None:
        """Count the runs that were noted."""
        for function, host, agent, profile, failed in self._noted:
            self.ran(function, host, agent, profile, failed=failed)
        self._noted.clear()

    def columns(self) -> dict[str, Any]:
        """The columns of a MonitorHistory: hosts, and the workers whose memory was raised again."""
        self.count_noted()
        runs = list(self.runs.items())[-SENT:]
        growths = [(key, growth) for key, growth in self.growths.items() if growth.raised][-SENT:]
        return {
            "run_functions": [function for (function, _), _ in runs],
            "run_hosts": [host for (_, host), _ in runs],
            "run_counts": [each.count for _, each in runs],
            "run_seconds": [each.seconds for _, each in runs],
            "run_squares": [each.squares for _, each in runs],
            "run_failures": [each.failures for _, each in runs],
            "growth_functions": [function for (function, _, _), _ in growths],
            "growth_agents": [agent for (_, agent, _), _ in growths],
            "growth_pids": [pid for (_, _, pid), _ in growths],
            "growth_peaks": [growth.peak for _, growth in growths],
            "growth_runs": [growth.runs for _, growth in growths],
            "growth_raised": [growth.raised for _, growth in growths],
            "growth_sizes": [growth.size for _, growth in growths],
        }

    def add(self, runs: Iterable[tuple[str, str, RecentRuns]], growths: Iterable[tuple[str, int, int, Growth]]) -> None:
        """Take what a scheduler has counted, where it has counted more."""
        for function, host, each in runs:
            if (known := self.runs.get((function, host))) is None or known.count < each.count:
                self.runs[function, host] = each
        for function, agent, pid, growth in growths:
            if (before := self.growths.get((function, agent, pid))) is None or before.runs < growth.runs:
                self.growths[function, agent, pid] = growth
                self._peaks[agent, pid] = max(growth.peak, self._peaks.get((agent, pid), 0))
        for table in (self.runs, self.growths, self._peaks):
            _forget_oldest(table)


def _forget_oldest(table: dict[Any, Any]) -> None:
    while len(table) > ENTRIES:
        del table[next(iter(table))]
