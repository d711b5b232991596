"""The runs of an agent that take consumables, of its host or of the cluster. Pure.

The scheduler sends no more of them than fit. But runs that it has given up go on for a while, and it does not know how
much of the host's a run has taken that began before its own restart. So a run starts here only when what it takes of
the host's is free. What is free of the cluster's only the scheduler can know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from scaler_worker.agent.core.records import GROUP, RUN, Entry


class LimitedRuns:
    """Runs that wait until what they take of `totals` is free: by priority and depth, then in order of arrival."""

    def __init__(self, totals: Mapping[str, int]) -> None:
        self._totals = dict(totals)
        self.runs: list[Entry] = []

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.runs)

    def sort_out(self, entries: Sequence[Entry], *, first: bool = False) -> Sequence[Entry]:
        """Keep those that take consumables, before others of their level if `first`; returns the rest."""
        if not any(entry[GROUP].takes for entry in entries):
            return entries
        limited = [entry for entry in entries if entry[GROUP].takes]
        self.runs = sorted([*limited, *self.runs] if first else [*self.runs, *limited], key=_level)
        return [entry for entry in entries if not entry[GROUP].takes]

    def startable(self, current: Iterable[Entry]) -> list[Entry]:
        """The waiting runs that may all start now, beside the current runs of the workers.

        None overtakes another one that waits for the same consumable.
        """
        free = Counter(self._totals)
        for entry in current:
            free.subtract(dict(entry[GROUP].takes))
        found: list[Entry] = []
        claimed: set[str] = set()
        for entry in self.runs:
            takes = {name: wanted for name, wanted in entry[GROUP].takes if name in self._totals}
            if claimed.isdisjoint(takes) and all(free[name] >= wanted for name, wanted in takes.items()):
                found.append(entry)
                free.subtract(takes)
            else:
                claimed.update(takes)
        return found

    def remove(self, runs: Collection[int]) -> list[Entry]:
        """Remove and return those of `runs` that wait here."""
        removed = [entry for entry in self.runs if entry[RUN] in runs]
        self.runs = [entry for entry in self.runs if entry[RUN] not in runs]
        return removed

    def take_newest(self, count: int) -> list[Entry]:
        """Remove and return up to `count` runs from the back."""
        at = max(0, len(self.runs) - count)
        taken, self.runs = self.runs[at:], self.runs[:at]
        return taken


def _level(entry: Entry) -> tuple[int, int]:
    return entry[GROUP].level
