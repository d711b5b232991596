"""RunQueue: the runs that wait for Symphony, by priority, depth and age. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from scaler_worker.agent.core.records import GROUP, RUN, Entry

_Level = tuple[int, int]


def depth_of(entry: Entry) -> int:
    """The nesting depth of a run: 0 for the tasks of a client, one more for each nested submit."""
    return -entry[GROUP].level[1]


class RunQueue:
    """Higher priorities first, then greater depths, then the oldest."""

    def __init__(self) -> None:
        self._levels: dict[_Level, OrderedDict[int, Entry]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._levels.values()))

    def __iter__(self) -> Iterator[Entry]:
        return (entry for level in sorted(self._levels) for entry in self._levels[level].values())

    def extend(self, entries: Iterable[Entry]) -> None:
        """Append runs."""
        for entry in entries:
            self._levels.setdefault(entry[GROUP].level, OrderedDict())[entry[RUN]] = entry

    def take(self, deeper_than: int = -1) -> Entry | None:
        """Remove and return the next run of a greater depth than this; None if there is none."""
        levels = [level for level in self._levels if -level[1] > deeper_than]
        if not levels:
            return None
        level = min(levels)
        _, entry = self._levels[level].popitem(last=False)
        self._forget_empty(level)
        return entry

    def take_newest(self, count: int) -> list[Entry]:
        """Remove and return up to `count` runs from the back."""
        taken: list[Entry] = []
        while self._levels and len(taken) < count:
            level = max(self._levels)
            taken.append(self._levels[level].popitem()[1])
            self._forget_empty(level)
        return taken

    def remove(self, runs: Iterable[int]) -> list[Entry]:
        """Remove and return those of `runs` that wait."""
        removed = []
        for run in runs:
            for level in list(self._levels):
                if (entry := self._levels[level].pop(run, None)) is not None:
                    removed.append(entry)
                    self._forget_empty(level)
        return removed

    def _forget_empty(self, level: _Level) -> None:
        if not self._levels[level]:
            del self._levels[level]
