"""The content of screens as plain fields, for the terminal, for `--json` and for pages. Pure.

Fractions of CPU are in percent of a core, memory in bytes, lag in seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from heapq import merge
from operator import attrgetter
from typing import Any, NamedTuple

from scaler_protocol import status_counts
from scaler_protocol.ids import worker_name
from scaler_protocol.manager_rows import manager_rows
from scaler_protocol.messages import WorkerState
from scaler_protocol.monitoring import EventKind, MonitorStatus
from scaler_ui.model.findings import findings
from scaler_ui.model.host_rows import host_rows
from scaler_ui.model.model import IN_TASK, MonitorEvent, MonitorModel, stale_report_seconds

EVENTS_SHOWN = 20
"""Events of each kind."""
STATE_WORDS = {
    WorkerState.STARTING: "starting",
    WorkerState.IDLE: "idle",
    WorkerState.RUNNING: "running",
    WorkerState.BLOCKED: "blocked",
    WorkerState.STOPPING: "stopping",
    WorkerState.DRAINING: "draining",
}


class WorkerRow(NamedTuple):
    """One worker. `agt_…`, `lag` and `silence` are of its agent; `itl`: it is up, has a task, and the task waits."""

    worker: str
    agent: str
    host: str
    pid: int
    name: str
    """What its agent's log calls it."""
    state: str
    agt_cpu: float
    agt_rss: int
    cpu: float
    rss: int
    free: int
    sent: int
    queued: int
    lag: float
    itl: str
    silence: float
    """Seconds since the last report of the agent."""
    stale: bool
    run: int
    capabilities: str
    number: int


class TaskOnWorker(NamedTuple):
    """A task that a worker runs, and for how many seconds."""

    id: int
    function: str
    elapsed: float


def worker_rows(status: MonitorStatus, quiet: float = 0.0, agents: Collection[int] | None = None) -> list[WorkerRow]:
    """All workers, or those of these agents; the status is `quiet` seconds old."""
    places = {number: place for place, number in enumerate(status.agents)}
    stale = stale_report_seconds(status)
    starting, blocked, draining = WorkerState.STARTING, WorkerState.BLOCKED, WorkerState.DRAINING
    with_task = frozenset((WorkerState.RUNNING, blocked))
    rows = []
    for agent, name, pid, state, run, cpu, rss, queued in zip(
        status.worker_agents, status.worker_names, status.worker_pids, status.worker_states, status.worker_runs,
        status.worker_cpus, status.worker_rsses, status.worker_queues, strict=True,
    ):  # fmt: skip
        if agents is not None and agent not in agents:
            continue
        at = places[agent]
        has_task = state in with_task or (state == draining and run != 0)
        silence = status.agent_status_ages[at] + quiet
        rows.append(
            WorkerRow(
                worker=worker_name(status.agent_names[at], pid),
                name=name,
                agent=status.agent_names[at],
                host=status.agent_hosts[at],
                pid=pid,
                state=STATE_WORDS.get(state, str(state)),
                agt_cpu=100 * status.agent_cpus[at],
                agt_rss=status.agent_rsses[at],
                cpu=100 * cpu,
                rss=rss,
                free=max(0, status.agent_queue_sizes[at] - queued - has_task),
                sent=queued + has_task,
                queued=queued,
                lag=status.agent_round_trips[at],
                itl=f"{state != starting:d}{has_task:d}{state == blocked:d}",
                silence=silence,
                stale=silence > stale,
                run=run,
                capabilities=status.agent_capabilities[at],
                number=agent,
            )
        )
    return rows


def task_counts(status: MonitorStatus) -> dict[str, int]:
    """The number of tasks by state or outcome."""
    return {
        "waiting": status.waiting,
        "held": status.held,
        "queued": status_counts.queued(status),
        "running": status_counts.running(status),
        "success": status.succeeded,
        "failed": status.raised + status.failed,
        "cancelled": status.cancelled,
        "not_found": status.not_found,
    }


def client_tasks(status: MonitorStatus) -> dict[str, int]:
    """Unreleased tasks of clients, and of tasks that submit tasks, by name."""
    counts: dict[str, int] = {}
    for name, count in zip(status.client_names, status.client_tasks, strict=True):
        counts[name or IN_TASK] = counts.get(name or IN_TASK, 0) + count
    return counts


def fields(model: MonitorModel, now: float) -> dict[str, Any]:
    """All content of the screen; empty if there is no status."""
    status = model.status
    if status is None:
        return {}
    quiet = now - model.heard
    workers = worker_rows(status, quiet)
    tasks = current_tasks(model, [worker.run for worker in workers])
    return {
        "address": status.address,
        "time": status.at,
        "findings": [
            {"severity": finding.severity.name.lower(), "text": finding.text, "subject": finding.subject}
            for finding in findings(model, now)
        ],
        "stale": model.is_stale(now),
        "quiet": quiet,
        "scheduler": {"cpu": 100 * status.cpu, "rss": status.rss, "uptime": status.uptime},
        "task_manager": task_counts(status),
        "scheduler_sent": dict(sorted(zip(status.sent_names, status.sent_counts, strict=True), key=_most)),
        "scheduler_received": dict(sorted(zip(status.received_names, status.received_counts, strict=True), key=_most)),
        "total": {
            "workers": status_counts.workers(status),
            "busy": status_counts.busy_workers(status),
            "processes": len(workers) + status_counts.unlisted_workers(status),
            "agents": len(status.agents),
            "agt_cpu": 100 * sum(status.agent_cpus),
            "agt_rss": sum(status.agent_rsses),
            "cpu": 100 * status_counts.worker_cpu(status),
            "rss": status_counts.worker_rss(status),
            "sent": sum(status.agent_assigned),
            "queued": sum(status.agent_queued) + sum(status.worker_queues),
        },
        "hosts": list(host_rows(model, status).values()),
        "workers": [
            {**worker._asdict(), "function": function_of(model, worker, task), "elapsed": task.elapsed if task else 0.0}
            for worker, task in zip(workers, tasks, strict=True)
        ],
        "managers": [asdict(manager) for manager in manager_rows(status)],
        "client_manager": client_tasks(status),
        "func_to_num_tasks": _function_counts(status),
        "events": [asdict(event) for event in _last_of_each_kind(model.events)],
    }


def _last_of_each_kind(events: Iterable[MonitorEvent]) -> Iterable[MonitorEvent]:
    """The last EVENTS_SHOWN events of each kind, in order; failures of tasks have a table of their own."""
    kinds: dict[int, deque[MonitorEvent]] = {}
    for event in events:
        if event.kind != EventKind.FAILURE:
            kinds.setdefault(event.kind, deque(maxlen=EVENTS_SHOWN)).append(event)
    return merge(*kinds.values(), key=attrgetter("time"))


def current_tasks(model: MonitorModel, runs: Sequence[int]) -> list[TaskOnWorker | None]:
    """The tasks of these runs, as far as they are known."""
    tasks, places = model.tasks, model.tasks.runs()
    rows = [places[run] for run in runs if run in places]
    seconds = [micros / 1e6 for micros in tasks.values("duration", rows)]
    found = map(TaskOnWorker, tasks.values("id", rows), tasks.function_names(rows), seconds)
    return [next(found) if run in places else None for run in runs]


def function_of(model: MonitorModel, worker: WorkerRow, task: TaskOnWorker | None) -> str:
    """The function that a worker runs; of tasks that have ended since its host reported them, that of the last one."""
    if task is not None:
        return task.function
    return model.last_functions.get((worker.number, worker.pid), "") if worker.run else ""


def _most(entry: tuple[str, int]) -> int:
    return -entry[1]


def _function_counts(status: MonitorStatus) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, count in zip(status.function_names, status.function_counts, strict=True):
        counts[name] = counts.get(name, 0) + count
    return counts


def task_of_run(model: MonitorModel, run: int) -> int | None:
    """The row of the task of this run, if the task has not ended."""
    return model.tasks.find_run(run) if run else None
