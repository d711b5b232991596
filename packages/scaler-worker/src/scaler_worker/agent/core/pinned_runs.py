"""The runs of an agent that only one of its workers may run. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

from scaler_worker.agent.core.records import GROUP, RUN, Entry


class PinnedRuns:
    """Runs that wait until their worker has ended its present run, by the process id of the worker."""

    def __init__(self) -> None:
        self.runs: dict[int, deque[Entry]] = {}
        self.told_blocked: set[int] = set()
        """Those that the scheduler has been told of: they wait for a blocked worker, and so take no slot.

        The runs for which that worker waits need it.
        """

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

    def next_run(self, pid: int) -> int:
        """The next run of a worker; there must be one."""
        return self.runs[pid][0][RUN]

    def newly_blocked(self, pid: int) -> list[int]:
        """Those runs of a blocked worker that the scheduler has not been told of; it is told now."""
        runs = [entry[RUN] for entry in self.runs[pid] if entry[RUN] not in self.told_blocked]
        self.told_blocked.update(runs)
        return runs

    def take(self, pid: int) -> Entry:
        """Remove and return the next run of a worker; there must be one."""
        runs = self.runs[pid]
        entry = runs.popleft()
        self.told_blocked.discard(entry[RUN])
        if not runs:
            del self.runs[pid]
        return entry

    def remove(self, runs: Collection[int]) -> list[Entry]:
        """Remove and return those of `runs` that wait here."""
        removed = [entry for entry in self if entry[RUN] in runs]
        self.told_blocked.difference_update(runs)
        for entry in removed:
            waiting = self.runs[entry[GROUP].pid]
            waiting.remove(entry)
            if not waiting:
                del self.runs[entry[GROUP].pid]
        return removed
