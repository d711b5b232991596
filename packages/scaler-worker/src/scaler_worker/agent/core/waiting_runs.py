"""The runs that wait at an agent, and which of them are next."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence

from scaler_protocol.ids import SESSION_BITS
from scaler_worker.agent.core.records import GROUP, RUN, TASK, Entry
from scaler_worker.ipc.frames import FOLLOWS

REMEMBERED = 1024
"""Sessions whose last turns are known."""
_Level = tuple[int, int]
_Turns = OrderedDict[int, deque[Entry]]
"""The runs of each session, in order of arrival; the next turn is that of the first session."""


class WaitingRuns:
    """The queue of an agent: by priority, then by depth; among equal ones, sessions take turns.

    A session whose runs come while others wait has the first turn, unless it had one later than the first of those.
    """

    __slots__ = ("_keys", "_levels", "_turn", "_turn_of", "count")

    def __init__(self) -> None:
        self._levels: dict[_Level, _Turns] = {}
        self._keys: list[_Level] = []
        self.count = self._turn = 0
        """The first: how many runs wait."""
        self._turn_of: OrderedDict[int, int] = OrderedDict()
        """The number of the last turn of each session, the latest one last."""

    def __iter__(self) -> Iterator[Entry]:
        return (entry for key in self._keys for queue in self._levels[key].values() for entry in queue)

    def has_runs_of(self, session: int) -> bool:
        """Whether runs of this session wait."""
        return any(session in turns for turns in self._levels.values())

    def _queue(self, key: _Level, session: int) -> deque[Entry]:
        turns = self._levels.get(key)
        if turns is None:
            turns = self._levels[key] = OrderedDict()
            insort(self._keys, key)
        queue = turns.get(session)
        if queue is None:
            first = next(iter(turns)) if turns else session
            queue = turns[session] = deque()
            if first != session and self._turn_of.get(session, 0) < self._turn_of.get(first, 0):
                turns.move_to_end(session, last=False)
        return queue

    def _note_turn(self, session: int) -> None:
        self._turn += 1
        self._turn_of[session] = self._turn
        self._turn_of.move_to_end(session)
        if len(self._turn_of) > REMEMBERED:
            self._turn_of.popitem(last=False)

    def _forget_empty(self) -> None:
        for key in [key for key in self._keys if not self._levels[key]]:
            self._keys.remove(key)
            del self._levels[key]

    def extend(self, entries: Sequence[Entry]) -> None:
        """Append new runs."""
        self.count += len(entries)
        groups = {entry[GROUP] for entry in entries}
        sessions = {entry[TASK] >> SESSION_BITS for entry in entries}
        if len(groups) == len(sessions) == 1:
            (group,), (session,) = groups, sessions
            self._queue(group.level, session).extend(entries)
        else:
            for entry in entries:
                self._queue(entry[GROUP].level, entry[TASK] >> SESSION_BITS).append(entry)

    def requeue(self, entries: Sequence[Entry]) -> None:
        """Put runs that were taken and not started back to the front of their sessions, in order."""
        self.count += len(entries)
        for entry in reversed(entries):
            self._queue(entry[GROUP].level, entry[TASK] >> SESSION_BITS).appendleft(entry)

    def next_entry(self) -> Entry:
        """The next run; there must be one."""
        return next(iter(self._levels[self._keys[0]].values()))[0]

    def take(self, count: int, microseconds: float, size: int) -> list[Entry]:
        """Remove and return the next runs of one level: at least one, at most `count`, within the bounds in total.

        A run that FOLLOWS the previous one is always in the same batch.
        """
        level = self._keys[0]
        turns = self._levels[level]
        taken: list[Entry] = []
        while turns:
            session, queue = next(iter(turns.items()))
            before = len(taken)
            while queue:
                _, _, group, call, _, flags = queue[0]
                microseconds -= group.kind.estimate
                size -= len(call)
                if (microseconds < 0 or size < 0 or len(taken) >= count) and taken and not flags & FOLLOWS:
                    break
                taken.append(queue.popleft())
            if len(taken) > before:
                self._note_turn(session)
            if queue:
                if len(taken) > before:
                    turns.move_to_end(session)
                break
            del turns[session]
        self.count -= len(taken)
        if not turns:
            del self._keys[0], self._levels[level]
        return taken

    def take_newest(self, count: int) -> list[Entry]:
        """Remove and return up to `count` runs from the back."""
        taken: list[Entry] = []
        for key in reversed(self._keys):
            turns = self._levels[key]
            while turns and len(taken) < count:
                session, queue = next(reversed(turns.items()))
                taken += [queue.pop() for _ in range(min(len(queue), count - len(taken)))]
                if not queue:
                    del turns[session]
        self.count -= len(taken)
        self._forget_empty()
        return taken

    def remove(self, runs: set[int]) -> list[Entry]:
        """Remove and return those of `runs` that wait."""
        removed: list[Entry] = []
        for turns in self._levels.values():
            for session, queue in list(turns.items()):
                if found := [entry for entry in queue if entry[RUN] in runs]:
                    removed += found
                    if len(found) == len(queue):
                        del turns[session]
                    else:
                        turns[session] = deque(entry for entry in queue if entry[RUN] not in runs)
        self.count -= len(removed)
        self._forget_empty()
        return removed
