"""What of a model is kept across restarts, as plain rows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from scaler_protocol.ids import is_nested
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Status
from scaler_protocol.monitoring import TaskStep
from scaler_ui.model.columns import Column
from scaler_ui.model.failed_task import TaskFailure
from scaler_ui.model.minutes import Minute
from scaler_ui.model.model import FunctionFigures, MonitorModel
from scaler_ui.model.workloads import Workload

TASKS = 100_000
"""Tasks that are kept: they are read again at each start."""

_NUMBERS = (
    "id", "session", "pid", "worker", "attempt", "since", "assigned", "ended", "duration", "cpu", "memory", "fetch",
    "store",
)  # fmt: skip
"""The columns of the table of tasks that are those of a KeptTask as they are."""
_AT_ONCE = 1000


class KeptTask(NamedTuple):
    """A task that has ended; times in seconds since 1970, durations in microseconds, memory in bytes."""

    task: int
    function: str
    session: int
    status: int
    agent: str
    host: str
    pid: int
    worker: int
    attempt: int
    submitted: float
    assigned: float
    ended: float
    duration: int
    cpu: float
    memory: float
    fetch: int
    store: int


class KeptFailure(NamedTuple):
    """A task that has failed, and its traceback or error."""

    task: int
    function: str
    session: int
    status: int
    agent: str
    host: str
    ended: float
    error: str


class KeptColumns:
    """Tasks that have ended, in columns, which take an eighth of the memory of rows; these are made as they are read.

    They can be read in another thread: nothing of the model is left in them.
    """

    def __init__(self, model: MonitorModel, rows: Sequence[int]) -> None:
        tasks = model.tasks
        self._columns = tasks.columns(_NUMBERS, rows)
        is_cancelled = tasks.columns(("step",), rows)[0] == TaskStep.CANCELLED
        self._statuses = np.where(is_cancelled, Status.CANCELLED, tasks.columns(("status",), rows)[0])
        self._numbers = functions, agents = tasks.columns(("function", "agent"), rows)
        self._functions = {number: tasks.name_of(number) for number in np.unique(functions).tolist()}
        seen = {place: tasks.agent_of(place) for place in np.unique(agents).tolist()}
        self._places = {
            place: (model.agents.get(number, ""), model.hosts.get(number, "")) for place, number in seen.items()
        }
        self.sessions: set[int] = set(np.unique(self._columns[1]).tolist())

    def __len__(self) -> int:
        return len(self._statuses)

    def __iter__(self) -> Iterator[KeptTask]:
        return self._read(np.arange(len(self)))

    def without_value(self) -> Iterator[KeptTask]:
        """Those that have failed, or were cancelled."""
        return self._read(np.flatnonzero(self._statuses != Status.VALUE))

    def _read(self, places: Column) -> Iterator[KeptTask]:
        for begin in range(0, len(places), _AT_ONCE):
            part = places[begin : begin + _AT_ONCE]
            columns = (column[part].tolist() for column in (self._statuses, *self._numbers, *self._columns))
            for status, function, agent, task, session, *others in zip(*columns, strict=True):
                yield KeptTask(task, self._functions[function], session, status, *self._places[agent], *others)


@dataclass(slots=True)
class Kept:
    """Rows, the oldest first; names of clients by session."""

    tasks: list[KeptTask] | KeptColumns = field(default_factory=list)
    failures: list[KeptFailure] = field(default_factory=list)
    clients: dict[int, str] = field(default_factory=dict)
    workloads: list[Workload] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    """Workloads that are not kept any more."""
    minutes: list[Minute] = field(default_factory=list)
    at: float = 0.0
    """The time of the scheduler when this was known, in seconds since 1970; 0 if it is unknown."""

    def __len__(self) -> int:
        rows = len(self.tasks) + len(self.failures) + len(self.clients) + len(self.minutes)
        return rows + len(self.workloads) + len(self.forgotten)


@dataclass(frozen=True, slots=True)
class HistoryState:
    """Where the history is kept, and what is wrong with that."""

    path: str
    days: int
    fault: str = ""
    """Why nothing is written now."""
    damaged: str = ""
    """Where a damaged file was moved to."""
    left_out: int = 0
    """Rows that were not kept."""
    is_unread: bool = False
    """Whether the file has more than is shown, because it could not be read at the start."""


class Changes:
    """What has become known to a model since it was asked for last."""

    def __init__(self, model: MonitorModel) -> None:
        self._model = model
        self._named = set(model.clients)
        self._unnamed: set[int] = set()
        """Sessions of clients whose names have not been heard yet."""
        model.minutes.new.clear()
        model.tasks.take_ended()

    def take(self) -> Kept:
        """The rows that are new, or have changed."""
        model = self._model
        ended = KeptColumns(model, model.tasks.take_ended())
        kept = Kept(ended)
        kept.failures = [
            KeptFailure(*task[:6], task.ended, failure.text)
            for task in ended.without_value()
            if (failure := model.failures.get(task.task)) is not None
        ]
        self._unnamed.update({session for session in ended.sessions if not is_nested(session)} - self._named)
        kept.clients = {session: model.clients[session] for session in self._unnamed if session in model.clients}
        self._named.update(kept.clients)
        self._unnamed.difference_update(kept.clients)
        kept.minutes = list(model.minutes.new)
        model.minutes.new.clear()
        kept.at = model.status.at if model.status is not None else 0.0
        table = model.workloads
        kept.workloads = [table.rows[number].copy() for number in sorted(table.changed)]
        kept.forgotten = sorted(table.forgotten)
        table.changed.clear()
        table.forgotten.clear()
        return kept


def restore(model: MonitorModel, kept: Kept) -> None:
    """Fill a model that has heard nothing yet; raises TypeError, ValueError or OverflowError for odd rows."""
    rows: list[KeptTask | KeptFailure] = [*kept.tasks, *kept.failures]
    places = list(dict.fromkeys((row.agent, row.host) for row in rows))
    numbers = dict(zip(places, model.past_agents(len(places)), strict=True))
    if tasks := list(kept.tasks):
        agents = [numbers[task.agent, task.host] for task in tasks]
        model.tasks.restore(_columns(model, tasks, agents))
    model.clients.update(kept.clients)
    model.minutes.rows.extend(kept.minutes)
    for workload in kept.workloads:
        model.workloads.restore(workload)
        _restore_figures(model.functions.setdefault(workload.function, FunctionFigures()), workload)
    model.agents.update((numbers[place], str(place[0])) for place in places)
    model.hosts.update((numbers[place], str(place[1])) for place in places)
    for each in kept.failures:
        agent = numbers[each.agent, each.host]
        failure = TaskFailure(each.ended, each.task, each.function, each.session, agent, each.status, each.error)
        model.failures.add((failure,))
        model.faults[each.task] = each.error


def _columns(model: MonitorModel, tasks: Sequence[KeptTask], agents: Sequence[int]) -> dict[str, Sequence[Any]]:
    of_name: dict[str, Sequence[Any]] = dict(zip(KeptTask._fields, zip(*tasks, strict=True), strict=True))
    return {
        "id": of_name["task"],
        "function": [model.tasks.function_number(str(name)) for name in of_name["function"]],
        "step": [TaskStep.ENDED] * len(tasks),
        "agent": agents,
        "since": of_name["submitted"],
        **{
            name: of_name[name]
            for name in (
                "session", "status", "pid", "worker", "attempt", "assigned", "ended", "duration", "cpu", "memory",
                "fetch", "store",
            )
        },
    }  # fmt: skip


def _restore_figures(figures: FunctionFigures, workload: Workload) -> None:
    for status, count in workload.endings.items():
        figures.has_ended(status, count)
    figures.runs += workload.runs.count
    figures.duration += workload.runs.total
    figures.longest = max(figures.longest, workload.runs.longest)
    figures.cpu += workload.cpu
    figures.transfers += workload.transfers
    figures.peak_memory = max(figures.peak_memory, workload.memory)
