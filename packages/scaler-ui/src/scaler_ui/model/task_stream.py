"""The task stream: what workers run and have run lately, as bars in lines. Pure.

A line is a worker. With `nested`, tasks that were submitted by a task which is shown are in lines below that of this
task, whichever worker runs them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from typing import Any

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.monitoring import MonitorStatus
from scaler_protocol.plurals import counted
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.task_table import TaskRow
from scaler_ui.model.views import agent_names

BARS = 500
"""The maximum of tasks in the stream: the longest in its window, among the last RECENT ones."""
RECENT = 20_000
DEEPEST = 8
"""How deep tasks are nested in lines of their own."""
Bar = list[Any]
"""Line, begin and end in milliseconds, function, state, task id, the worker, and begin and end of the call itself:
before it the worker fetched objects, after it the worker stored the result."""
LineKey = tuple[Any, ...]
"""The name of a worker; of a line below it also the number of the line, and so on. They are sorted as lines are."""


@dataclass(frozen=True, slots=True)
class TaskStream:
    """Names of lines, bars of tasks, and the window in seconds since 1970."""

    lines: list[str]
    bars: list[Bar]
    window: tuple[float, float]

    @property
    def functions(self) -> list[str]:
        """The functions of the bars, those with most time first."""
        seconds: Counter[str] = Counter()
        for _, begin, end, name, *_ in self.bars:
            seconds[name] += end - begin
        return [name for name, _ in seconds.most_common()]

    @property
    def summary(self) -> str:
        """How many tasks are shown, and of how many workers."""
        if not self.bars:
            return "no tasks in this window"
        which = f"the {BARS} longest tasks" if len(self.bars) == BARS else counted(len(self.bars), "task")
        return f"{which} on {counted(len({bar[6] for bar in self.bars}), 'worker')}"


@dataclass(frozen=True, slots=True)
class _Shown:
    """A task that is shown."""

    task: TaskRow
    begin: float
    end: float
    worker: str


def stream(model: MonitorModel, seconds: float, *, nested: bool = True) -> TaskStream:
    """What was run in the last `seconds`; bars of running tasks end now."""
    status, tasks = model.status, model.tasks
    if status is None:
        return TaskStream([], [], (0.0, 0.0))
    found = [
        (tasks.value("duration", row) / 1e6, tasks.value("agent", row), tasks.value("pid", row), row)
        for row in tasks.longest(BARS, status.at - seconds, RECENT)
    ]
    found += _running(model, status)
    names = _process_names(status)
    shown = []
    for took, agent, pid, row in heapq.nlargest(BARS, found):
        task = tasks.row(row)
        end = task.ended or status.at
        worker = names.get((agent, pid)) or f"{model.agents.get(agent, 'unknown')}/{pid} (gone)"
        shown.append(_Shown(task, end - took, end, worker))
    keys = _nested_keys(shown) if nested else {each.task.id: (each.worker,) for each in shown}
    workers = {(each.worker,) for each in shown}
    places = {key: place for place, key in enumerate(sorted({*workers, *keys.values()}))}
    bars = [_bar(each, places[keys[each.task.id]]) for each in shown]
    return TaskStream([_line_name(key) for key in places], bars, (status.at - seconds, status.at))


def _nested_keys(shown: Iterable[_Shown]) -> dict[int, LineKey]:
    """The line of each task: that of its worker, or one below the line of the task that has submitted it."""
    by_id = {each.task.id: each for each in shown}
    keys: dict[int, LineKey] = {}
    lines: dict[LineKey, list[float]] = {}
    """Of each line that has lines below it: when the last bar of each of these ends."""
    for each in sorted(by_id.values(), key=lambda each: each.begin):
        above = keys.get(each.task.parent)
        if above is None or len(above) > DEEPEST:
            keys[each.task.id] = (each.worker,)
            continue
        ends = lines.setdefault(above, [])
        free = next((number for number, end in enumerate(ends) if end <= each.begin), len(ends))
        ends[free:] = [each.end, *ends[free + 1 :]]
        keys[each.task.id] = (*above, free)
    return keys


def _line_name(key: LineKey) -> str:
    worker, *below = key
    return "\u2003" * (len(below) - 1) + "\u21b3 nested" if below else str(worker)


def _running(model: MonitorModel, status: MonitorStatus) -> list[tuple[float, int, int, int]]:
    """The tasks that workers run: seconds so far, agent, process and row."""
    rows = model.tasks.runs()
    return [
        (model.tasks.value("duration", rows[run]) / 1e6, agent, pid, rows[run])
        for run, agent, pid in zip(status.worker_runs, status.worker_agents, status.worker_pids, strict=True)
        if run in rows
    ]


def _process_names(status: MonitorStatus) -> dict[tuple[int, int], str]:
    """Display names of workers, by agent and process."""
    agents = agent_names(status)
    columns = zip(status.worker_agents, status.worker_pids, status.worker_names, strict=True)
    return {(agent, pid): f"{agents[agent]}/{name}" for agent, pid, name in columns}


def _bar(each: _Shown, place: int) -> Bar:
    task = each.task
    state = task.state if task.ended else "running"
    begin, end = round(1000 * each.begin), round(1000 * each.end)
    called = min(end, round(1000 * (each.begin + task.fetch)))
    returned = max(called, round(1000 * (each.end - task.store)))
    return [place, begin, end, task.function, state, f"{task.id:x}", each.worker, called, returned]
