"""Counts of a MonitorStatus, as all programs and pages show them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from scaler_protocol.messages import WorkerState
from scaler_protocol.monitoring import MonitorStatus


def running(status: MonitorStatus) -> int:
    """Tasks that have begun, and not ended; those that wait for tasks of theirs as well."""
    return sum(map(bool, status.worker_runs)) + sum(status.unlisted_running)


def blocked(status: MonitorStatus) -> int:
    """Running tasks that wait for tasks of theirs; others run in their place."""
    return sum(state == WorkerState.BLOCKED for state in status.worker_states) + sum(status.unlisted_blocked)


def queued(status: MonitorStatus) -> int:
    """Tasks that wait on a host for one of its workers."""
    return max(0, status.assigned - running(status))


def off_hosts(status: MonitorStatus) -> int:
    """Tasks that no host has: those that wait, and those that are held."""
    return status.waiting + status.held


def workers(status: MonitorStatus) -> int:
    """Workers that take tasks; not the processes of blocked tasks, nor workers that drain."""
    return sum(status.agent_workers)


def busy_by_agent(status: MonitorStatus) -> dict[int, int]:
    """How many of the workers of each agent are busy, by its number."""
    processes = Counter(
        agent
        for agent, state in zip(status.worker_agents, status.worker_states, strict=True)
        if state == WorkerState.RUNNING
    )
    processes.update(dict(zip(status.unlisted_agents, status.unlisted_busy, strict=True)))
    sizes = zip(status.agents, status.agent_workers, strict=True)
    return {agent: min(size, processes[agent]) for agent, size in sizes}


def busy_workers(status: MonitorStatus) -> int:
    """How many of the `workers` are busy."""
    return sum(busy_by_agent(status).values())


def worker_usage(status: MonitorStatus) -> Iterator[tuple[int, float, int]]:
    """Agent, cores and bytes of each worker; the workers of an agent that are not listed are one entry."""
    yield from zip(status.worker_agents, status.worker_cpus, status.worker_rsses, strict=True)
    yield from zip(status.unlisted_agents, status.unlisted_cpus, status.unlisted_rsses, strict=True)


def worker_cpu(status: MonitorStatus) -> float:
    """Cores that all workers use."""
    return sum(status.worker_cpus) + sum(status.unlisted_cpus)


def worker_rss(status: MonitorStatus) -> int:
    """Bytes that all workers use."""
    return sum(status.worker_rsses) + sum(status.unlisted_rsses)


def unlisted_workers(status: MonitorStatus) -> int:
    """Workers of agents that have reported too many workers for these to be listed."""
    unlisted = set(status.unlisted_agents)
    return sum(size for agent, size in zip(status.agents, status.agent_workers, strict=True) if agent in unlisted)


def clients(status: MonitorStatus) -> int:
    """Connected clients; not the sessions of tasks that submit tasks, which have no name."""
    return sum(map(bool, status.client_names))
