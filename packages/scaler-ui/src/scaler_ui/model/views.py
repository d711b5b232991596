"""Content of pages: figures, lines, and rows, which are sorted and filtered on the server."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import getitem
from typing import Any, TypeVar

from scaler_protocol import status_counts
from scaler_protocol.ids import worker_name
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import shortened
from scaler_protocol.messages import Status
from scaler_protocol.monitoring import EventKind, MonitorStatus
from scaler_protocol.ranges import Text
from scaler_protocol.tracebacks import headline
from scaler_protocol.units import duration, percent, size
from scaler_protocol.waiting import WaitReasons
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.moments import Moment, mean_latency
from scaler_ui.model.reasons import briefly
from scaler_ui.model.tables import WorkerRow, current_tasks, function_of, worker_rows
from scaler_ui.model.task_search import TaskSearch, TaskSubset
from scaler_ui.model.task_table import ENDINGS, STATES, TaskRow

Row = dict[str, Any]
V = TypeVar("V")
ERROR = Text(160)
"""The limit of an error in a table: how a worker died has room, with the number of lost runs."""
EVENT = Text(300)
POINTS = 120
"""The maximum of points in a line."""
GAP_SECONDS = 10.0
"""Seconds without a sample after which a line is interrupted."""


@dataclass(frozen=True, slots=True)
class TablePage:
    """The requested rows, and the number of all matching rows."""

    rows: list[Row]
    total: int


def page_of(rows: list[Row], request: PageRequest, names: Sequence[str]) -> TablePage:
    return TablePage(*part_of(rows, request, names, getitem))


def part_of(
    rows: list[V], request: PageRequest, names: Sequence[str], value: Callable[[V, str], Any]
) -> tuple[list[V], int]:
    """Those of the rows that are requested, and how many match: their text is searched in the values of these names."""
    text = request.text.lower()
    if text:
        rows = [row for row in rows if any(text in str(value(row, name)).lower() for name in names)]
    if request.order:
        rows = sorted(rows, key=lambda row: value(row, request.order), reverse=request.descending)
    return rows[request.first : request.first + request.count], len(rows)


TASK_ORDERS = {"client": "session"}
"""Columns by which tasks are sorted, where they are not called as the table calls them."""


def tasks(
    model: MonitorModel, request: PageRequest, worker: tuple[str, int] | None = None, parent: int = 0
) -> TablePage:
    """Tasks, or those of a worker, or those that a task has submitted.

    The text is searched in names of functions, agents and clients, or is an id.
    """
    rows, total = TaskSearch(model.tasks, model.agents, model.clients).page(
        TASK_ORDERS.get(request.order, request.order) or "since",
        descending=request.descending,
        first=request.first,
        count=request.count,
        text=request.text,
        state=request.state,
        within=_subset(model, request, worker, parent),
    )
    reasons = WaitReasons(model.status) if model.status is not None else None
    return TablePage([{**_task(model, row), "error": _reason(model, row, reasons)} for row in rows], total)


def _reason(model: MonitorModel, task: TaskRow, reasons: WaitReasons | None) -> str:
    """The error of a task, or why it waits."""
    if text := model.faults.get(task.id):
        return shortened(headline(text), ERROR)
    if task.state == "raised" and not task.pid:
        cause = model.causes.get(task.id)
        return f"task {cause:x}, which it needs, raised" if cause else "a task that it needs raised"
    place = model.tasks.find(task.id) if task.state in ("waiting", "held") else None
    return briefly(model, place, reasons) if place is not None and reasons is not None else ""


def _subset(model: MonitorModel, request: PageRequest, worker: tuple[str, int] | None, parent: int) -> TaskSubset:
    """The tasks of the function, client, host, worker or parent that is asked for."""
    agents = sessions = None
    if worker is not None:
        agents = [number for number, name in model.agents.items() if name == worker[0]]
    elif request.host:
        agents = [number for number, host in model.hosts.items() if host == request.host]
    if request.client:
        sessions = sessions_of(model, request.client)
    return TaskSubset(request.function, sessions, agents, 0 if worker is None else worker[1], parent)


def sessions_of(model: MonitorModel, client: str) -> list[int]:
    """The sessions of clients with this name, also where their names were not heard."""
    known = {*model.clients, *(session for session, _ in list(model.ended))}
    return [session for session in known if model.client_name(session) == client]


def agent_names(status: MonitorStatus | None) -> dict[int, str]:
    return dict(zip(status.agents, status.agent_names, strict=True)) if status else {}


def _task(model: MonitorModel, row: TaskRow) -> Row:
    agent = model.agents.get(row.agent, "")
    return {
        "id": f"{row.id:x}",
        "function": row.function,
        "client": model.client_name(row.session),
        "state": row.state,
        "agent": agent,
        "host": model.hosts.get(row.agent, ""),
        "pid": row.pid or "",
        "worker": worker_name(agent, row.pid) if row.pid else "",
        "attempt": row.attempt or "",
        "since": row.since,
        "ended": row.ended,
        "duration": duration(row.duration) if row.pid else "",
        "cpu": duration(row.cpu) if row.pid and row.ended else "",
        "memory": size(row.memory) if row.memory else "",
    }


def workers(model: MonitorModel, request: PageRequest, now: float) -> TablePage:
    """Workers; the text is searched in names, states and capabilities."""
    if model.status is None:
        return TablePage([], 0)
    found = worker_rows(model.status, now - model.heard)
    tasks = dict(zip((row.run for row in found), current_tasks(model, [row.run for row in found]), strict=True))

    def value(row: WorkerRow, name: str) -> Any:
        task = tasks[row.run]
        if name == "task":
            return f"{task.id:x}" if task else ""
        return function_of(model, row, task) if name == "function" else getattr(row, name)

    searched = ("worker", "name", "agent", "host", "state", "function", "capabilities")
    shown, total = part_of(found, request, searched, value)
    # Browsers have no integers of 64 bits, and names and process ids repeat from host to host.
    return TablePage([
        {
            **row._asdict(),
            "run": f"{row.run:x}",
            "key": f"{row.number}/{row.pid}",
            "task": value(row, "task"),
            "function": value(row, "function"),
            "agt_cpu": percent(row.agt_cpu, 1),
            "agt_rss": size(row.agt_rss),
            "cpu": percent(row.cpu, 1),
            "rss": size(row.rss),
            "lag": duration(row.lag),
            "silence": f"{row.silence:.0f} s{' (stale)' if row.stale else ''}",
        }
        for row in shown
    ], total)  # fmt: skip


def clients(model: MonitorModel, request: PageRequest) -> TablePage:
    """Clients, and sessions of tasks that submit tasks."""
    status = model.status
    if status is None:
        return TablePage([], 0)
    columns = (status.client_sessions, status.client_hosts, status.client_tasks)
    rows = [
        {
            "session": f"{session:x}",
            "name": model.client_name(session),
            "host": host,
            "machine": model.known_host(host),
            "tasks": count,
        }
        for session, host, count in zip(*columns, strict=True)
    ]
    return page_of(rows, request, ("session", "name", "host"))


def functions(model: MonitorModel, request: PageRequest) -> TablePage:
    """Functions with the cost of their calls that ended while this monitor listened."""
    rows = []
    for name, figures in list(model.functions.items()):
        rows.append(
            {
                "function": name,
                "calls": figures.count,
                **{word: figures.ended.get(status, 0) for status, word in OUTCOMES.items()},
                "runs": figures.runs,
                "mean": figures.duration / figures.runs if figures.runs else 0.0,
                "longest": figures.longest,
                "cpu": figures.cpu,
                "transfers": figures.transfers,
                "memory": figures.peak_memory,
            }
        )
    page = page_of(rows, request, ("function",))
    for row in page.rows:
        measured = row.pop("runs") > 0
        for name, write in {**dict.fromkeys(("mean", "longest", "cpu", "transfers"), duration), "memory": size}.items():
            row[name] = write(row[name]) if measured else ""
    return page


LEVELS = {10: "debug", 20: "info", 30: "warning", 40: "error", 50: "critical"}


EVENT_KINDS = {
    EventKind.FAILURE: "failure",
    EventKind.RUN: "run",
    EventKind.WORKER: "worker",
    EventKind.AGENT: "agent",
    EventKind.CLIENT: "client",
    EventKind.MANAGER: "manager",
    EventKind.SCHEDULER: "scheduler",
}
"""The words for what events are about."""


def events(model: MonitorModel, request: PageRequest) -> TablePage:
    """The log of events, or those of one kind."""
    clients = set(model.clients.values())
    rows = [
        {
            "number": number,
            "time": event.time,
            "kind": EVENT_KINDS.get(event.kind, str(event.kind)),
            "level": LEVELS.get(event.level, str(event.level)),
            "task": f"{event.task:x}" if event.task else _task_in(event.text),
            "host": event.subject if event.kind in (EventKind.WORKER, EventKind.AGENT) else "",
            "client": event.subject if event.kind == EventKind.CLIENT and event.subject in clients else "",
            "text": shortened(headline(event.text), EVENT),
        }
        for number, event in enumerate(model.events)
        if not request.kind or EVENT_KINDS.get(event.kind) == request.kind
    ]
    return page_of(rows, request, ("text", "task", "level"))


def _task_in(text: str) -> str:
    """The task that a sentence names, for example as that in which a worker died."""
    found = re.search(r"\btask ([0-9a-f]{9,16})\b", text)
    return found[1] if found else ""


LARGE_FIGURES = ("running", "waiting", "tasks/s", "failed")
"""Names of the numbers on the overview that say most."""
SMALL_FIGURES = (
    "latency", "held", "queued", "success", "cancelled", "lost runs", "workers", "agents", "clients", "workers' cpu",
    "workers' memory", "lag", "scheduler cpu", "scheduler memory",
)  # fmt: skip


def figures(model: MonitorModel) -> dict[str, str]:
    """The formatted numbers of the overview."""
    status = model.status
    if status is None:
        return {}
    return {
        "tasks/s": f"{model.rate:,.0f}",
        "latency": "none" if model.latency is None else duration(model.latency),
        "waiting": f"{status.waiting:,}",
        "held": f"{status.held:,}",
        "queued": f"{status_counts.queued(status):,}",
        "running": f"{status_counts.running(status):,}",
        "success": f"{status.succeeded:,}",
        "failed": f"{status.raised + status.failed:,}",
        "cancelled": f"{status.cancelled:,}",
        "lost runs": f"{status.lost_runs:,}",
        "workers": f"{status_counts.workers(status):,}",
        "agents": f"{len(status.agents):,}",
        "clients": f"{status_counts.clients(status):,}",
        "workers' cpu": percent(100 * status_counts.worker_cpu(status)),
        "workers' memory": size(status_counts.worker_rss(status)),
        "lag": duration(max(status.agent_round_trips, default=0.0)),
        "scheduler cpu": percent(100 * status.cpu, 1),
        "scheduler memory": size(status.rss),
    }


OFF_HOSTS = "waiting and held"
"""The name of the line of all tasks that no host has."""
Points = dict[str, list[list[float | None]]]
"""Points over time, as [milliseconds since 1970, value], by name; without a value a line is interrupted."""


def _samples(history: Sequence[Moment]) -> list[Moment]:
    """The last moment of each of POINTS equal spans of time."""
    if not history:
        return []
    step = max(1.0, (history[-1].at - history[0].at) / POINTS)
    return list({(history[-1].at - moment.at) // step: moment for moment in history}.values())


def lines(model: MonitorModel) -> Points:
    """About POINTS points of each line; all lines have points at the same times."""
    moments = _samples(model.history)
    found: Points = {"tasks/s": [], "latency": [], OFF_HOSTS: [], "queued": [], "running": [], "cpu": [], "memory": []}
    longest_step = max(GAP_SECONDS, 2 * (moments[-1].at - moments[0].at) / POINTS) if moments else 0.0
    for before, moment in pairwise(moments):
        at = round(moment.at * 1000)
        seconds = moment.at - before.at
        if seconds > longest_step:
            for line in found.values():
                line.append([at - 1, None])
            continue
        found["tasks/s"].append([at, round((moment.ended - before.ended) / seconds, 1) if seconds > 0 else 0.0])
        latency = mean_latency(before, moment)
        found["latency"].append([at, None if latency is None else round(1000 * latency, 2)])
        found[OFF_HOSTS].append([at, moment.waiting])
        found["queued"].append([at, moment.queued])
        found["running"].append([at, moment.running])
        found["cpu"].append([at, round(100 * moment.cpu, 1)])
        found["memory"].append([at, round(moment.rss / 1024**2, 1)])
    return found


OUTCOMES = {status: word for status, word in ENDINGS.items() if status != Status.LOST}
"""How tasks end: one whose run was lost is repeated, or fails."""
TASK_STATES = tuple(dict.fromkeys([*STATES.values(), *OUTCOMES.values()]))
"""The names of all task states."""
