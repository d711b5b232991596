"""Exclusive tasks: those that used more memory than a worker may, and are tried once more, alone on a host. Pure.

The host on which a lone task may use most memory is reserved: it is given no other work, and its queue is recalled.
When its last run has ended, the task is sent there, and nothing else until the task has ended or waits for tasks of its
own, which need workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from scaler_scheduler.core.records import AgentRecord, TaskRecord
from scaler_scheduler.core.shares import can_take
from scaler_scheduler.core.task_states import ASSIGNED, HELD


def is_reserved(agent: AgentRecord) -> bool:
    """Whether the agent has, or waits for, an exclusive task, so that it must not be given other work.

    An agent with runs that wait for their children gets work all the same, or these runs would never end.
    """
    task = agent.reserved_for
    if task is None or agent.blocked:
        return False
    if task.state == ASSIGNED:
        return task.agent is agent
    return task.state == HELD and task.extra is not None and task.extra.is_apart


class ExclusiveTasks:
    """Exclusive tasks that wait for their host. They are HELD."""

    def __init__(self) -> None:
        self._waiting: dict[TaskRecord, AgentRecord | None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[TaskRecord]:
        return iter(self._waiting)

    def add(self, task: TaskRecord) -> None:
        """An exclusive task is to run."""
        self._waiting[task] = None

    def remove(self, task: TaskRecord) -> AgentRecord | None:
        """An exclusive task need not run any more; returns the agent that was reserved for it."""
        agent = self._waiting.pop(task, None)
        if agent is not None and agent.reserved_for is task:
            agent.reserved_for = None
        return agent

    def reserve(self, agents: Iterable[AgentRecord]) -> list[AgentRecord]:
        """Reserve an agent for each task that has none, the one with most memory; returns the agents reserved now."""
        if not self._waiting:
            return []
        usable = [agent for agent in agents if agent.workers and not agent.resuming]
        usable = [agent for agent in usable if not agent.relay_incarnation] or usable
        reserved: list[AgentRecord] = []
        for task, agent in list(self._waiting.items()):
            if agent not in usable:
                self.remove(task)
                self.add(task)
                largest = _largest(usable, task)
                if largest is not None and (largest.reserved_for is task or not is_reserved(largest)):
                    largest.reserved_for = task
                    self._waiting[task] = largest
                    reserved.append(largest)
        return reserved

    def assign(self) -> Iterator[tuple[AgentRecord, TaskRecord]]:
        """Take the tasks whose reserved agents have no runs any more; each is to be started before the next is asked
        for."""
        for task, agent in list(self._waiting.items()):
            if agent is not None and not agent.runs and can_take(agent, task.group.lane.requirement):
                del self._waiting[task]
                yield agent, task


def _largest(agents: Iterable[AgentRecord], task: TaskRecord) -> AgentRecord | None:
    """The agent that allows a lone task most memory, of those that can run it."""
    requirement = task.group.lane.requirement
    able = (agent for agent in agents if not requirement.unmet_by(agent.worker_class))
    return max(able, key=lone_task_bytes, default=None)


def lone_task_bytes(agent: AgentRecord) -> float:
    """Bytes that a task alone on this agent may use; infinity without a limit, 0 before the agent has reported."""
    return agent.status.lone_task_bytes or math.inf if agent.status is not None else 0
