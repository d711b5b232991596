"""The runs of an agent that only one of its workers may run. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

from scaler_worker.agent.core.records import GROUP, RUN, Entry


class PinnedRuns:
    """Runs that wait until their worker has ended its present run, by the process id of the worker."""

    def __init__(self) -> None:
        self.runs: dict[int, deque[Entry]] = {}
        self.told: set[int] = set()
        """Those of which the scheduler knows that they wait for a blocked worker, and so take no slot."""

    def __contains__(self, pid: object) -> bool:
        return pid in self.runs

    def __iter__(self) -> Iterator[Entry]:
        return (entry for runs in self.runs.values() for entry in runs)

    @property
    def pids(self) -> list[int]:
        """The workers that runs wait for."""
        return list(self.runs)

    def sort_out(self, entries: Sequence[Entry], *, first: bool = False) -> Sequence[Entry]:
        """Keep those that are pinned, at the front if `first`; returns the others."""
        if not any(entry[GROUP].pid for entry in entries):
            return entries
        for entry in reversed(entries) if first else entries:
            if pid := entry[GROUP].pid:
                runs = self.runs.setdefault(pid, deque())
                (runs.appendleft if first else runs.append)(entry)
        return [entry for entry in entries if not entry[GROUP].pid]

    def take(self, pid: int) -> Entry:
        """Remove and return the next run of a worker; there must be one."""
        runs = self.runs[pid]
        entry = runs.popleft()
        self.told.discard(entry[RUN])
        if not runs:
            del self.runs[pid]
        return entry

    def remove(self, runs: Collection[int]) -> list[Entry]:
        """Remove and return those of `runs` that wait here."""
        removed = [entry for entry in self if entry[RUN] in runs]
        self.told.difference_update(runs)
        for entry in removed:
            waiting = self.runs[entry[GROUP].pid]
            waiting.remove(entry)
            if not waiting:
                del self.runs[entry[GROUP].pid]
        return removed
