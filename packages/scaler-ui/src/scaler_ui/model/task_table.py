"""TaskTable: the last tasks in columns, one row each; tasks that have not ended are found by id. Pure."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Status
from scaler_protocol.monitoring import TaskStep
from scaler_protocol.profiles import PROFILE, Profile
from scaler_ui.model.columns import Column, Places, last, take
from scaler_ui.model.row_index import RowIndex

V = TypeVar("V")
TASKS = 1_000_000
NAMES = 50_000
"""Names of functions, and numbers of agents, among which those are looked for that no row has any more."""
REPEATED_RUNS = 2_000
"""Runs without an outcome that are remembered."""
REPEATED = "run again"
"""The state of such a run: its worker or its host was lost, or it raised and has another attempt."""
UNKNOWN, RUNNING = 5, 6
"""Steps that are not published: the task ended while this monitor was not connected; a worker runs it."""
STATES = {
    TaskStep.WAITING: "waiting",
    TaskStep.HELD: "held",
    TaskStep.ASSIGNED: "queued",
    TaskStep.CANCELLED: "cancelled",
    UNKNOWN: "unknown",
    RUNNING: "running",
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
    "pid": "I", "worker": "I", "attempt": "I", "since": "d", "assigned": "d", "ended": "d",
    "duration": "Q", "cpu": "f", "memory": "f", "fetch": "I", "store": "I", "parent": "Q",
}  # fmt: skip
"""There may be a million rows: functions and agents are places in lists, CPU and memory have six digits."""
_PROFILED = "duration", "cpu", "memory", "pid", "worker", "attempt", "fetch", "store"
"""The columns that are those of a Profile."""
_WORDS = {**STATES, **{RUNNING + 1 + status: word for status, word in ENDINGS.items()}}
"""The words for states: of a task that has ended by its status."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task as screens show it; times in seconds since 1970 (0: not yet), durations and cpu in seconds, bytes.

    Duration and cpu of a task that runs are those so far, within the interval of statuses.
    """

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
    run: int
    duration: float
    cpu: float
    memory: int
    fetch: float
    """Seconds of the duration in which objects were fetched that the call needs."""
    store: float
    """Seconds of it in which the result was stored."""
    parent: int
    """The task that has submitted it; 0 if a client has."""


@dataclass(frozen=True, slots=True)
class TaskSpan:
    """Tasks with ids of a range, in columns, in the order of ids."""

    places: list[int]
    """Their ids, counted from the first one of the range."""
    functions: list[str]
    states: list[str]
    seconds: list[float]
    """How long their last runs took, or take so far."""


class OpenGroup(NamedTuple):
    """A group with tasks that have not ended."""

    number: int
    tasks: int
    waiting: int
    """Tasks that no worker has begun."""
    since: float
    """Since when the oldest of these waits; infinity if none does."""


class TaskTable:
    """Up to `capacity` tasks; the oldest rows are overwritten."""

    def __init__(self, capacity: int = TASKS) -> None:
        self._capacity = capacity
        self._columns: dict[str, array[Any]] = {name: array(code) for name, code in _COLUMNS.items()}
        self._zero = dict.fromkeys(_COLUMNS, 0)
        self._ended: list[int] | None = None
        """Rows of tasks that have ended, once somebody takes them."""
        self._next = 0
        """The row that is overwritten next, if the table is full."""
        self._live, self._before, self._unknown = RowIndex(), RowIndex(), RowIndex()
        """Tasks that a snapshot has left out, by id: the client of a scheduler that has begun again may repeat them."""
        self._started: dict[int, float] = {}
        """By row: when the run of a task began that a worker runs."""
        self.repeated: deque[TaskRow] = deque(maxlen=REPEATED_RUNS)
        """The last runs that workers were seen to run and whose tasks ran again."""
        self._is_snapshot = False
        self.functions, self.agent_numbers = Places(""), Places(0)
        """Names of functions and numbers of agents, of which columns have the places."""
        self._functions_limit = self._agents_limit = NAMES

    def __len__(self) -> int:
        return len(self._columns["id"])

    @property
    def live(self) -> int:
        """Tasks that have not ended."""
        return len(self._live)

    def function_number(self, name: str) -> int:
        """The number of this name in the columns; it is valid until the next call for a new name."""
        if name not in self.functions and len(self.functions.values) >= self._functions_limit:
            self.functions, used = self._with_used(self.functions, "function")
            self._functions_limit = NAMES + 2 * used
        return self.functions.place(name)

    def _agent_place(self, agent: int) -> int:
        """The place of this agent in the columns; it is valid until the next call for a new agent."""
        if agent not in self.agent_numbers and len(self.agent_numbers.values) >= self._agents_limit:
            self.agent_numbers, used = self._with_used(self.agent_numbers, "agent")
            self._agents_limit = NAMES + 2 * used
        return self.agent_numbers.place(agent)

    def _with_used(self, known: Places[V], name: str) -> tuple[Places[V], int]:
        """What rows have of the values to which a column refers, and how many these are; others are forgotten."""
        if not len(self):  # the rows come later
            return known, len(known.values)
        kept, moved = known.kept(np.unique(self.view(name)))
        renewed: array[Any] = array(_COLUMNS[name])
        renewed.frombytes(moved[self.view(name)].tobytes())
        self._columns[name] = renewed
        return kept, len(kept.values)

    def has_function(self, name: str) -> bool:
        """Whether a task calls, or has called, a function of this name."""
        return bool(name) and name in self.functions

    def name_of(self, number: int) -> str:
        """The name of the function with this number in the columns."""
        return self.functions.values[number]

    def agent_of(self, place: int) -> int:
        """The number of the agent with this place in the columns."""
        return self.agent_numbers.values[place]

    def function_name(self, row: int) -> str:
        """The name of the function that the task in this row calls."""
        return self.name_of(self._columns["function"][row])

    # --- what happens -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a snapshot of all tasks that have not ended."""
        self._before.update(self._live)
        self._live, self._is_snapshot = RowIndex(), True

    def begun(self) -> None:
        """End the snapshot: tasks that it lacks ended while this monitor was not connected."""
        for _, row in self._before.items():
            self._columns["step"][row] = UNKNOWN
        self._unknown.update(self._before)
        self._before, self._is_snapshot = RowIndex(), False

    def stand(self, tasks: Iterable[int], step: int, group: int, function: int, session: int, time: float) -> None:
        """Record that tasks wait or are held."""
        columns = self._columns
        for task in tasks:
            row = self._row(task, time)
            if columns["pid"][row] and columns["step"][row] == TaskStep.ASSIGNED and not self._is_snapshot:
                self._repeat(row, time)
            columns["step"][row], columns["group"][row] = step, group
            columns["function"][row], columns["session"][row] = function, session

    def nest(self, tasks: Iterable[int], parent: int, time: float) -> None:
        """Record that another task has submitted these."""
        for task in tasks:
            self._columns["parent"][self._row(task, time)] = parent

    def assign(self, tasks: Iterable[int], agent: int, first_run: int, time: float) -> None:
        """Record that tasks were assigned to an agent."""
        place = self._agent_place(agent)
        columns = self._columns
        for run, task in enumerate(tasks, first_run):
            row = self._row(task, time)
            columns["step"][row], columns["agent"][row] = TaskStep.ASSIGNED, place
            if columns["run"][row] == run:  # a snapshot repeats it
                continue
            columns["run"][row], columns["assigned"][row] = run, time
            self._started.pop(row, None)
            columns["pid"][row] = 0
            columns["duration"][row] = columns["cpu"][row] = 0

    def run(
        self,
        runs: Iterable[int],
        pids: Iterable[int],
        cpus: Iterable[float],
        seconds: Iterable[float],
        since: float,
        time: float,
    ) -> None:
        """Record that worker processes run these now and have used so many cores in the interval from `since`.

        A run that is seen for the first time began at its assignment, or with the interval, or before the scheduler
        heard of it, which was so many seconds ago.
        """
        rows, columns = self.runs(), self._columns
        for number, pid, cpu, heard in zip(runs, pids, cpus, seconds, strict=True):
            row = rows.get(number)
            if row is None:
                continue
            begun = self._started.get(row) or min(time - heard, max(since, columns["assigned"][row]))
            columns["pid"][row], self._started[row] = pid, begun
            columns["duration"][row] = max(0, round(1e6 * (time - begun)))
            columns["cpu"][row] += max(0, round(1e6 * cpu * (time - max(since, begun))))

    def end(
        self, tasks: Iterable[int], agent: int, statuses: Iterable[int], profiles: bytes, time: float
    ) -> Iterator[tuple[int, int, Profile]]:
        """Record that tasks ended; yields the row, status and profile of each."""
        place = self._agent_place(agent)
        columns = self._columns
        for task, status, record in zip(tasks, statuses, PROFILE.iter_unpack(profiles), strict=True):
            row = self._row(task, time)
            self._live.pop(task)
            profile = Profile._make(record)
            columns["step"][row], columns["status"][row], columns["ended"][row] = TaskStep.ENDED, status, time
            if profile.pid or not columns["pid"][row]:
                columns["agent"][row] = place
                self._ran(row, profile)
                self._started.pop(row, None)
            else:
                self._stopped(row, time)
            self._has_ended((row,))
            yield row, status, profile

    def add_ended(
        self, task: int, function: str, session: int, agent: int, status: int, profile: Profile, time: float
    ) -> None:
        """Add a task that ended before this monitor listened; its submission is unknown, its run is not."""
        begun = time - profile.duration_us / 1e6
        number, place = self.function_number(function), self._agent_place(agent)
        row, columns = self._new_row(task, begun), self._columns
        columns["step"][row], columns["status"][row], columns["ended"][row] = TaskStep.ENDED, status, time
        columns["function"][row], columns["session"][row] = number, session
        columns["agent"][row], columns["assigned"][row] = place, begun
        self._ran(row, profile)
        self._has_ended((row,))

    def run_ended(self, tasks: Iterable[int], agent: int, profiles: bytes, time: float) -> None:
        """Record what the runs were whose tasks wait next; of a run without a process only what was seen is known."""
        place = self._agent_place(agent)
        for task, record in zip(tasks, PROFILE.iter_unpack(profiles), strict=True):
            profile = Profile._make(record)
            if profile.pid and (row := self._live.get(task)) is not None:
                self._columns["agent"][row] = place
                self._ran(row, profile)
                self._started[row] = time - profile.duration_us / 1e6
                self._repeat(row, time)

    def _ran(self, row: int, profile: Profile) -> None:
        for name, figure in zip(_PROFILED, profile, strict=True):
            self._columns[name][row] = figure

    def restore(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Fill an empty table with tasks that have ended: values by column; the others are 0.

        Raises TypeError, ValueError or OverflowError for values that a column cannot hold.
        """
        zeros = [0] * len(columns["id"])
        filled = {**columns, "agent": [self._agent_place(agent) for agent in columns.get("agent", zeros)]}
        self._columns = {name: array(code, filled.get(name, zeros)) for name, code in _COLUMNS.items()}

    def agents(self) -> list[int]:
        """The numbers of agents that tasks have, or had; 0 of those without one."""
        return [self.agent_of(place) for place in np.unique(self.view("agent")).tolist()]

    def renumber_agents(self, numbers: Mapping[int, int]) -> None:
        """Give these agents other numbers."""
        self.agent_numbers = Places(*(numbers.get(number, number) for number in self.agent_numbers.values))

    def take_ended(self) -> list[int]:
        """The rows of tasks that have ended since the last call."""
        rows, self._ended = self._ended or [], []
        return rows

    def _has_ended(self, rows: Iterable[int]) -> None:
        if self._ended is not None:
            self._ended.extend(rows)

    def unknown(self, tasks: Sequence[int]) -> list[int]:
        """The positions of those of these tasks that have no row."""
        found: list[int] = np.flatnonzero(~np.isin(np.array(tasks, "Q"), self.view("id"))).tolist()
        return found

    def leave(self, tasks: Sequence[int], time: float) -> list[int]:
        """Record that tasks were cancelled; returns their rows."""
        rows = [self._row(task, time) for task in tasks]
        for task, row in zip(tasks, rows, strict=True):
            self._live.pop(task)
            self._columns["step"][row], self._columns["ended"][row] = TaskStep.CANCELLED, time
            if self._columns["pid"][row]:
                self._stopped(row, time)
        self._has_ended(rows)
        return rows

    def _repeat(self, row: int, time: float) -> None:
        """The run of this task is over, and its task runs again."""
        self._stopped(row, time)
        self.repeated.append(replace(self.row(row), state=REPEATED, ended=time))
        for name in _PROFILED:
            self._columns[name][row] = 0

    def _stopped(self, row: int, time: float) -> None:
        """The run was stopped, so that its outcome is unknown."""
        begun = self._started.pop(row, 0.0) or self._columns["assigned"][row]
        self._columns["duration"][row] = max(0, round(1e6 * (time - begun)))

    def _row(self, task: int, time: float) -> int:
        """The row of a task that has not ended; a new row if the task is unknown."""
        row = self._live.get(task)
        if row is not None:
            return row
        row = self._before.pop(task)
        if row is None:
            row = self._unknown.pop(task)
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
            for known in (self._live, self._before, self._unknown):
                if known.get(evicted) == row:
                    known.pop(evicted)
            self._started.pop(row, None)
            for name, column in columns.items():
                column[row] = self._zero[name]
        columns["id"][row], columns["since"][row] = task, time
        return row

    # --- questions --------------------------------------------------------------------------------------------------

    def find(self, task: int) -> int | None:
        """The newest row of a task."""
        if (row := self._live.get(task)) is not None:
            return row
        return last(self.view("id") == task)

    def find_run(self, run: int) -> int | None:
        """The row of the task of this run of an agent."""
        return last((self.view("run") == run) & (self.view("step") == TaskStep.ASSIGNED))

    def running(self) -> dict[int, int]:
        """The rows of the tasks that workers run, by run: those of `runs` that were reported so."""
        rows = [row for row in self._started if self._columns["step"][row] == TaskStep.ASSIGNED]
        return dict(zip(self.values("run", rows), rows, strict=True))

    def runs(self) -> dict[int, int]:
        """The rows of the tasks that agents have, by run."""
        rows = np.flatnonzero(self.view("step") == TaskStep.ASSIGNED)
        return dict(zip(self.view("run")[rows].tolist(), rows.tolist(), strict=True))

    def view(self, name: str) -> Column:
        """A view of a column; release it before the next row is written."""
        return np.frombuffer(self._columns[name], _COLUMNS[name])

    def state(self, row: int) -> str:
        """The state of the task in a row, in one word."""
        step = self._columns["step"][row]
        if step == TaskStep.ASSIGNED and row in self._started:
            return STATES[RUNNING]
        return ENDINGS[self._columns["status"][row]] if step == TaskStep.ENDED else STATES[step]

    def agent(self, row: int) -> int:
        """The number of the agent that the task in a row has, or had last; 0 if it had none."""
        return self.agent_of(self._columns["agent"][row])

    def run_start(self, row: int) -> float:
        """When the run of the task in a row began, or when it was assigned if no worker has begun it."""
        begun: float = self._started.get(row) or self._columns["assigned"][row]
        return begun

    def value(self, name: str, row: int) -> Any:
        """The stored value of a column in a row."""
        return self._columns[name][row]

    def columns(self, names: Iterable[str], rows: Sequence[int] | Column) -> list[Column]:
        """Copies of what columns have in these rows."""
        chosen = np.array(rows, np.intp)
        return [take(self.view(name), chosen) for name in names]

    def values(self, name: str, rows: Sequence[int]) -> list[Any]:
        """The stored values of a column in these rows."""
        found: list[Any] = self.view(name)[np.array(rows, np.intp)].tolist()
        return found

    def function_names(self, rows: Sequence[int]) -> list[str]:
        """The names of the functions that the tasks in these rows call."""
        return [self.name_of(number) for number in self.values("function", rows)]

    def row(self, row: int) -> TaskRow:
        """The task in this row."""
        get = {name: column[row] for name, column in self._columns.items()}
        return TaskRow(
            get["id"], self.function_name(row), get["session"], self.state(row), self.agent(row), get["worker"],
            get["pid"], get["attempt"], get["since"], get["assigned"], get["ended"], get["run"], get["duration"] / 1e6,
            get["cpu"] / 1e6, int(get["memory"]), get["fetch"] / 1e6, get["store"] / 1e6, get["parent"],
        )  # fmt: skip

    def span(self, first: int, count: int) -> TaskSpan:
        """The tasks with `count` ids from `first` on, as far as there are any."""
        ids = self.view("id")
        rows = np.flatnonzero((ids >= first) & (ids - np.uint64(first) < count))
        places, newest = np.unique((ids[rows] - np.uint64(first))[::-1], return_index=True)
        rows = rows[::-1][newest]
        seconds = np.where(self.view("pid")[rows] > 0, self.view("duration")[rows] / 1e6, 0.0)
        codes = np.where(
            (steps := self.steps()[rows]) == TaskStep.ENDED, RUNNING + 1 + self.view("status")[rows], steps
        )
        return TaskSpan(
            places.tolist(), self.function_names(rows.tolist()), [_WORDS[code] for code in codes], seconds.tolist()
        )

    def waiting_groups(self) -> list[tuple[int, int]]:
        """The numbers of groups with waiting tasks, and the number of these tasks."""
        numbers, counts = np.unique(self.view("group")[self.view("step") == TaskStep.WAITING], return_counts=True)
        return [(int(number), int(count)) for number, count in zip(numbers, counts, strict=True)]

    def open_groups(self) -> list[OpenGroup]:
        """Groups with tasks that have not ended."""
        rows = np.flatnonzero(self.view("step") <= TaskStep.ASSIGNED)
        numbers, places = np.unique(self.view("group")[rows], return_inverse=True)
        waits = self.steps()[rows] != RUNNING
        oldest = np.full(len(numbers), np.inf)
        np.minimum.at(oldest, places[waits], self.view("since")[rows][waits])
        counts, waiting = (np.bincount(each, minlength=len(numbers)) for each in (places, places[waits]))
        columns = (each.tolist() for each in (numbers, counts, waiting, oldest))
        return list(map(OpenGroup._make, zip(*columns, strict=True)))

    def waiting(self, row: int) -> list[tuple[int, int, int]]:
        """Per group with waiting tasks: its number, how many wait, and how many of them came before a row's task."""
        waits = self.view("step") == TaskStep.WAITING
        since, ids, groups = (self.view(name)[waits] for name in ("since", "id", "group"))
        at, task = self._columns["since"][row], self._columns["id"][row]
        earlier = (since < at) | ((since == at) & (ids < task))
        numbers, places = np.unique(groups, return_inverse=True)
        counts, before = np.bincount(places), np.bincount(places, earlier)
        return [(int(n), int(count), int(b)) for n, count, b in zip(numbers, counts, before, strict=True)]

    def steps(self) -> Column:
        """The step of each row; RUNNING for what workers run."""
        steps: Column = self.view("step").copy()
        started = np.fromiter(self._started, np.intp, len(self._started))
        steps[started[steps[started] == TaskStep.ASSIGNED]] = RUNNING
        return steps

    def ended_runs(self, since: float, count: int) -> tuple[Column, Column]:
        """The rows of runs that ended at `since` or later: `count` of them, and the others.

        Those are the longest ones; up to half are runs that failed, however short.
        """
        rows = np.flatnonzero((self.view("ended") >= since) & (self.view("pid") != 0))
        if len(rows) <= count:
            return rows, rows[:0]
        lengths, status = self.view("duration")[rows].astype(float), self.view("status")[rows]
        failed = np.flatnonzero((status == Status.RAISED) | (status == Status.FAILED))
        lengths[failed[_longest(lengths[failed], count // 2)]] = np.inf
        chosen = np.zeros(len(rows), bool)
        chosen[_longest(lengths, count)] = True
        return rows[chosen], rows[~chosen]


def _longest(lengths: Column, count: int) -> Column:
    """The places of so many of the longest, or of all."""
    places: Column = np.argpartition(lengths, -count)[-count:] if 0 < count < len(lengths) else np.arange(len(lengths))
    return places[:count]
