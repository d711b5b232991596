"""Pinned tasks: those that only one worker may run. Pure.

They go to the agent of their worker at once, whatever waits there: it runs them when the present task of the worker has
ended. A task fails if that agent is gone or drains, and its run is not repeated if it is lost: the client asked for
this worker. In the recovery period after a restart of the scheduler, agents may still come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scaler_protocol.errors import NoWorkerError, ScalerError, WorkerDiedError
from scaler_scheduler.core.records import AgentRecord, TaskRecord
from scaler_scheduler.core.shares import room_for


def is_pinned(task: TaskRecord) -> bool:
    """Whether only one worker may run the task."""
    return bool(task.group.lane.requirement.agent)


class PinnedTasks:
    """Pinned tasks that are to be sent to their agents. They are HELD."""

    def __init__(self) -> None:
        self.behind: dict[bytes, AgentRecord] = {}
        """Relays by the identities of those agents behind them that clients have been told of."""
        self._waiting: dict[TaskRecord, None] = {}

    def __iter__(self) -> Iterator[TaskRecord]:
        return iter(self._waiting)

    def __contains__(self, task: object) -> bool:
        return task in self._waiting

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, task: TaskRecord) -> None:
        """A pinned task is to run."""
        self._waiting[task] = None

    def remove(self, task: TaskRecord) -> None:
        """A pinned task need not run any more."""
        self._waiting.pop(task, None)

    def relay_lost(self, relay: AgentRecord) -> None:
        """A relay is gone: nothing is known of its agents."""
        self.behind = {agent: known for agent, known in self.behind.items() if known is not relay}

    def take(
        self, agent_of: Callable[[bytes], AgentRecord | None], *, recovering: bool
    ) -> tuple[dict[AgentRecord, list[TaskRecord]], list[tuple[TaskRecord, ScalerError]]]:
        """Take the tasks that can be sent to their agents, by agent, and those that fail, with their errors.

        Of those that take consumables it is one at most: what is left for the next one is known when that has begun.
        """
        to_send: dict[AgentRecord, list[TaskRecord]] = {}
        is_shared = False
        failing: list[tuple[TaskRecord, ScalerError]] = []
        for task in list(self._waiting):
            agent = agent_of(task.group.lane.requirement.agent)
            if agent.resuming if agent is not None else recovering:
                continue
            room = room_for(agent, task.group.lane.requirement) if agent is not None else None
            if room is not None and (not room or is_shared):
                continue
            is_shared = is_shared or room is not None
            del self._waiting[task]
            if (error := _obstacle(task, agent)) is not None:
                failing.append((task, error))
            elif agent is not None:
                to_send.setdefault(agent, []).append(task)
        return to_send, failing


def _obstacle(task: TaskRecord, agent: AgentRecord | None) -> ScalerError | None:
    if agent is None:
        return WorkerDiedError("the host of the only worker that may run the task is gone")
    if not agent.workers:
        return WorkerDiedError(f"the host of the only worker that may run the task, {agent.host}, drains")
    if lacks := task.group.lane.requirement.unmet_by(agent.worker_class):
        return NoWorkerError(f"the only worker that may run the task, on {agent.host}, lacks {', '.join(lacks)}")
    return None
