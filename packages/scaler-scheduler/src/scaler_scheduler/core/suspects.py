"""Suspects: tasks that may have brought down their host. Pure.

Theory. A task that ends its whole host (by exhausting its memory, or killing the agent) is lost together with all runs
beside it, and it is unknown which of them was the cause. So none is charged with a lost run; all become *suspects*, and
suspects run apart: no agent has two of them. If a host is lost with one suspect, that one is charged, and runs beside
it are neither charged nor suspected. A run that was alone on its host is charged at once.

A suspect that has been on a worker for its probation time is cleared; otherwise the loss of one big host would leave a
small cluster with one task at a time. Probation doubles with each lost run, so a task that takes long to end its host
is found after a number of losses that grows with the logarithm of that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from scaler_scheduler.core.exclusive import is_reserved
from scaler_scheduler.core.records import AgentRecord, TaskRecord
from scaler_scheduler.core.shares import can_take
from scaler_scheduler.core.task_states import ASSIGNED

PROBATION_SECONDS = 5.0


class Blame(NamedTuple):
    """Runs lost with an agent: those on workers, those that are charged, those that become suspects."""

    running: set[int]
    charged: set[int]
    suspected: set[int]


NOBODY = Blame(set(), set(), set())


def blame(agent: AgentRecord, unsent: AbstractSet[int], *, outcomes_wait: bool) -> Blame:
    """The runs that may have ended this agent; it cannot have received those that are `unsent`.

    If `outcomes_wait` at agents, since the scheduler is busy, queued runs may have begun in place of reported ones.
    """
    running = agent.on_workers(unsent)
    begun = running | agent.next_queued(unsent) if outcomes_wait else running
    exposed = begun | agent.newest(unsent)
    suspects = {run for run in exposed if (notes := agent.runs[run].notes) is not None and notes.suspect}
    if suspects:
        return Blame(running, suspects, set())
    charged = begun if len(begun) == 1 else set()
    return Blame(running, charged, exposed - charged)


class Suspects:
    """Suspects that wait for an agent without another suspect. They are HELD, and go before all other tasks."""

    def __init__(self) -> None:
        self._waiting: dict[TaskRecord, None] = {}
        self._is_new = False

    def __iter__(self) -> Iterator[TaskRecord]:
        return iter(self._waiting)

    def add(self, task: TaskRecord) -> None:
        """A suspect must run again."""
        self._waiting[task] = None
        self._is_new = True

    def remove(self, task: TaskRecord) -> None:
        """A suspect need not run again."""
        self._waiting.pop(task, None)

    def moved(self, agent: AgentRecord, task: TaskRecord) -> None:
        """A suspect goes on as another run, which this agent has already."""
        if not _has_suspect(agent):
            agent.suspect, task.note().seen = task, 0.0

    def reported(self, agent: AgentRecord, now: float) -> None:
        """An agent has reported its runs: clear its suspect if that has passed its probation."""
        task = agent.suspect
        if task is None or not _is_suspect_of(agent, task) or task.run not in agent.running:
            return
        notes = task.note()
        if not notes.seen:
            notes.seen = now
        elif now - notes.seen >= PROBATION_SECONDS * 2 ** (notes.lost_runs + notes.shared_losses - 1):
            notes.suspect, agent.suspect = False, None
            self._is_new = True

    def assign(self, agents: Iterable[AgentRecord], *, changed: bool) -> Iterator[tuple[AgentRecord, TaskRecord]]:
        """Choose agents for suspects, each of which is to be started before the next is asked for.

        `changed` is whether an agent's room has changed since the last call.
        """
        if not self._waiting or not (changed or self._is_new):
            return
        self._is_new = False
        free = [agent for agent in agents if _is_usable(agent) and not _has_suspect(agent)]
        free.sort(key=lambda agent: -agent.active / agent.workers)
        for task in list(self._waiting):
            requirement = task.group.lane.requirement
            able = (at for at in reversed(range(len(free))) if can_take(free[at], requirement))
            if (at := next(able, None)) is not None:
                agent = free.pop(at)
                agent.suspect, task.note().seen = task, 0.0
                del self._waiting[task]
                yield agent, task


def _is_usable(agent: AgentRecord) -> bool:
    return bool(agent.workers) and not agent.resuming and not is_reserved(agent)


def _has_suspect(agent: AgentRecord) -> bool:
    return agent.suspect is not None and _is_suspect_of(agent, agent.suspect)


def _is_suspect_of(agent: AgentRecord, task: TaskRecord) -> bool:
    extra = task.extra
    return task.state == ASSIGNED and task.agent is agent and extra is not None and extra.is_suspect
