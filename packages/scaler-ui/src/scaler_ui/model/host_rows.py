"""The figures of each host. Pure."""

from __future__ import annotations

from typing import Any

from scaler_protocol.monitoring import EventKind, MonitorStatus
from scaler_protocol.status_counts import busy_by_agent, worker_usage
from scaler_ui.model.findings import RECENT_SECONDS
from scaler_ui.model.model import MonitorModel


def host_rows(model: MonitorModel, status: MonitorStatus) -> dict[str, dict[str, Any]]:
    """Hosts with agents, and those that were lost lately, by name: counts, percent of a core, bytes, seconds."""
    found: dict[str, dict[str, Any]] = {}
    of_agent: dict[int, dict[str, Any]] = {}
    busy = busy_by_agent(status)
    for number, host, workers, assigned, free, load, disk, shared, lag, age in zip(
        status.agents, status.agent_hosts, status.agent_workers, status.agent_assigned, status.agent_free,
        status.agent_loads, status.agent_disks_free, status.agent_shared_free, status.agent_round_trips,
        status.agent_status_ages, strict=True,
    ):  # fmt: skip
        row = of_agent[number] = found.setdefault(host, _host(host, "up"))
        row["agents"] += 1
        row["workers"] += workers
        row["busy"] += busy[number]
        row["tasks"] += assigned
        row.update(available=free, load=load, disk=disk, shared=shared)
        row["lag"], row["silence"] = max(lag, row["lag"]), max(age, row["silence"])
    for number, cpu, rss in worker_usage(status):
        row = of_agent[number]
        row["cpu"] += 100 * cpu
        row["memory"] += rss
    since = status.at - RECENT_SECONDS
    for event in model.events:
        if event.time > since and event.kind in (EventKind.WORKER, EventKind.AGENT) and event.subject:
            row = found.setdefault(event.subject, _host(event.subject, "unknown"))
            row["deaths"] += event.kind == EventKind.WORKER
            if event.kind == EventKind.AGENT and row["state"] == "unknown":  # else it is behind a relay
                row["state"] = "gone"
    for failure in list(model.failures.values()):
        if failure.time > since and (host := model.hosts.get(failure.agent)):
            found.setdefault(host, _host(host, "gone"))["failures"] += 1
    return found


def _host(name: str, state: str) -> dict[str, Any]:
    counts = (
        "agents", "workers", "busy", "tasks", "cpu", "memory", "available", "disk", "shared", "deaths", "failures",
    )  # fmt: skip
    return {"host": name, "state": state, **dict.fromkeys(counts, 0), "load": 0.0, "lag": 0.0, "silence": 0.0}
