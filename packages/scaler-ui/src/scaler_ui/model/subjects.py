"""What pages say about one task, worker, host, client, function, graph or group of failures, as facts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from scaler_protocol.ids import worker_name
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.units import duration, percent, size
from scaler_ui.model import cluster_views
from scaler_ui.model.addresses import PageRequest, address, read_number, read_task
from scaler_ui.model.failures import failures_of
from scaler_ui.model.graph_looks import GraphLook, GraphLooks
from scaler_ui.model.host_rows import host_rows
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.tables import current_tasks, function_of, worker_rows
from scaler_ui.model.views import OUTCOMES, Row, TablePage, page_of, sessions_of

NAMED = 3
"""Hosts and clients of which a fact names the most frequent."""
OPEN = frozenset({"waiting", "held", "queued", "running"})
"""States of tasks that have not ended."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A value with a name: names that link to pages, a text behind them, or a time in seconds since 1970."""

    name: str
    text: str = ""
    links: tuple[tuple[str, str], ...] = ()
    """Names, and addresses."""
    at: float = 0.0


Facts = list[Fact]


def task_facts(model: MonitorModel, task: int) -> Facts | None:
    """What is known about a task; None if it is unknown."""
    place = model.tasks.find(task)
    if place is None:
        return None
    row = model.tasks.row(place)
    worker = worker_name(model.agents.get(row.agent, ""), row.pid) if row.pid else ""
    return [
        Fact("state", row.state),
        _link("function", "function", row.function),
        _link("submitted by", "task", f"{row.parent:x}")
        if row.parent
        else _link("client", "client", model.client_name(row.session)),
        _link("graph", "graph", _graph_of(model, task)),
        _link("ended because of", "task", f"{cause:x}" if (cause := model.causes.get(task)) else ""),
        _link("host", "host", model.hosts.get(row.agent, "")),
        _link("worker", "worker", worker),
        Fact("attempt", str(row.attempt or "")),
        Fact("submitted", at=row.since),
        Fact("ended", at=row.ended),
        Fact("duration", duration(row.duration) if row.pid else ""),
        Fact("fetching objects", duration(row.fetch) if row.fetch else ""),
        Fact("storing the result", duration(row.store) if row.store else ""),
        Fact("cpu", duration(row.cpu) if row.pid and row.ended else ""),
        Fact("memory", size(row.memory) if row.memory else ""),
    ]


def _graph_of(model: MonitorModel, task: int) -> str:
    """The number of the graph that has this node; empty if none has that is still told of."""
    status = model.status
    graphs = zip(status.graphs, status.graph_nodes, strict=True) if status is not None else ()
    for number, nodes in graphs:
        known = model.graphs.find(number)
        if known is not None and task in range(known.first_task, known.first_task + nodes):
            return str(number)
    return ""


def _link(name: str, place: str, subject: str) -> Fact:
    return Fact(name, links=((subject, address(place, subject)),) if subject else ())


def _tasks(name: str, text: str, **narrow: str) -> Fact:
    return Fact(name, links=((text, address("tasks", **narrow)),))


def worker_facts(model: MonitorModel, agent: str, pid: int, now: float) -> Facts | None:
    """What is known about a worker; None if no agent of this name was heard of."""
    numbers = [number for number, name in model.agents.items() if name == agent]
    if not numbers or model.status is None:
        return None
    host = _link("host", "host", model.hosts.get(numbers[-1], ""))
    for row in worker_rows(model.status, now - model.heard, numbers):
        if row.pid == pid:
            (task,) = current_tasks(model, [row.run])
            return [
                Fact("state", row.state),
                host,
                Fact("agent", agent),
                Fact("in logs", f"{row.name} ({worker_name(agent, pid)})"),
                _link("task", "task", f"{task.id:x}" if task else ""),
                _link("function", "function", function_of(model, row, task)),
                Fact("for", duration(task.elapsed) if task else ""),
                Fact("cpu", percent(row.cpu, 1)),
                Fact("memory", size(row.rss)),
                Fact("queued", f"{row.queued:,}"),
                Fact("last heard", f"{row.silence:.0f} s{' (stale)' if row.stale else ''}"),
                Fact("offers", row.capabilities or "no capabilities"),
            ]
    return [Fact("state", "gone"), host, Fact("agent", agent)]


def hosts(model: MonitorModel, request: PageRequest) -> TablePage:
    """Hosts with agents, and those that were lost lately."""
    status = model.status
    if status is None:
        return TablePage([], 0)
    page = page_of(list(host_rows(model, status).values()), request, ("host", "state"))
    for row in page.rows:
        _write_units(row)
    return page


def _write_units(host: Row) -> None:
    """Replace the figures of a host by texts."""
    host.update(
        cpu=percent(host["cpu"]),
        memory=size(host["memory"]),
        load=f"{host['load']:.2f}",
        **{name: size(host[name]) if host[name] else "" for name in ("available", "disk", "shared")},
        lag=duration(host["lag"]),
        silence=f"{host['silence']:.0f} s",
    )


def runners(model: MonitorModel, host: str, request: PageRequest) -> TablePage:
    """The workers of a host with what they run."""
    if model.status is None:
        return TablePage([], 0)
    status = model.status
    agents = {agent for agent, place in zip(status.agents, status.agent_hosts, strict=True) if place == host}
    workers = worker_rows(status, agents=agents)
    rows: list[Row] = [
        {
            "key": f"{worker.number}/{worker.pid}",
            "worker": worker.worker,
            "state": worker.state,
            "task": f"{task.id:x}" if task else "",
            "function": function_of(model, worker, task),
            "elapsed": task.elapsed if task else 0.0,
            "cpu": worker.cpu,
            "rss": worker.rss,
            "queued": worker.queued,
        }
        for worker, task in zip(workers, current_tasks(model, [worker.run for worker in workers]), strict=True)
    ]
    page = page_of(rows, request, ("worker",))
    for row in page.rows:
        elapsed = duration(row["elapsed"]) if row["task"] else ""
        row.update(elapsed=elapsed, cpu=percent(row["cpu"], 1), rss=size(row["rss"]))
    return page


def host_facts(model: MonitorModel, host: str) -> Facts | None:
    """What is known about a host; None if no agent of it was heard of."""
    row = host_rows(model, model.status).get(host) if model.status is not None else None
    if row is None:
        return [Fact("state", "gone")] if host in model.hosts.values() else None
    _write_units(row)
    if row["state"] != "up":
        return [Fact(name, str(row[name])) for name in ("state", "deaths", "failures")]
    return [
        *(Fact(name, str(row[name])) for name in ("state", "agents", "workers", "busy")),
        _tasks("tasks", str(row["tasks"]), host=host),
        *(Fact(name, str(row[name])) for name in ("cpu", "load", "memory")),
        Fact("free memory", row["available"]),
        Fact("free disk", row["disk"]),
        Fact("free shared memory", row["shared"]),
        Fact("lag", row["lag"]),
        Fact("last heard", row["silence"]),
        Fact("deaths", str(row["deaths"])),
        Fact("failures", str(row["failures"])),
    ]


def client_facts(model: MonitorModel, client: str) -> Facts | None:
    """What is known about the clients of this name; None if there is none."""
    status, sessions = model.status, set(sessions_of(model, client))
    if not sessions or status is None:
        return None
    connected = [
        (host, tasks)
        for session, host, tasks in zip(status.client_sessions, status.client_hosts, status.client_tasks, strict=True)
        if session in sessions
    ]
    ended = sum(count for (session, _), count in list(model.ended.items()) if session in sessions)
    return [
        Fact("state", "connected" if connected else "gone"),
        Fact("session", ", ".join(f"{session:x}" for session in sorted(sessions)[-NAMED:])),
        _most("host", "host", (host for host, _ in connected), set(model.hosts.values())),
        _tasks("tasks", f"{sum(tasks for _, tasks in connected):,}", client=client),
        Fact("seen to end", f"{ended:,}"),
    ]


def function_facts(model: MonitorModel, function: str) -> Facts | None:
    """What the calls of a function took; None if there was none."""
    figures = model.functions.get(function)
    status = model.status
    submitted = 0
    if status is not None:
        columns = zip(status.function_names, status.function_counts, strict=True)
        submitted = sum(count for name, count in columns if name == function)
    if figures is None and not submitted and not model.tasks.has_function(function):
        return None
    tasks = _tasks("tasks", f"{submitted:,}" if submitted else "some", function=function)
    if figures is None:
        return [tasks, Fact("ended", "none")]
    outcomes = [
        _tasks(word, f"{figures.ended.get(number, 0):,}", function=function, state=word)
        for number, word in OUTCOMES.items()
    ]
    ended = [tasks, Fact("ended", f"{figures.count:,}"), *outcomes]
    if not figures.runs:
        return ended
    return [
        *ended,
        Fact("mean", duration(figures.duration / figures.runs)),
        Fact("longest", duration(figures.longest)),
        Fact("cpu, in all", duration(figures.cpu)),
        Fact("transfers, in all", duration(figures.transfers)),
        Fact("peak memory", size(figures.peak_memory)),
    ]


def graph_number(model: MonitorModel, name: str) -> int:
    """The number of a graph that is named by it, or as `of:TASK` by its first task; -1 if there is none."""
    if name.startswith("of:"):
        task = read_task(name.removeprefix("of:"))
        number = model.graphs.of_task(task) if task is not None else None
    else:
        number = read_number(name)
    return -1 if number is None else number


def graph_facts(model: MonitorModel, looks: GraphLooks, graph: int) -> Facts | None:
    """How far a graph is; None if it is unknown, or too old."""
    rows = cluster_views.graphs(model, PageRequest(count=1_000_000)).rows
    row = next((row for row in rows if row["graph"] == graph), None)
    if row is None:
        return None
    return [
        Fact("state", row["state"]),
        _link("client", "client", row["client"]),
        *(Fact(name, f"{row[name]:,}") for name in ("nodes", "done", "failed", "cancelled")),
        *(Fact(name, f"{row[name]:,}") for name in ("running", "queued", "waiting")),
        Fact("progress", row["progress"]),
        Fact("begun", at=row["begun"]),
        Fact("took", row["took"]),
        *_path_facts(looks.look(graph)),
    ]


def _path_facts(look: GraphLook | None) -> Facts:
    """What took the graph its time."""
    if look is None or not look.path:
        return []
    at_once = look.seconds / look.took if look.took else 0.0
    return [
        Fact("critical path", f"{duration(look.path_seconds)}, {percent(100 * look.share)} of the time"),
        Fact("runs, in all", f"{duration(look.seconds)}, {at_once:.1f} at once"),
    ]


def failure_facts(model: MonitorModel, function: str, exception: str) -> Facts | None:
    """What is known about a group of failures; None if there is none."""
    members = failures_of(model, function, exception)
    if not members:
        return None
    return [
        _link("function", "function", function),
        Fact("exception", exception),
        Fact("count", f"{len(members):,}"),
        Fact("first", at=min(each.time for each in members)),
        Fact("last", at=max(each.time for each in members)),
        _most("hosts", "host", (model.hosts.get(each.agent, "") for each in members)),
        _most("clients", "client", (model.client_name(each.session) for each in members)),
    ]


def _most(name: str, place: str, names: Iterable[str], known: Collection[str] | None = None) -> Fact:
    """The most frequent of these names, each with a link if it is known."""
    counts = Counter(filter(None, names))
    most = [each for each, _ in counts.most_common(NAMED)]
    others = f"and {len(counts) - NAMED} more" if len(counts) > NAMED else ""
    linked = [each for each in most if known is None or each in known]
    text = ", ".join([*(each for each in most if each not in linked), *filter(None, [others])])
    return Fact(name, text, tuple((each, address(place, each)) for each in linked))
