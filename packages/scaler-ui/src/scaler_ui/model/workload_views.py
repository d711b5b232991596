"""What the history pages show: workloads, how two of them differ, and figures over days. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import groupby
from typing import NamedTuple

from scaler_protocol.units import duration, size
from scaler_ui.model.addresses import PageRequest, address, read_number
from scaler_ui.model.kept import HistoryState
from scaler_ui.model.minutes import Minute
from scaler_ui.model.model import IN_TASK, MonitorModel
from scaler_ui.model.subjects import Fact
from scaler_ui.model.task_table import ENDINGS
from scaler_ui.model.views import OFF_HOSTS, POINTS, Points, Row, TablePage, page_of
from scaler_ui.model.workloads import DurationCounts, Workload

DAY = 86_400


def kept_sentences(state: HistoryState | None) -> tuple[str, bool]:
    """Where the history is kept, or why it is not; and whether something is wrong."""
    if state is None:
        return "This is lost when scaler_ui ends. To keep it, start scaler_ui with --history FILE.", False
    days = "1 day" if state.days == 1 else f"{state.days} days"
    said = [
        f"Nothing is kept now, which is tried again every few seconds: {state.path}: {state.fault}."
        if state.fault
        else f"Kept for {days} in {state.path}."
    ]
    if state.damaged:
        said.append(f"An earlier file was damaged: it is now {state.damaged}.")
    if state.left_out:
        said.append(f"{state.left_out:,} rows were left out, because the disk was too slow for them, or failed.")
    if state.is_unread:
        said.append(
            "What it had at the start could not be read then: it is kept, and shown when scaler_ui starts again."
        )
    return " ".join(said), bool(state.fault or state.damaged or state.left_out or state.is_unread)


def workloads(model: MonitorModel, request: PageRequest, function: str = "") -> TablePage:
    """Workloads, or those of one function; the text is searched in names."""
    return _page(model, [each for each in model.workloads.rows.values() if function in ("", each.function)], request)


def others(model: MonitorModel, name: str, request: PageRequest) -> TablePage:
    """The other workloads of the function of this one."""
    shown = find(model, name)
    if shown is None:
        return TablePage([], 0)
    page = _page(model, [each for each in model.workloads.of_function(shown.function) if each is not shown], request)
    for row in page.rows:
        row.update(shown=name, compared=f"compare with {row['workload']}")
    return page


def _page(model: MonitorModel, found: list[Workload], request: PageRequest) -> TablePage:
    before = model.workloads.before_each()
    rows = [_row(model, each, before.get(each.number)) for each in found]
    page = page_of(rows, request, ("function", "client"))
    for row in page.rows:
        row.update({name: _seconds(row[name]) for name in _SECONDS}, change=_percent(row["change"]))
    return page


_SECONDS = ("mean", "p50", "p95", "wait", "cpu")
_NONE = -1.0


def _row(model: MonitorModel, workload: Workload, before: Workload | None) -> Row:
    runs = workload.runs
    seconds = runs.mean, runs.quantile(0.5), runs.quantile(0.95), workload.waits.mean, _mean_cpu(workload)
    return {
        "workload": workload.number,
        "compared": workload.number,
        "function": workload.function,
        "client": client_of(model, workload),
        "begun": workload.began,
        "last": workload.ended,
        "tasks": workload.tasks,
        "failures": workload.failures,
        "change": _change(runs.mean, None if before is None else before.runs.mean),
        **{name: _NONE if value is None else value for name, value in zip(_SECONDS, seconds, strict=True)},
    }


def _seconds(value: float) -> str:
    return "" if value == _NONE else duration(value)


def _change(value: float | None, before: float | None) -> float:
    """By which share a figure has grown; -inf, which sorts last, where it is missing or there was nothing before."""
    return value / before - 1 if before and value is not None else -math.inf


def _percent(change: float) -> str:
    return "" if change == -math.inf else f"{round(100 * change):+,}%"


def _mean_cpu(workload: Workload) -> float | None:
    count = workload.runs.count
    return workload.cpu / count if count else None


def client_of(model: MonitorModel, workload: Workload) -> str:
    """The name of the client whose calls these are."""
    return model.client_name(workload.session) if workload.session else IN_TASK


def find(model: MonitorModel, name: str) -> Workload | None:
    """The workload of this number; None if there is none."""
    number = read_number(name)
    return None if number is None else model.workloads.rows.get(number)


def pair(model: MonitorModel, name: str, other: str) -> tuple[Workload, Workload | None] | None:
    """Two workloads, the second one the one before if none is named; None if one that is named is unknown."""
    this, that = find(model, name), find(model, other)
    if this is None or (other and that is None):
        return None
    return this, that if other else model.workloads.before(this)


def workload_facts(model: MonitorModel, name: str, other: str = "") -> list[Fact] | None:
    """What workloads are compared; None if one is unknown."""
    found = pair(model, name, other)
    if found is None:
        return None
    this, that = found
    facts = [
        Fact("function", links=((this.function, address("function", this.function)),)),
        *_times(model, this, ""),
    ]
    if that is None:
        return [*facts, Fact("the other", "none: there is no earlier workload of this function")]
    return [
        *facts,
        Fact("the other", links=((f"workload {that.number}", address("workload", str(that.number))),)),
        *_times(model, that, ", the other"),
    ]


def _times(model: MonitorModel, workload: Workload, which: str) -> list[Fact]:
    client = client_of(model, workload)
    return [
        Fact(f"client{which}", links=((client, address("client", client)),)),
        Fact(f"begun{which}", at=workload.began),
        Fact(f"last end{which}", at=workload.ended),
    ]


class Measure(NamedTuple):
    """A figure of a workload that is compared."""

    name: str
    of: Callable[[Workload], float | None]
    write: Callable[[float], str] = "{:,}".format


def _of_durations(what: str, of: Callable[[Workload], DurationCounts]) -> tuple[Measure, ...]:
    return (
        Measure(f"{what}, mean", lambda workload: of(workload).mean, duration),
        Measure(f"{what}, p50", lambda workload: of(workload).quantile(0.5), duration),
        Measure(f"{what}, p95", lambda workload: of(workload).quantile(0.95), duration),
        Measure(f"{what}, longest", lambda workload: of(workload).longest, duration),
    )


_TASKS = Measure("tasks", lambda workload: workload.tasks)
_COSTS = (
    Measure("from begun to last end", lambda workload: workload.ended - workload.began, duration),
    *_of_durations("run", lambda workload: workload.runs),
    *_of_durations("wait", lambda workload: workload.waits),
    Measure("cpu, mean", _mean_cpu, duration),
    Measure("cpu, in all", lambda workload: workload.cpu, duration),
    Measure("transfers, in all", lambda workload: workload.transfers, duration),
    Measure("memory, peak", lambda workload: workload.memory, lambda value: size(int(value))),
)


def _endings(status: int) -> Measure:
    return Measure(ENDINGS[status], lambda workload: workload.endings.get(status, 0))


def _exceptions(name: str) -> Measure:
    return Measure(f"failures: {name}", lambda workload: workload.exceptions.get(name, 0))


def comparison(model: MonitorModel, name: str, other: str, request: PageRequest) -> TablePage:
    """A line for each figure of two workloads, with the change from the other to this one."""
    found = pair(model, name, other)
    if found is None:
        return TablePage([], 0)
    this, that = found
    both = [each for each in found if each is not None]
    measures = [
        _TASKS,
        *(_endings(status) for status in ENDINGS if any(status in each.endings for each in both)),
        *(_exceptions(name) for name in dict.fromkeys(name for each in both for name in each.exceptions)),
        *_COSTS,
    ]
    rows = [_compared(measure, this, that) for measure in measures]
    return page_of(rows, PageRequest(request.first, request.count, ""), ())


def _compared(measure: Measure, this: Workload, that: Workload | None) -> Row:
    value, before = measure.of(this), None if that is None else measure.of(that)
    return {
        "name": measure.name,
        "this": "" if value is None else measure.write(value),
        "other": "" if before is None else measure.write(before),
        "change": _percent(_change(value, before)),
    }


def minute_lines(model: MonitorModel, days: float) -> Points:
    """At most POINTS points of each line for the last days; lines are interrupted where nothing was heard."""
    found: Points = {"tasks/s": [], "latency": [], OFF_HOSTS: [], "queued": [], "running": [], "cpu": [], "memory": []}
    now = model.status.at if model.status is not None else math.inf
    minutes = [minute for minute in model.minutes.rows if minute.at <= now]  # a clock was ahead once
    if not minutes:
        return found
    minutes = [minute for minute in minutes if minute.at >= minutes[-1].at - days * DAY]
    span = 60 * (1 + (minutes[-1].at - minutes[0].at) // 60 // POINTS)
    before = minutes[0].at
    for at, several in groupby(minutes, lambda minute: minute.at // span * span):
        if at > before + 2 * span:
            for line in found.values():
                line.append([1000 * at - 1, None])
        before = at
        _add_point(found, at, list(several))
    return found


def _add_point(found: Points, at: int, minutes: list[Minute]) -> None:
    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    latencies = [1000 * minute.latency for minute in minutes if minute.latency is not None]
    found["latency"].append([1000 * at, round(mean(latencies), 2) if latencies else None])
    for name, of, factor in (
        ("tasks/s", "rate", 1.0), (OFF_HOSTS, "waiting", 1.0), ("queued", "queued", 1.0), ("running", "running", 1.0),
        ("cpu", "cpu", 100.0), ("memory", "rss", 2**-20),
    ):  # fmt: skip
        found[name].append([1000 * at, round(factor * mean([getattr(minute, of) for minute in minutes]), 1)])
