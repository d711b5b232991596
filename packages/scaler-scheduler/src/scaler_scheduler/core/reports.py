"""Reports of agents on runs that have ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from scaler_protocol.errors import ProtocolError
from scaler_protocol.messages import AgentStatus, Done
from scaler_protocol.profiles import PROFILE
from scaler_scheduler.core.records import AgentRecord, SessionRecord, TaskRecord
from scaler_scheduler.core.task_states import ASSIGNED


def take_runs(agent: AgentRecord, report: Done) -> list[TaskRecord | None]:
    """Take ended runs off the agent; None for unknown ones. Raises ProtocolError for a run of another task."""
    runs, cost = agent.runs, 0.0
    records = list(map(runs.get, report.runs))
    for record, task in zip(records, report.tasks, strict=True):
        if record is not None:
            cost += record.cost
            if record.id != task:
                raise ProtocolError(f"Done names a run of task {record.id:x} as one of task {task:x}")
    for run in report.runs:
        runs.pop(run, None)
    if agent.blocked:
        agent.blocked.difference_update(report.runs)
    if runs:
        agent.load = max(0.0, agent.load - cost)
    else:
        agent.load = 0.0
        runs.clear()  # gives back the memory of a table that had many
    return records


def deaths_of(agent: AgentRecord, report: AgentStatus) -> list[tuple[str, str]]:
    """Workers that have ended unexpectedly: what has happened, and the host, which a relay alone may name.

    The texts name the agent: the names of its workers do, what else it says follows its name.
    """
    hosts = report.death_hosts if agent.relay_incarnation else ()
    name = agent.name or agent.host
    texts = [text if f"({name}-" in text else f"{name}: {text}" for text in report.deaths]
    return list(zip(texts, hosts or [agent.host] * len(texts), strict=True))


def plain_owner(records: Sequence[TaskRecord | None], report: Done) -> SessionRecord | None:
    """The session of all these tasks, if each has ended with a value and none needs further work; else None."""
    if any(report.statuses) or not records or records[0] is None:
        return None
    owner = records[0].group.session
    for record in records:
        if record is None or record.state != ASSIGNED or record.extra is not None or record.group.session is not owner:
            return None
    return owner


def profile_of(report: Done, position: int) -> bytes:
    """The packed profile of one run."""
    return report.profiles[position * PROFILE.size : (position + 1) * PROFILE.size]
