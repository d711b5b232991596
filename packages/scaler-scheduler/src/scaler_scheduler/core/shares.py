"""Shares: what runs take of the consumables of their agents, and of the cluster. Pure.

A run that needs some takes its share when it is sent to the agent, and has it for as long as the agent has the run,
also while the run waits for its children. Dispatch starts no run whose share is not left. Runs that the scheduler has
given up, or does not know the needs of since its restart, may still go on. For what is the agent's that does no harm:
the agent itself starts no run before what it takes is free (`scaler_worker.agent.core.limited_runs`). Of what is the
cluster's only the scheduler can know: `scaler_scheduler.core.cluster_shares`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from scaler_scheduler.core.records import AgentRecord, TaskRecord
from scaler_scheduler.requirements import Requirement


def room_for(agent: AgentRecord, requirement: Requirement) -> int | None:
    """For how many more runs with this requirement, which it meets, the agent has enough; None: for any number."""
    share = requirement.share_of(agent.worker_class)
    if not share or agent.consumables is None:
        return None
    return agent.consumables.room(share, agent.runs)


def can_take(agent: AgentRecord, requirement: Requirement) -> bool:
    """Whether the workers of an agent meet a requirement, and what a run takes is left there."""
    return not requirement.unmet_by(agent.worker_class) and room_for(agent, requirement) != 0


def note_runs(agent: AgentRecord, tasks: Iterable[TaskRecord]) -> None:
    """An agent has these runs from now on."""
    if agent.consumables is not None:
        for task in tasks:
            agent.consumables.take(task.run, task.group.lane.requirement.share_of(agent.worker_class))


def shortage(agents: Iterable[AgentRecord], requirement: Requirement) -> str:
    """What all agents that meet a requirement are short of, as `license (2 of 2 in use)`; empty if one has enough."""
    able = [agent for agent in agents if agent.workers and not requirement.unmet_by(agent.worker_class)]
    if any(room_for(agent, requirement) != 0 for agent in able):
        return ""
    used: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    of_cluster: dict[str, str] = {}
    for agent, consumables in [(agent, agent.consumables) for agent in able if agent.consumables is not None]:
        taken = consumables.used(agent.runs)
        for name, wanted in requirement.share_of(agent.worker_class):
            if name not in consumables.totals:
                if consumables.cluster is not None and consumables.cluster.free(name) < wanted:
                    of_cluster[name] = consumables.cluster.shortage(name)
            elif consumables.totals[name] - taken[name] < wanted:
                used[name] += taken[name]
                totals[name] += consumables.totals[name]
    of_hosts = {name: f"{name} ({used[name]:,} of {total:,} in use)" for name, total in totals.items()}
    return ", ".join(text for _, text in sorted((of_hosts | of_cluster).items()))
