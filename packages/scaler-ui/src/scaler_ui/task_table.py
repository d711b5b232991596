"""TaskTable: the last tasks in columns, one row each, found by id while they have not ended. Pure."""

from __future__ import annotations

import contextlib
import heapq
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from scaler_protocol.messages import Status
from scaler_protocol.monitoring import TaskStep
from scaler_protocol.profiles import PROFILE, Profile

TASKS = 1_000_000
UNKNOWN = 5
"""A step of our own: the task ended while nobody listened."""
STATES = {
    TaskStep.WAITING: "waiting",
    TaskStep.HELD: "held",
    TaskStep.ASSIGNED: "assigned",
    TaskStep.GONE: "cancelled",
    UNKNOWN: "unknown",
}
ENDINGS = {
    Status.VALUE: "success",
    Status.RAISED: "raised",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
    Status.LOST: "lost",
}
_COLUMNS = {
    "id": "Q", "group": "Q", "function": "I", "session": "I", "step": "B", "status": "B", "agent": "I", "run": "Q",
    "pid": "I", "worker": "H", "attempt": "H", "since": "d", "assigned": "d", "ended": "d", "duration": "Q",
    "cpu": "Q", "memory": "Q",
}  # fmt: skip


_FEW = 5000
"""Rows that are found faster by a heap than by sorting all."""


def _hits(values: bytes, wanted: set[int]) -> int:
    """A byte for each value, 1 where it is wanted, as one number."""
    return int.from_bytes(values.translate(bytes(value in wanted for value in range(256))), "little")


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task as screens show it; times in seconds since 1970 (0: not yet), duration and cpu in seconds, bytes."""

    id: int
    function: str
    session: int
    state: str
    agent: int
    worker: int
    pid: int
    attempt: int
    since: float
    assigned: float
    ended: float
    duration: float
    cpu: float
    memory: int


class TaskTable:
    """Up to `capacity` tasks; the oldest rows are written over."""

    def __init__(self, capacity: int = TASKS) -> None:
        self._capacity = capacity
        self._columns: dict[str, array[Any]] = {name: array(code) for name, code in _COLUMNS.items()}
        self._zero = dict.fromkeys(_COLUMNS, 0)
        self._next = 0
        """The row that is written next, once all are taken."""
        self._live: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._names: list[str] = [""]
        self._numbers: dict[str, int] = {"": 0}

    def __len__(self) -> int:
        return len(self._columns["id"])

    @property
    def live(self) -> int:
        """Tasks that have not ended."""
        return len(self._live)

    def function_number(self, name: str) -> int:
        """What stands for this name in a row."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
        return number

    def function_name(self, row: int) -> str:
        """The name of the function that the task in this row calls."""
        number: int = self._columns["function"][row]
        return self._names[number]

    # --- what happens -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """All that has not ended is about to be told again."""
        self._before.update(self._live)
        self._live = {}

    def begun(self) -> None:
        """It was told: what was left out ended while nobody listened."""
        for row in self._before.values():
            self._columns["step"][row] = UNKNOWN
        self._before = {}

    def stand(self, tasks: Iterable[int], step: int, group: int, function: int, session: int, time: float) -> None:
        """These tasks wait, or are held."""
        columns = self._columns
        for task in tasks:
            row = self._row(task, time)
            columns["step"][row], columns["group"][row] = step, group
            columns["function"][row], columns["session"][row] = function, session

    def assign(self, tasks: Iterable[int], agent: int, first_run: int, time: float) -> None:
        """An agent has these."""
        columns = self._columns
        for run, task in enumerate(tasks, first_run):
            row = self._row(task, time)
            columns["step"][row], columns["agent"][row], columns["run"][row] = TaskStep.ASSIGNED, agent, run
            columns["assigned"][row] = time

    def end(
        self, tasks: Iterable[int], agent: int, statuses: Iterable[int], profiles: bytes, time: float
    ) -> Iterator[tuple[int, int, Profile]]:
        """These have ended; yields the row, status and profile of each."""
        columns = self._columns
        for task, status, record in zip(tasks, statuses, PROFILE.iter_unpack(profiles), strict=True):
            row = self._row(task, time)
            del self._live[task]
            profile = Profile._make(record)
            columns["step"][row], columns["status"][row], columns["ended"][row] = TaskStep.ENDED, status, time
            columns["agent"][row] = agent
            columns["duration"][row], columns["cpu"][row], columns["memory"][row] = profile[:3]
            columns["pid"][row], columns["worker"][row], columns["attempt"][row] = profile[3:]
            yield row, status, profile

    def leave(self, tasks: Iterable[int], time: float) -> None:
        """Nobody wants these any more."""
        for task in tasks:
            row = self._row(task, time)
            del self._live[task]
            self._columns["step"][row], self._columns["ended"][row] = TaskStep.GONE, time

    def _row(self, task: int, time: float) -> int:
        """The row of a task that has not ended; a new one where it is not known."""
        row = self._live.get(task)
        if row is not None:
            return row
        row = self._before.pop(task, None)
        if row is None:
            row = self._new_row(task, time)
        self._live[task] = row
        return row

    def _new_row(self, task: int, time: float) -> int:
        columns, row = self._columns, len(self)
        if row < self._capacity:
            for name, column in columns.items():
                column.append(self._zero[name])
        else:
            row, self._next = self._next, (self._next + 1) % self._capacity
            evicted = columns["id"][row]
            for known in (self._live, self._before):
                if known.get(evicted) == row:
                    del known[evicted]
            for name, column in columns.items():
                column[row] = self._zero[name]
        columns["id"][row], columns["since"][row] = task, time
        return row

    # --- questions --------------------------------------------------------------------------------------------------

    def find(self, task: int) -> int | None:
        """The newest row of a task."""
        if (row := self._live.get(task)) is not None:
            return row
        return max((row for row, known in enumerate(self._columns["id"]) if known == task), default=None)

    def state(self, row: int) -> str:
        """Where the task of a row stands, in a word."""
        step = self._columns["step"][row]
        return ENDINGS[self._columns["status"][row]] if step == TaskStep.ENDED else STATES[step]

    def value(self, name: str, row: int) -> Any:
        """A figure of a row as it is kept."""
        return self._columns[name][row]

    def row(self, row: int) -> TaskRow:
        """The task in this row."""
        get = {name: column[row] for name, column in self._columns.items()}
        return TaskRow(
            get["id"], self.function_name(row), get["session"], self.state(row), get["agent"], get["worker"],
            get["pid"], get["attempt"], get["since"], get["assigned"], get["ended"], get["duration"] / 1e6,
            get["cpu"] / 1e6, get["memory"],
        )  # fmt: skip

    def live_rows(self) -> Iterable[int]:
        """The rows of tasks that have not ended."""
        return self._live.values()

    def page(
        self, order: str, *, descending: bool, first: int, count: int, text: str = "", state: str = ""
    ) -> tuple[list[TaskRow], int]:
        """Rows `first` and on in the order of a column (as kept), of those wanted, and how many these are.

        Wanted are tasks in this state, of functions with the text in their name, or with the text as their id.
        """
        column = self._columns[order]
        rows: Sequence[int] = range(len(self))
        if text:
            rows = self._with_text(text.lower())
        if state:
            mask = self._mask(state)
            rows = [row for row in rows if mask[row]] if text else list(compress(rows, mask))
        if first + count > _FEW:
            chosen = sorted(rows, key=column.__getitem__, reverse=descending)[first : first + count]
        else:
            choose = heapq.nlargest if descending else heapq.nsmallest
            chosen = choose(first + count, rows, key=column.__getitem__)[first:]
        return [self.row(row) for row in chosen], len(rows)

    def _mask(self, state: str) -> bytes:
        """For each row, whether its task is in this state: in bytes, because a loop over all rows takes too long."""
        steps = {step for step, word in STATES.items() if word == state}
        statuses = {status for status, word in ENDINGS.items() if word == state}
        step, status = self._columns["step"].tobytes(), self._columns["status"].tobytes()
        standing, ended = _hits(step, steps), _hits(step, {TaskStep.ENDED} if statuses else set())
        mask = standing | (ended & _hits(status, statuses))
        return mask.to_bytes(len(self), "little")

    def _with_text(self, text: str) -> Sequence[int]:
        wanted = {number for number, name in enumerate(self._names) if text in name.lower()}
        if wanted:
            return [row for row, number in enumerate(self._columns["function"]) if number in wanted]
        with contextlib.suppress(ValueError, OverflowError):
            return [self._columns["id"].index(int(text, 16))]
        return []

    def newest(self, count: int) -> Iterator[int]:
        """So many rows, those that were begun last first."""
        size = len(self)
        for back in range(1, min(count, size) + 1):
            yield (self._next - back) % size
