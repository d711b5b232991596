"""Dump: who waits for what, and why, as values for JSON. Pure, and bounded in work and size whatever the tables hold.

Every list has at most a fixed number of rows, and says how many it leaves out. No list of all tasks is walked: totals
come from the counters of the core, details from the oldest tasks of the largest sessions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from heapq import nlargest, nsmallest
from itertools import chain, islice
from typing import Any

from scaler_io.links.link_record import LinkFigures
from scaler_protocol.handshake import SESSION_CREDIT
from scaler_protocol.limits import shortened
from scaler_protocol.manager_rows import manager_rows
from scaler_protocol.monitoring import MonitorStatus
from scaler_protocol.ranges import Text
from scaler_protocol.waiting import WaitReasons
from scaler_scheduler.core.event_log import capability_text
from scaler_scheduler.core.exclusive import is_reserved
from scaler_scheduler.core.function_record import FunctionRecord
from scaler_scheduler.core.graph_record import GraphRecord
from scaler_scheduler.core.manager_record import ManagerRecord
from scaler_scheduler.core.records import AgentRecord, HeldNodes, LaneRecord, TaskBlock, TaskEntry, TaskRecord
from scaler_scheduler.core.snapshot import ProcessStats, monitor_status
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_states import DONE, GONE, HELD, SECOND, TaskState
from scaler_scheduler.requirements import WorkerClass, describe_runtime

SESSIONS = 100
"""Rows: the sessions with most tasks."""
AGENTS = 500
"""Rows: the agents that have not reported for longest."""
MANAGERS = 100
LANES = 100
"""Rows: the lanes that were not served for longest."""
LANES_LOOKED = 10_000
"""Lanes looked at."""
TASKS_LOOKED = 10_000
"""Tasks looked at, the oldest ones of each listed session."""
HELD_TASKS = 100
"""Rows for each reason."""
PARENTS = 100
CHILDREN_LOOKED = 1000
"""Children of each blocked parent looked at."""
AWAITED = 8
"""Most tasks, functions or priorities that one row waits for."""
GRAPHS = 100
"""Rows: the oldest graphs that have not ended."""
FUNCTIONS = 100
"""Rows: functions whose bytes are missing, then those used last."""
LINKS = 100
"""Rows: broken links first, then those with most bytes that wait for the peer."""
TEXT = Text(256)
"""The limit of a name in a row."""
SENTENCE = Text(1000)
"""The limit of a sentence in a row."""

Row = dict[str, Any]


def dump(
    state: SchedulerState,
    stats: ProcessStats,
    links: Sequence[LinkFigures],
    now: float,
    managers: Iterable[ManagerRecord] = (),
) -> dict[str, Row]:
    """Sections by name; those with `rows` also have `left_out`. Times in seconds, tasks by their ids in hexadecimal."""
    status = monitor_status(state, stats, now, managers=managers)
    sessions, held = _sessions(state)
    return {
        "scheduler": {
            "address": stats.address,
            "incarnation": f"{state.incarnation:x}",
            "at": round(stats.at, 3),
            "uptime": _rounded(stats.uptime),
            "cpu": _rounded(stats.cpu),
            "rss": stats.rss,
        },
        "tasks": {
            "submitted": state.event_log.submitted,
            **{
                name: getattr(status, name) for name in ("waiting", "held", "assigned", "succeeded", "raised", "failed")
            },
            **{name: getattr(status, name) for name in ("cancelled", "lost_runs")},
        },
        "sessions": sessions,
        "agents": _agents(state, stats, now),
        "managers": _managers(status),
        "lanes": _lanes(state, WaitReasons(status), now),
        "held": _held(state, held, status.held),
        "blocked_parents": _blocked_parents(state),
        "graphs": _graphs(state, now),
        "functions": _functions(state),
        "links": _links(stats, links),
    }


def _section(rows: list[Row], total: int, **more: Any) -> Row:
    return {**more, "left_out": total - len(rows), "rows": rows}


def _rounded(seconds: float) -> float:
    return round(seconds, 3)


def _name(text: str) -> str:
    return text if len(text) < TEXT.most // 4 else shortened(text, TEXT)


def _agent_name(agent: AgentRecord | None) -> str:
    return _name(agent.name or agent.host) if agent is not None else ""


# --- sessions and tasks ---------------------------------------------------------------------------------------------


def _sessions(state: SchedulerState) -> tuple[Row, dict[str, list[Row]]]:
    """The section, and the rows of HELD tasks found, by reason."""
    largest = nlargest(SESSIONS, state.sessions.values(), key=lambda session: len(session.tasks))
    share = TASKS_LOOKED // max(1, len(largest))
    held: dict[str, list[Row]] = {"inputs": [], "call": [], "suspect": [], "exclusive": [], "pinned": []}
    held["function_bytes"] = []
    rows: list[Row] = []
    for session in largest:
        counts, size = [0] * len(TaskState), 0
        for number, task in islice(session.tasks.items(), share):
            counts[task.state] += 1
            size += _call_bytes(number, task)
            is_shown = task.state == HELD and len(held[reason := _why_held(state, task)]) < HELD_TASKS
            if is_shown and (record := session.find(number)) is not None:
                held[reason].append(_held_row(state, record, reason))
        rows.append(
            {
                "session": f"{session.number:x}",
                "name": _name(session.name),
                "host": _name(session.host),
                "nested": session.nested,
                "tasks": len(session.tasks),
                "waiting_in_lanes": session.waiting,
                "graphs": len(session.graphs),
                "looked_at": sum(counts),
                **{kind.name.lower(): counts[kind] for kind in TaskState if kind not in (GONE, SECOND)},
                "call_bytes": size,
                "credit_bytes": SESSION_CREDIT,
                "task_bytes": session.task_bytes,
                "task_bytes_limit": state.config.max_session_bytes,
            }
        )
    return _section(rows, len(state.sessions)), held


def _call_bytes(number: int, task: TaskEntry) -> int:
    if isinstance(task, HeldNodes):
        return len(task.columns.calls[number - task.columns.first])
    return task.call_bytes // len(task) if isinstance(task, TaskBlock) else task.call_bytes


def _why_held(state: SchedulerState, task: TaskEntry) -> str:
    extra = task.extra
    if isinstance(task, HeldNodes) or (extra is not None and extra.missing_inputs):
        return "inputs"
    if task.group.lane.calls_missing:
        return "call"
    if extra is not None and extra.is_apart:
        return "exclusive" if extra.is_exclusive else "suspect"
    if task in state.pinned:
        return "pinned"
    return "function_bytes"


def _held_row(state: SchedulerState, task: TaskRecord, reason: str) -> Row:
    row: Row = {"reason": reason, **_task(state, task.id)}
    if reason == "inputs":
        missing = [need for need, value in islice(task.more().inputs.items(), CHILDREN_LOOKED) if value is None]
        row["missing_inputs"] = task.more().missing_inputs
        row["waits_for"] = [_task(state, need) for need in missing[:AWAITED]]
    elif reason == "function_bytes":
        row["waits_for"] = [_name(function.name) or function.id.hex() for function in _undefined(task)]
    return row


def _undefined(task: TaskRecord) -> list[FunctionRecord]:
    functions = (task.group.function, task.group.serializer)
    return [function for function in functions if function is not None and function.body is None]


def _task(state: SchedulerState, task: int) -> Row:
    """A task: its state, what it calls, and its agent; a task that is not known here is one that the client has."""
    record = state.find(task)
    if record is None:
        return {"task": f"{task:x}", "state": "unknown"}
    function = record.group.function
    row = {
        "task": f"{task:x}",
        "state": TaskState(record.state).name.lower(),
        "function": _name(function.name) or function.id.hex(),
    }
    if record.agent is not None and record.state in (TaskState.ASSIGNED, DONE):
        row["agent"] = _agent_name(record.agent)
    return row


def _held(state: SchedulerState, found: dict[str, list[Row]], total: int) -> Row:
    for_functions = sum(
        len(function.waiting_tasks.get(session.number, ()))
        for session in state.sessions.values()
        for function in session.missing_functions
    )
    counts = {
        "suspect": sum(1 for _ in state.suspects),
        "exclusive": len(state.exclusive),
        "pinned": sum(1 for _ in state.pinned),
        "function_bytes": min(for_functions, total),  # cancelled ones are counted until the bytes arrive
    }
    counts["inputs_or_call"] = max(0, total - sum(counts.values()))
    rows = [row for rows in found.values() for row in rows]
    return {**_section(rows, max(total, len(rows))), "total": total, "counts": counts}


def _blocked_parents(state: SchedulerState) -> Row:
    """Runs that wait for nested tasks, each with those of them that have not ended."""
    blocked = ((agent, run) for agent in state.agents.values() for run in agent.blocked)
    rows: list[Row] = []
    for agent, run in islice(blocked, PARENTS):
        task = agent.runs[run]
        children = (task.notes.children if task.notes is not None else None) or []
        open_children = [child for child in islice(children, CHILDREN_LOOKED) if _is_open(state, child)]
        rows.append(
            {
                **_task(state, task.id),
                "children": len(children),
                "looked_at": min(len(children), CHILDREN_LOOKED),
                "open": len(open_children),
                "waits_for": [_task(state, child) for child in open_children[:AWAITED]],
            }
        )
    return _section(rows, sum(len(agent.blocked) for agent in state.agents.values()))


def _is_open(state: SchedulerState, task: int) -> bool:
    record = state.find(task)
    return record is not None and record.state not in (DONE, GONE)


# --- agents and worker managers -------------------------------------------------------------------------------------


def _agents(state: SchedulerState, stats: ProcessStats, now: float) -> Row:
    agents: Collection[AgentRecord] = state.agents.values()
    if len(state.agents) > AGENTS:
        agents = nsmallest(AGENTS, agents, key=lambda agent: agent.reported_at)
    offers = {agent.worker_class: _offer(agent.worker_class) for agent in agents}
    return _section([_agent(agent, offers, stats, now) for agent in agents], len(state.agents))


def _offer(worker_class: WorkerClass) -> Row:
    runtime = worker_class.runtime
    return {
        "capabilities": _name(capability_text(worker_class.capabilities)),
        "runtime": describe_runtime(runtime) if runtime else "",
    }


def _agent(agent: AgentRecord, offers: dict[WorkerClass, Row], stats: ProcessStats, now: float) -> Row:
    reserved = agent.reserved_for
    return {
        "agent": agent.number,
        "name": _name(agent.name),
        "host": _name(agent.host),
        "manager": _name(agent.manager),
        "unit": _name(agent.unit),
        **offers[agent.worker_class],
        "workers": agent.workers,
        "runs": len(agent.runs),
        "running": len(agent.running),
        "queued": agent.status.queued if agent.status is not None else 0,
        "blocked": len(agent.blocked),
        "window": agent.window,
        "load": _rounded(agent.load),
        "draining": agent.is_draining,
        "resuming": agent.resuming,
        "recalling": agent.recalling,
        "report_age": _rounded(now - agent.reported_at) if agent.status is not None else None,
        "round_trip": round(stats.lag(agent.peer), 6),
        "reserved_for": f"{reserved.id:x}" if reserved is not None and is_reserved(agent) else "",
        "suspect": f"{agent.suspect.id:x}" if agent.suspect is not None else "",
    }


def _managers(status: MonitorStatus) -> Row:
    managers = manager_rows(status)
    rows = [
        {
            **asdict(manager),
            "reason": shortened(manager.reason, SENTENCE),
            "failure": shortened(manager.failure, SENTENCE),
        }
        for manager in managers[:MANAGERS]
    ]
    return _section(rows, len(managers))


# --- lanes ----------------------------------------------------------------------------------------------------------


def _lanes(state: SchedulerState, reasons: WaitReasons, now: float) -> Row:
    looked = list(islice(state.waiting.lanes(), LANES_LOOKED))
    filled = [lane for lane in looked if lane.size > lane.tombstones]
    listed = nsmallest(LANES, filled, key=lambda lane: lane.since)
    wanted, rows = set(listed), dict[LaneRecord, Row]()
    for lane, ahead in _in_order(filled):
        if lane in wanted:
            rows[lane] = _lane(lane, ahead, reasons, now)
    return _section([rows[lane] for lane in listed], len(filled), looked_at=len(looked))


def _in_order(lanes: list[LaneRecord]) -> Iterator[tuple[LaneRecord, dict[int, int]]]:
    """Each lane with the number of tasks that go first, by priority, in the order in which lanes take turns."""
    ahead: dict[int, int] = {}
    for lane in sorted(
        lanes, key=lambda lane: (-lane.priority, lane.session.served, -lane.depth, lane.first.id, id(lane))
    ):
        yield lane, ahead
        ahead[lane.priority] = ahead.get(lane.priority, 0) + lane.size - lane.tombstones


def _lane(lane: LaneRecord, ahead: dict[int, int], reasons: WaitReasons, now: float) -> Row:
    needs = capability_text(lane.requirement.capabilities)
    runtime = describe_runtime(lane.requirement.runtime) if lane.requirement.runtime else ""
    why = reasons.why_waiting(needs, runtime, list(islice(ahead.items(), AWAITED)))
    return {
        "session": f"{lane.session.number:x}",
        "priority": lane.priority,
        "depth": lane.depth,
        "needs": _name(needs),
        "runtime": runtime,
        "agent": _agent_name(lane.agent),
        "waiting": lane.size - lane.tombstones,
        "ahead": sum(ahead.values()),
        "not_served_for": _rounded(now - lane.since),
        "first_task": f"{lane.first.id:x}",
        "why": [shortened(sentence, SENTENCE) for sentence in why[:AWAITED]],
    }


# --- graphs, functions, links ---------------------------------------------------------------------------------------


def _graphs(state: SchedulerState, now: float) -> Row:
    total = sum(len(session.graphs) for session in state.sessions.values())
    living = (graph for session in state.sessions.values() for graph in session.graphs.values())
    oldest = nsmallest(GRAPHS, living, key=lambda graph: graph.begun)
    return _section([_graph(graph, now) for graph in oldest], total, ended=state.graphs_ended)


def _graph(graph: GraphRecord, now: float) -> Row:
    counts = list(islice(graph.counts.items(), CHILDREN_LOOKED))
    functions = [
        {"function": _name(function.name) or function.id.hex(), **asdict(nodes)}
        for function, nodes in counts
        if nodes.submitted > nodes.done + nodes.failed + nodes.cancelled
    ]
    return {
        "graph": graph.number,
        "session": f"{graph.session:x}",
        "first_task": f"{graph.first:x}",
        "nodes": graph.size,
        "open": graph.open,
        "age": _rounded(now - graph.begun),
        "open_functions": functions[:AWAITED],
        "open_functions_left_out": len(functions[AWAITED:]),
    }


def _functions(state: SchedulerState) -> Row:
    missing = (function for session in state.sessions.values() for function in session.missing_functions)
    listed = dict.fromkeys(islice(chain(missing, state.functions.latest()), 2 * FUNCTIONS))
    rows = [
        {
            "function": function.id.hex(),
            "name": _name(function.name),
            "submitted": function.submitted,
            "mean_seconds": None if function.seconds is None else round(function.seconds, 9),
            "body_bytes": None if function.body is None else len(function.body),
            "sessions": len(function.sessions),
            "agents_asking": len(function.asking),
            "tasks_held": sum(len(tasks) for tasks in function.waiting_tasks.values()),
        }
        for function in islice(listed, FUNCTIONS)
    ]
    return _section(rows, len(state.functions))


def _links(stats: ProcessStats, links: Sequence[LinkFigures]) -> Row:
    worst = nlargest(LINKS, links, key=lambda link: (link.broken, link.kept, link.unread, link.silent))
    return _section(
        [_link(link) for link in worst],
        len(links),
        broken=sum(link.broken for link in links),
        kept=sum(link.kept for link in links),
        unread=sum(link.unread for link in links),
        sent=dict(stats.sent),
        received=dict(stats.received),
    )


def _link(link: LinkFigures) -> Row:
    return {
        "name": _name(link.name),
        "host": _name(link.host),
        "role": link.role,
        "silent": _rounded(link.silent),
        "broken": link.broken,
        "kept": link.kept,
        "unread": link.unread,
        "round_trip": round(link.round_trip, 6),
    }
