"""Snapshot: the agent's process, its host and its workers as one AgentStatus. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import last_deaths
from scaler_protocol.messages import AgentStatus
from scaler_worker.agent.core.records import RUN
from scaler_worker.agent.core.workers import Workers


@dataclass(frozen=True, slots=True)
class HostStats:
    """Measurements of the shell: CPU in cores, memory and free space in bytes; of the workers by process id."""

    cpu: float
    rss: int
    free: int
    worker_cpus: Mapping[int, float]
    worker_rsses: Mapping[int, int]
    load: float = 0.0
    disk_free: int = 0
    shared_free: int = 0


def agent_status(workers: Workers, queued: int, stats: HostStats, lone_task_bytes: int, newest_run: int) -> AgentStatus:
    """The status of an agent with `queued` waiting runs, of which it has received `newest_run` last.

    Workers that are not ready yet are left out.
    """
    alive = [worker for worker in workers if worker.pid]
    entries = [worker.next_entry() for worker in alive]
    return AgentStatus(
        cpu=stats.cpu,
        rss=stats.rss,
        free=stats.free,
        queued=queued,
        names=[worker.name for worker in alive],
        pids=[worker.pid for worker in alive],
        states=[worker.state for worker in alive],
        runs=[entry[RUN] if entry else 0 for entry in entries],
        cpus=[stats.worker_cpus.get(worker.pid, 0.0) for worker in alive],
        rsses=[stats.worker_rsses.get(worker.pid, 0) for worker in alive],
        queues=[max(0, len(worker.entries()) - 1) for worker in alive],
        deaths=last_deaths(workers.deaths),
        lone_task_bytes=lone_task_bytes,
        load=stats.load,
        disk_free=stats.disk_free,
        shared_free=stats.shared_free,
        newest_run=newest_run,
    )
