"""The task stream: what workers run and have run lately, as bars in lines. Pure.

A line is a worker. Of many tasks the longest have a bar each, the others are blocks, so that no gap is where a worker
was busy. With `nested`, tasks that were submitted by a task which is shown are in lines below that of this
task, whichever worker runs them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from typing import Any

from scaler_protocol.ids import worker_name
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.monitoring import MonitorStatus
from scaler_protocol.plurals import counted
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.short_tasks import Block, blocks
from scaler_ui.model.task_table import TaskRow
from scaler_ui.model.views import agent_names

BARS = 500
"""The maximum of tasks with a bar each: in the window the longest, and those that failed."""
REPEATED_BARS = 100
"""The maximum of runs among them whose tasks ran again: the last ones."""
DEEPEST = 8
"""How deep tasks are nested in lines of their own."""
Bar = list[Any]
"""Line, begin and end in milliseconds, function, state, task id, the worker, and begin and end of the call itself:
before it the worker fetched objects, after it the worker stored the result."""
LineKey = tuple[Any, ...]
"""The name of a worker; of a line below it also the number of the line, and so on. They are sorted as lines are."""


@dataclass(frozen=True, slots=True)
class TaskStream:
    """Names of lines, bars of tasks, the window in seconds since 1970, and blocks of further tasks."""

    lines: list[str]
    bars: list[Bar]
    window: tuple[float, float]
    blocks: list[Bar] = field(default_factory=list)
    """Line, begin and end in milliseconds, function, the share of the time in which tasks ran, the worker."""
    further: int = 0
    """The number of tasks in blocks."""

    @property
    def functions(self) -> list[str]:
        """The functions of the bars, those with most time first."""
        seconds: Counter[str] = Counter()
        for _, begin, end, name, *_ in (*self.bars, *self.blocks):
            seconds[name] += end - begin
        return [name for name, _ in seconds.most_common()]

    @property
    def summary(self) -> str:
        """How many tasks are shown, of how many workers, and how many of them have a bar each."""
        if not self.bars:
            return "no tasks in this window"
        workers = {bar[6] for bar in self.bars} | {block[5] for block in self.blocks}
        shown = f"{counted(len(self.bars) + self.further, 'task')} on {counted(len(workers), 'worker')}"
        return f"{shown}, {len(self.bars)} as bars" if self.further else shown


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
    present, window = _present(status), (status.at - seconds, status.at)

    def name(agent: int, pid: int) -> str:
        worker = worker_name(model.agents.get(agent, "unknown"), pid)
        return worker if worker in present else f"{worker} (gone)"

    def ended(task: TaskRow) -> _Shown:
        return _Shown(task, task.ended - task.duration, task.ended, name(task.agent, task.pid))

    again = [ended(task) for task in list(tasks.repeated)[-REPEATED_BARS:] if task.ended >= window[0]]
    running = heapq.nlargest(BARS - len(again), _running(model, status))
    longest, others = tasks.ended_runs(window[0], BARS - len(again) - len(running))
    shown = [
        *(_Shown(tasks.row(row), status.at - took, status.at, name(agent, pid)) for took, agent, pid, row in running),
        *(ended(tasks.row(row)) for row in longest.tolist()),
    ]
    further = blocks(tasks, others, window, name)
    keys = _nested_keys(shown) if nested else {each.task.id: (each.worker,) for each in shown}
    workers = {(each.worker,) for each in (*shown, *again)} | {(each.worker,) for each in further}
    places = {key: place for place, key in enumerate(sorted({*workers, *keys.values()}))}
    bars = [_bar(each, places[keys[each.task.id]]) for each in shown]
    bars += [_bar(each, places[each.worker,]) for each in again]
    together = [_block(each, places[each.worker,]) for each in further]
    return TaskStream([_line_name(key) for key in places], bars, window, together, len(others))


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


def _present(status: MonitorStatus) -> set[str]:
    """The names of the workers, with those of their agents, which outlive the scheduler."""
    agents = agent_names(status)
    workers = zip(status.worker_agents, status.worker_pids, strict=True)
    return {worker_name(agents[agent], pid) for agent, pid in workers}


def _bar(each: _Shown, place: int) -> Bar:
    task = each.task
    state = task.state if task.ended else "running"
    begin, end = round(1000 * each.begin), round(1000 * each.end)
    called = min(end, round(1000 * (each.begin + task.fetch)))
    returned = max(called, round(1000 * (each.end - task.store)))
    return [place, begin, end, task.function, state, f"{task.id:x}", each.worker, called, returned]


def _block(each: Block, place: int) -> Bar:
    return [place, round(1000 * each.begin), round(1000 * each.end), each.function, round(each.share, 2), each.worker]
