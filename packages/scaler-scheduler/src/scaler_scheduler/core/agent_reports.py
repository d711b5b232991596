"""Agent reports: what is kept of the last AgentStatus of each agent, so that many take little memory and time. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import AgentStatus, WorkerState

WORKERS = 10_000
"""Most workers reported, so that agents with too many do not delay the scheduler."""
_KEPT_WORKERS = 8 * WORKERS
"""Most workers whose rows are kept, so that agents that report too many take little memory."""
_LEAST_SHARE = 64
_BYTES_MOST = 2**64 - 1
"""What a column can hold: agents report what they like."""


@dataclass(frozen=True, slots=True)
class WorkerSums:
    """What the workers of an agent do together: runs that they execute, busy and blocked ones, cores and bytes."""

    running: int
    busy: int
    blocked: int
    cpu: float
    rss: int


def workers_share(agents: int) -> int:
    """The most rows of workers that are kept of each of so many agents."""
    return min(WORKERS, max(_LEAST_SHARE, _KEPT_WORKERS // max(1, agents)))


def kept_status(status: AgentStatus, share: int) -> AgentStatus:
    """What is kept of an agent's report: no deaths, and its workers if they are no more than its share."""
    without: dict[str, Any] = {"deaths": (), "death_hosts": ()} if status.deaths else {}
    if len(status.names) > share:
        without |= dict.fromkeys(status.COLUMNS[0], ())
    return replace(status, **without) if without else status


def worker_sums(status: AgentStatus) -> WorkerSums:
    """The sums of the workers in an agent's report, for which it is walked: that takes longer once it is cold."""
    return WorkerSums(
        len(status.runs) - status.runs.count(0),
        status.states.count(WorkerState.RUNNING),
        status.states.count(WorkerState.BLOCKED),
        sum(status.cpus),
        min(sum(status.rsses), _BYTES_MOST),
    )
