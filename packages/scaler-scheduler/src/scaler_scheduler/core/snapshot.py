"""Snapshot: the scheduler, its clients, agents, workers, functions and graphs as one MonitorStatus. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import accumulate, chain, islice, repeat
from typing import Any, TypeVar

from scaler_protocol.capacity import ManagerStatus
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import COUNT
from scaler_protocol.messages import AgentStatus, Status
from scaler_protocol.monitoring import DURATION_BOUNDS, MonitorStatus
from scaler_scheduler.core.agent_reports import WORKERS, worker_sums
from scaler_scheduler.core.event_log import EventLog, capability_text
from scaler_scheduler.core.exclusive import is_reserved
from scaler_scheduler.core.graph_record import GraphRecord
from scaler_scheduler.core.manager_record import ManagerRecord
from scaler_scheduler.core.records import AgentRecord, SessionRecord
from scaler_scheduler.core.shares import shortage
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_states import ASSIGNED
from scaler_scheduler.requirements import describe_runtime

T = TypeVar("T")
FUNCTIONS = 256
"""Most functions reported: those used last."""
SESSIONS = 256
"""Most sessions reported: those with most tasks. One more entry has the sums of the others."""
REQUIREMENTS = 256
"""Most sets of capabilities that waiting tasks are counted by: those that most tasks need."""
GRAPHS = 256
"""Most graphs reported: those that began last. One more entry has the sums of the others."""
_NO_STATUS = AgentStatus()
_BYTES_MOST = 2**64 - 1
"""What a column can hold: agents report what they like."""


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """Measurements of the shell: address, Unix time, uptime in seconds, CPU in cores, bytes, messages, links."""

    address: str
    at: float
    uptime: float
    cpu: float
    rss: int
    sent: Mapping[str, int] = field(default_factory=dict)
    received: Mapping[str, int] = field(default_factory=dict)
    lag: Callable[[bytes], float] = lambda peer: 0.0
    """Round trip to a peer in seconds, at the last heartbeat."""
    heartbeat_seconds: float = 0.0
    """The interval of heartbeats to each peer."""
    cpu_seconds: float = 0.0
    """CPU time of the process since its start."""


def monitor_status(
    state: SchedulerState,
    stats: ProcessStats,
    now: float,
    *,
    snapshot: bool = False,
    managers: Iterable[ManagerRecord] = (),
) -> MonitorStatus:
    """The status at `now`; `snapshot` marks the first status of a new subscriber."""
    event_log = state.event_log
    agents = list(state.agents.values())
    assigned = state.count_assigned()
    return MonitorStatus(
        state.incarnation,
        stats.at,
        address=stats.address,
        refusal=state.refusal,
        snapshot=snapshot,
        uptime=stats.uptime,
        cpu=stats.cpu,
        rss=stats.rss,
        heartbeat_seconds=stats.heartbeat_seconds,
        cpu_seconds=stats.cpu_seconds,
        waiting=state.waiting.count,
        held=event_log.unfinished - state.waiting.count - assigned,
        exclusive=len(state.exclusive),
        reserved_agents=[agent.number for agent in agents if is_reserved(agent)],
        assigned=assigned,
        succeeded=event_log.ended[Status.VALUE],
        raised=event_log.ended[Status.RAISED],
        failed=event_log.ended[Status.FAILED],
        cancelled=event_log.ended[Status.CANCELLED],
        not_found=event_log.not_found,
        lost_runs=event_log.lost_runs,
        sent_names=list(stats.sent),
        sent_counts=list(stats.sent.values()),
        received_names=list(stats.received),
        received_counts=list(stats.received.values()),
        **_clients(state),
        **_agents(agents, stats.lag, now),
        **_workers(agents, now if snapshot else None),
        **_functions(state),
        **_waiting(state),
        **_durations(event_log),
        **_graphs(state, stats.at - now),
        **_managers([(manager, manager.status) for manager in managers if manager.status is not None]),
    )


def _managers(managers: Sequence[tuple[ManagerRecord, ManagerStatus]]) -> dict[str, Any]:
    offers = [(manager, offered) for manager, _ in managers for offered in manager.worker_classes]
    return {
        "managers": [manager.id for manager, _ in managers],
        "manager_kinds": [status.kind for _, status in managers],
        "manager_hosts": [manager.host for manager, _ in managers],
        "manager_maximums": [status.maximum for _, status in managers],
        "manager_desired": [
            sum(manager.desired) if manager.desired else manager.joined + manager.starting for manager, _ in managers
        ],
        "manager_joined": [manager.joined for manager, _ in managers],
        "manager_starting": [manager.starting for manager, _ in managers],
        "manager_draining": [manager.draining for manager, _ in managers],
        "manager_reasons": [manager.reason for manager, _ in managers],
        "manager_failures": [status.failure for _, status in managers],
        "manager_pauses": [status.paused_seconds for _, status in managers],
        "offer_managers": [manager.id for manager, _ in offers],
        "offer_capabilities": [capability_text(offered.capabilities) for _, offered in offers],
        "offer_runtimes": [describe_runtime(offered.runtime) if offered.runtime else "" for _, offered in offers],
    }


def _clients(state: SchedulerState) -> dict[str, Any]:
    sessions, others = list(state.sessions.values()), list[SessionRecord]()
    if len(sessions) > SESSIONS:
        sessions.sort(key=lambda session: -len(session.tasks))
        sessions, others = sessions[:SESSIONS], sessions[SESSIONS:]
    rest = [f"{len(others):,} others"] if others else []
    return {
        "sessions": len(sessions) + len(others),
        "client_sessions": [*(session.number for session in sessions), *(0 for _ in rest)],
        "client_names": [*(session.name for session in sessions), *rest],
        "client_hosts": [*(session.host for session in sessions), *("" for _ in rest)],
        "client_tasks": [
            *(len(session.tasks) for session in sessions),
            *(sum(len(session.tasks) for session in others) for _ in rest),
        ],
    }


def _agents(agents: list[AgentRecord], lag: Callable[[bytes], float], now: float) -> dict[str, Any]:
    statuses = [agent.status or _NO_STATUS for agent in agents]
    runtimes = [agent.worker_class.runtime for agent in agents]
    return {
        "agents": [agent.number for agent in agents],
        "agent_names": [agent.name for agent in agents],
        "agent_hosts": [agent.host for agent in agents],
        "agent_workers": [agent.workers for agent in agents],
        "agent_queue_sizes": [agent.queue_size for agent in agents],
        "agent_capabilities": [capability_text(agent.worker_class.capabilities) for agent in agents],
        "agent_runtimes": [describe_runtime(runtime) if runtime else "" for runtime in runtimes],
        "agent_cpus": [status.cpu for status in statuses],
        "agent_rsses": [status.rss for status in statuses],
        "agent_free": [status.free for status in statuses],
        "agent_assigned": [len(agent.runs) for agent in agents],
        "agent_queued": [status.queued for status in statuses],
        "agent_round_trips": [lag(agent.peer) for agent in agents],
        "agent_status_ages": [max(0.0, now - agent.reported_at) for agent in agents],
        "agent_managers": [agent.manager for agent in agents],
        "agent_units": [agent.unit for agent in agents],
        "agent_draining": [agent.is_draining for agent in agents],
        "agent_loads": [status.load for status in statuses],
        "agent_disks_free": [status.disk_free for status in statuses],
        "agent_shared_free": [status.shared_free for status in statuses],
    }


def _workers(agents: list[AgentRecord], now: float | None) -> dict[str, Any]:
    """The workers, with a time also since when each has its run; of agents with too many the sums."""
    told = [(agent, agent.status) for agent in agents if agent.status is not None]
    unlisted = [(agent, agent.sums) for agent, status in told if agent.sums is not None and not status.names]
    if sum(len(status.names) for _, status in told) > WORKERS:
        told.sort(key=lambda report: len(report[1].names))
        ends = accumulate(len(status.names) for _, status in told)
        listed = sum(end <= WORKERS for end in ends)
        unlisted += [(agent, agent.sums or worker_sums(status)) for agent, status in told[listed:] if status.names]
        told = told[:listed]
    return {
        "unlisted_agents": [agent.number for agent, _ in unlisted],
        "unlisted_running": [sums.running for _, sums in unlisted],
        "unlisted_busy": [sums.busy for _, sums in unlisted],
        "unlisted_blocked": [sums.blocked for _, sums in unlisted],
        "unlisted_cpus": [sums.cpu for _, sums in unlisted],
        "unlisted_rsses": [sums.rss for _, sums in unlisted],
        "worker_agents": _joined(repeat(agent.number, len(status.names)) for agent, status in told),
        "worker_names": _joined(status.names for _, status in told),
        "worker_pids": _joined(status.pids for _, status in told),
        "worker_states": _joined(status.states for _, status in told),
        "worker_runs": _joined(status.runs for _, status in told),
        "worker_cpus": _joined(status.cpus for _, status in told),
        "worker_rsses": _joined(status.rsses for _, status in told),
        "worker_seconds": []
        if now is None
        else [now - agent.running.get(run, now) for agent, status in told for run in status.runs],
        "worker_queues": _joined(status.queues for _, status in told),
    }


def _joined(columns: Iterable[Iterable[T]]) -> list[T]:
    return list(chain.from_iterable(columns))


def _functions(state: SchedulerState) -> dict[str, Any]:
    functions = [function for function in islice(state.functions.latest(), FUNCTIONS) if function.submitted]
    return {
        "function_names": [function.name for function in functions],
        "function_counts": [function.submitted for function in functions],
        "function_seconds": [function.seconds or 0.0 for function in functions],
        "function_runs": [function.runs for function in functions],
        "function_run_seconds": [function.run_seconds for function in functions],
    }


def _waiting(state: SchedulerState) -> dict[str, Any]:
    waiting: Counter[str] = Counter()
    short: dict[str, str] = {}
    for requirement, tasks in state.waiting.counts():
        needs = capability_text(requirement.capabilities)
        waiting[needs] += tasks
        if tasks and state.waiting.takes_consumables(requirement):
            found = shortage(state.agents.values(), requirement)
            short[needs] = found if short.get(needs, found) else ""  # equal needs with another Python may be met
    most = waiting.most_common(REQUIREMENTS)
    return {
        "waiting_capabilities": [needs for needs, _ in most],
        "waiting_tasks": [tasks for _, tasks in most],
        "waiting_shortages": [short.get(needs, "") for needs, _ in most],
    }


def _durations(event_log: EventLog) -> dict[str, Any]:
    run_buckets, runs, run_seconds = event_log.run_durations.read()
    wait_buckets, waits, wait_seconds = event_log.wait_durations.read()
    return {
        "duration_bounds": DURATION_BOUNDS,
        "run_buckets": run_buckets,
        "runs": runs,
        "run_seconds": run_seconds,
        "wait_buckets": wait_buckets,
        "waits": waits,
        "wait_seconds": wait_seconds,
    }


def _graphs(state: SchedulerState, since: float) -> dict[str, Any]:
    living = [graph for session in state.sessions.values() for graph in session.graphs.values()]
    graphs, others = [*state.ended_graphs, *living], list[GraphRecord]()
    if not graphs:
        return {}
    if len(graphs) > GRAPHS:
        graphs.sort(key=lambda graph: -graph.number)
        graphs, others = graphs[:GRAPHS], graphs[GRAPHS:]
    assigned, running = Counter[int](), Counter[int]()
    for agent in state.agents.values():
        for run, task in agent.runs.items():
            extra = task.extra
            if task.state == ASSIGNED and extra is not None and extra.graph is not None:
                assigned[extra.graph.number] += 1
                running[extra.graph.number] += run in agent.running
    listed: list[tuple[int, int, Sequence[GraphRecord], float]] = [
        (graph.number, graph.session, [graph], graph.ended) for graph in graphs
    ]
    if others:
        listed.append((0, 0, others, 0.0))
    return {
        "graphs": [number for number, _, _, _ in listed],
        "graph_sessions": [session for _, session, _, _ in listed],
        "graph_nodes": [min(COUNT.most, sum(graph.size for graph in each)) for _, _, each, _ in listed],
        "graph_succeeded": [_nodes(each, "done") for _, _, each, _ in listed],
        "graph_failed": [_nodes(each, "failed") for _, _, each, _ in listed],
        "graph_cancelled": [_nodes(each, "cancelled") for _, _, each, _ in listed],
        "graph_assigned": [sum(assigned[graph.number] for graph in each) for _, _, each, _ in listed],
        "graph_running": [sum(running[graph.number] for graph in each) for _, _, each, _ in listed],
        "graph_start_times": [since + min(graph.begun for graph in each) for _, _, each, _ in listed],
        "graphs_ended": state.graphs_ended,
        "graph_end_times": [since + ended if ended else 0.0 for _, _, _, ended in listed],
    }


def _nodes(graphs: Iterable[GraphRecord], how: str) -> int:
    """The nodes of these graphs that ended like this."""
    return sum(getattr(counts, how) for graph in graphs for counts in graph.counts.values())
