"""Rows and formatted values of the pages for graphs, objects and capacity. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from scaler_protocol.manager_rows import manager_rows
from scaler_protocol.monitoring import MonitorStatus
from scaler_protocol.status_counts import busy_by_agent, worker_usage
from scaler_protocol.units import duration, percent, size
from scaler_protocol.waiting import WaitReasons, lacks
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.model import GroupInfo, MonitorModel
from scaler_ui.model.views import Row, TablePage, page_of


def graphs(model: MonitorModel, request: PageRequest) -> TablePage:
    """Graphs that run, and the last ones that ended."""
    status = model.status
    if status is None:
        return TablePage([], 0)
    rows: list[Row] = [
        {
            "graph": number,
            "client": model.client_name(session),
            "nodes": nodes,
            "done": done,
            "failed": failed,
            "cancelled": cancelled,
            "running": running,
            "queued": assigned - running,
            "waiting": nodes - done - failed - cancelled - assigned,
            "progress": (done + failed + cancelled) / nodes if nodes else 0.0,
            "begun": begun,
            "took": (ended or status.at) - begun,
            "state": "over" if ended else "under way",
        }
        for number, session, nodes, done, failed, cancelled, assigned, running, begun, ended in zip(
            status.graphs, status.graph_sessions, status.graph_nodes, status.graph_succeeded, status.graph_failed,
            status.graph_cancelled, status.graph_assigned, status.graph_running, status.graph_start_times,
            status.graph_end_times, strict=True,
        )
    ]  # fmt: skip
    page = page_of(rows, request, ("graph", "client", "state"))
    for row in page.rows:
        row.update(took=duration(max(0.0, row["took"])), progress=percent(100 * row["progress"]))
    return page


OBJECT_FIGURES = (
    "objects", "in memory", "memory limit", "being written", "mapped", "on disk", "spilled", "loaded back",
    "hit rate", "reads from memory", "reads from disk", "reads of unknown", "waiting for room", "refused", "recyclable",
    "on other hosts only", "copies on hosts", "hosts with objects", "fetched from hosts",
    "sessions", "connections",
)  # fmt: skip
"""Names of the numbers on the page of objects."""


def object_figures(model: MonitorModel) -> dict[str, str]:
    """Totals of the object storage server; empty if it has not answered."""
    storage = model.storage
    if storage is None:
        return {}
    reads = storage.hits + storage.misses
    return {
        "objects": f"{storage.objects:,}",
        "in memory": size(storage.bytes),
        "memory limit": size(storage.memory_limit),
        "being written": f"{storage.writing:,} ({size(storage.writing_bytes)})",
        "mapped": size(storage.pinned_bytes),
        "on disk": f"{storage.spilled:,} ({size(storage.spilled_bytes)})",
        "spilled": size(storage.spilled_bytes_total),
        "loaded back": size(storage.loaded_bytes_total),
        "hit rate": percent(100 * storage.hits / reads, 1) if reads else "no reads",
        "reads from memory": f"{storage.hits:,}",
        "reads from disk": f"{storage.misses:,}",
        "reads of unknown": f"{storage.unknown:,}",
        "waiting for room": f"{storage.waiting:,}",
        "refused": f"{storage.refused:,}",
        "recyclable": size(storage.recyclable_bytes),
        "on other hosts only": f"{storage.replicas:,} ({size(storage.replica_bytes)})",
        "copies on hosts": f"{storage.copies:,} ({size(storage.copy_bytes)})",
        "hosts with objects": f"{storage.hosts:,}",
        "fetched from hosts": size(storage.fetched_bytes_total),
        "sessions": f"{storage.sessions:,}",
        "connections": f"{storage.peers:,}",
    }


def _place(here: bool, held: bool) -> str:
    return "memory" if here else "another host" if held else "disk"


def biggest_objects(model: MonitorModel, request: PageRequest) -> TablePage:
    """The biggest objects, named by hashes of their ids."""
    storage = model.storage
    if storage is None:
        return TablePage([], 0)
    rows: list[Row] = [
        {"object": name, "client": model.client_name(session), "size": count, "where": _place(here, held)}
        for name, session, count, here, held in zip(
            storage.biggest_names, storage.biggest_sessions, storage.biggest_sizes, storage.biggest_in_memory,
            storage.biggest_remote, strict=True,
        )
    ]  # fmt: skip
    page = page_of(rows, request, ("object", "client", "where"))
    for row in page.rows:
        row["size"] = size(row["size"])
    return page


def managers(model: MonitorModel, request: PageRequest) -> TablePage:
    """Worker managers: their workers, the last decision and its reason, the last failure."""
    status = model.status
    if status is None:
        return TablePage([], 0)
    rows = [{**asdict(row), "machine": model.known_host(row.host)} for row in manager_rows(status)]
    page = page_of(rows, request, ("manager", "kind", "host"))
    for row in page.rows:
        row["maximum"] = "no limit" if row["maximum"] < 0 else f"{row['maximum']:,}"
        row["pause"] = duration(row["pause"]) if row["pause"] else ""
    return page


def capacity(model: MonitorModel, request: PageRequest) -> TablePage:
    """Workers grouped by what they offer."""
    status = model.status
    if status is None:
        return TablePage([], 0)
    rows = list(_classes(status).values())
    page = page_of(rows, request, ("offers", "runtime"))
    for row in page.rows:
        row["cpu"] = percent(row["cpu"])
        row["memory"] = size(row["memory"])
    return page


def _classes(status: MonitorStatus) -> dict[tuple[str, str], Row]:
    classes: dict[tuple[str, str], Row] = {}
    of_agent: dict[int, Row] = {}
    busy = busy_by_agent(status)
    for number, capabilities, runtime, workers, places, sent in zip(
        status.agents, status.agent_capabilities, status.agent_runtimes, status.agent_workers, status.agent_queue_sizes,
        status.agent_assigned, strict=True,
    ):  # fmt: skip
        row = of_agent[number] = classes.setdefault((capabilities, runtime), _class(capabilities, runtime))
        row["agents"] += 1
        row["workers"] += workers
        row["busy"] += busy[number]
        row["tasks"] += sent
        row["places"] += workers * places
    for number, cpu, rss in worker_usage(status):
        row = of_agent[number]
        row["cpu"] += 100 * cpu
        row["memory"] += rss
    return classes


def _class(capabilities: str, runtime: str) -> Row:
    counts = dict.fromkeys(("agents", "workers", "busy", "tasks", "places", "cpu", "memory"), 0)
    return {
        "class": f"{capabilities} {runtime}",
        "offers": capabilities or "nothing special",
        "runtime": runtime,
        **counts,
    }


def demand(model: MonitorModel, request: PageRequest) -> TablePage:
    """Waiting tasks grouped by requirement, with the number of workers that could run them."""
    status = model.status
    if status is None:
        return TablePage([], 0)
    waiting: Counter[GroupInfo] = Counter()
    for number, count in model.tasks.waiting_groups():
        group = model.groups.get(number, GroupInfo())
        waiting[GroupInfo("", 0, group.priority, group.needs, group.runtime)] += count
    rows: list[Row] = []
    reasons = WaitReasons(status)
    offered, unused = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for capabilities, runtime, workers, assigned in zip(
        status.agent_capabilities, status.agent_runtimes, status.agent_workers, status.agent_assigned, strict=True
    ):
        offered[capabilities, runtime] += workers
        unused[capabilities, runtime] += max(0, workers - assigned)
    for group, count in waiting.items():
        fit = [offer for offer in offered if not lacks(group.needs, group.runtime, *offer)]
        able, idle = sum(offered[offer] for offer in fit), sum(unused[offer] for offer in fit)
        lack = reasons.lacking(group.needs, group.runtime)
        if lack:
            why = f"no worker offers {', '.join(lack)}"
        elif not able:
            why = "no worker is connected"
        else:
            why = "others go first" if idle else "these workers are busy"
        needs = ", ".join(filter(None, (group.needs, group.runtime))) or "nothing special"
        row = {"needs": needs, "priority": group.priority, "waiting": count, "workers": able, "why": why}
        rows.append({"demand": f"{needs} {group.priority}", **row})
    return page_of(rows, request, ("needs", "why"))
