"""The tables of the pages: their columns, orders, filters and links."""

from __future__ import annotations

from scaler_ui.model import views
from scaler_ui.web.parts import TableKind

TASKS = TableKind(
    "tasks",
    {
        "id": "task", "function": "function", "state": "state", "client": "client", "agent": "agent", "pid": "process",
        "attempt": "attempt", "since": "submitted", "ended": "ended", "duration": "duration", "cpu": "cpu",
        "memory": "memory", "error": "error or reason",
    },
    key="id", order="since", choices={"state": views.TASK_STATES}, filters=("state", "function", "client", "host"),
    unsorted=("error",),
    links={
        "id": ("task", "id"), "function": ("function", "function"), "client": ("client", "client"),
        "agent": ("host", "host"), "pid": ("worker", "worker"),
    },
)  # fmt: skip
WORKERS = TableKind(
    "workers",
    {
        "worker": "worker", "agent": "agent", "host": "host", "state": "state", "task": "task", "function": "function",
        "cpu": "cpu", "rss": "memory", "free": "free", "sent": "sent", "queued": "queued", "lag": "lag", "itl": "ITL",
        "agt_cpu": "agent's cpu",
        "agt_rss": "agent's memory", "silence": "last heard", "capabilities": "offers",
    },
    key="key", order="cpu",
    links={
        "worker": ("worker", "worker"), "agent": ("host", "host"), "host": ("host", "host"), "task": ("task", "task"),
        "function": ("function", "function"),
    },
)  # fmt: skip
RUNNERS = TableKind(
    "runners",
    {
        "worker": "worker", "state": "state", "task": "task", "function": "function", "elapsed": "for", "cpu": "cpu",
        "rss": "memory", "queued": "queued",
    },
    key="key", order="elapsed", filtered=False,
    links={"worker": ("worker", "worker"), "task": ("task", "task"), "function": ("function", "function")},
)  # fmt: skip
PROGRESS = TableKind(
    "progress",
    {
        "client": "client", "function": "function", "done": "done", "finished": "ended", "open": "open",
        "left": "left",
    },
    key="key", order="seconds", filtered=False, brief=True, unsorted=("left",), bars=("done",),
    links={"client": ("client", "client"), "function": ("function", "function")},
)  # fmt: skip
LAST_FAILURES = TableKind(
    "last-failures",
    {"time": "time", "function": "function", "error": "error", "id": "task"},
    key="id", order="time", filtered=False, brief=True, unsorted=("time", "function", "error", "id"),
    links={"id": ("task", "id"), "function": ("function", "function")},
)  # fmt: skip
HOSTS = TableKind(
    "hosts",
    {
        "host": "host", "state": "state", "deaths": "deaths", "failures": "failures", "agents": "agents",
        "workers": "workers", "busy": "busy", "tasks": "tasks", "cpu": "cpu", "load": "load", "memory": "memory",
        "available": "free memory", "disk": "free disk", "shared": "free shared memory", "lag": "lag",
        "silence": "last heard",
    },
    key="host", order="deaths", links={"host": ("host", "host")},
)  # fmt: skip
CLIENTS = TableKind(
    "clients",
    {"name": "client", "session": "session", "host": "host", "tasks": "tasks"},
    key="session", order="tasks",
    links={"name": ("client", "name"), "session": ("client", "name"), "host": ("host", "machine")},
)  # fmt: skip
FUNCTIONS = TableKind(
    "functions",
    {
        "function": "function", "calls": "ended", "success": "success", "raised": "raised", "failed": "failed",
        "cancelled": "cancelled", "mean": "mean", "longest": "longest", "cpu": "cpu, in all",
        "transfers": "transfers, in all", "memory": "peak memory",
    },
    key="function", order="calls", links={"function": ("function", "function")},
)  # fmt: skip
FAILURES = TableKind(
    "failures",
    {
        "exception": "exception", "function": "function", "count": "count", "first": "first", "last": "last",
        "message": "last message",
    },
    key="group", order="last",
    links={"exception": ("failure", "function", "exception"), "function": ("function", "function")},
)  # fmt: skip
FAILED_TASKS = TableKind(
    "failed-tasks",
    {"id": "task", "time": "time", "client": "client", "host": "host", "error": "message"},
    key="id", order="time", links={"id": ("task", "id"), "client": ("client", "client"), "host": ("host", "host")},
)  # fmt: skip
GRAPHS = TableKind(
    "graphs",
    {
        "graph": "graph", "client": "client", "state": "state", "nodes": "nodes", "done": "done", "failed": "failed",
        "cancelled": "cancelled", "running": "running", "queued": "queued", "waiting": "waiting",
        "progress": "progress", "begun": "begun", "took": "took",
    },
    key="graph", order="graph", links={"graph": ("graph", "graph"), "client": ("client", "client")},
)  # fmt: skip
CRITICAL_PATH = TableKind(
    "critical-path",
    {
        "step": "step", "function": "function", "task": "task", "state": "state", "duration": "duration",
        "share": "of the graph's time",
    },
    key="task", order="duration", filtered=False,
    links={"task": ("task", "task"), "function": ("function", "function")},
)  # fmt: skip
GRAPH_FUNCTIONS = TableKind(
    "graph-functions",
    {
        "function": "function", "nodes": "nodes", "over": "ended", "running": "running", "failed": "failed",
        "seconds": "runs, in all", "longest": "longest run",
    },
    key="function", order="seconds", filtered=False, links={"function": ("function", "function")},
)  # fmt: skip
BIGGEST = TableKind(
    "biggest",
    {"object": "hash of its id", "client": "client", "size": "size", "where": "where"},
    key="object", order="size", filtered=False, links={"client": ("client", "client")},
)  # fmt: skip
CAPACITY = TableKind(
    "capacity",
    {
        "offers": "offers", "runtime": "Python", "agents": "agents", "workers": "workers", "busy": "busy",
        "tasks": "tasks", "places": "places in queues", "cpu": "cpu", "memory": "memory",
    },
    key="class", order="workers", filtered=False,
)  # fmt: skip
MANAGERS = TableKind(
    "managers",
    {
        "manager": "manager", "kind": "kind", "host": "host", "desired": "wanted", "joined": "joined",
        "starting": "starting", "draining": "draining", "maximum": "at most", "reason": "last decision",
        "failure": "last failure", "pause": "paused for",
    },
    key="manager", order="desired", filtered=False, links={"host": ("host", "machine")},
)  # fmt: skip
DEMAND = TableKind(
    "demand",
    {
        "needs": "tasks that need", "priority": "priority", "waiting": "waiting", "workers": "workers that can",
        "why": "why they wait",
    },
    key="demand", order="waiting", filtered=False,
)  # fmt: skip
HOTTEST = TableKind(
    "hottest", {"self": "in itself", "total": "with what it calls", "where": "function"},
    key="where", order="", filtered=False, unsorted=("self", "total", "where"),
)  # fmt: skip
WORKLOADS = TableKind(
    "workloads",
    {
        "workload": "workload", "function": "function", "client": "client", "begun": "begun", "last": "last end",
        "tasks": "tasks", "failures": "failures", "mean": "mean", "change": "change", "p50": "p50", "p95": "p95",
        "wait": "mean wait", "cpu": "mean cpu",
    },
    key="workload", order="last",
    links={"workload": ("workload", "workload"), "function": ("function", "function"), "client": ("client", "client")},
)  # fmt: skip
OTHER_WORKLOADS = TableKind(
    "other-workloads",
    {"compared": "workload", **{name: title for name, title in WORKLOADS.columns.items() if name != "workload"}},
    key="workload", order="last", filtered=False,
    links={"compared": ("workload", "shown", "workload"), "client": ("client", "client")},
)  # fmt: skip
COMPARISON = TableKind(
    "comparison", {"name": "figure", "this": "this", "other": "the other", "change": "change"},
    key="name", order="", filtered=False, unsorted=("name", "this", "other", "change"),
)  # fmt: skip
EVENTS = TableKind(
    "events",
    {
        "time": "time", "kind": "kind", "level": "level", "task": "task", "host": "host", "client": "client",
        "text": "what happened",
    },
    key="number", order="time", choices={"kind": tuple(views.EVENT_KINDS.values())}, filters=("kind",),
    links={"task": ("task", "task"), "host": ("host", "host"), "client": ("client", "client")},
)  # fmt: skip
