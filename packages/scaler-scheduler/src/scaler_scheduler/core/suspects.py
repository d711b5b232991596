"""Suspects: tasks that may have taken their host along. Pure.

Theory. A task that ends its whole host (it uses up the memory, or brings the agent down) is lost together with all that
ran beside it, and nobody can say which one it was. So nobody is charged, all of them become *suspects*, and suspects
are tried again apart: no agent has two of them. A host that is lost with one suspect charges that one; what ran beside
it is neither charged nor suspected. A run that was alone on its host is charged at once.

A suspect that has been on a worker for its probation is none any more, or the loss of one big host would leave a small
cluster with one task at a time. Probation doubles with each lost run, so a task that takes long to end its host is
found after a number of losses that grows with the logarithm of that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from scaler_scheduler.core.records import ASSIGNED, HELD, AgentRecord, TaskRecord

PROBATION_SECONDS = 5.0


class Blame(NamedTuple):
    """Of the runs that were lost with an agent: those on workers, those that are charged, those only suspected."""

    running: set[int]
    charged: set[int]
    suspected: set[int]


NOBODY = Blame(set(), set(), set())


def blame(agent: AgentRecord) -> Blame:
    """Who may have ended this agent."""
    running = agent.on_workers()
    exposed = running | agent.unreported()
    suspects = {run for run in exposed if (extra := agent.runs[run].extra) is not None and extra.suspect}
    if suspects:
        return Blame(running, suspects, set())
    charged = running if len(running) == 1 else set()
    return Blame(running, charged, exposed - charged)


class Suspects:
    """Those that wait for an agent without another suspect. They are HELD, and go before all others."""

    def __init__(self) -> None:
        self._waiting: dict[TaskRecord, None] = {}
        self._is_new = False

    def __iter__(self) -> Iterator[TaskRecord]:
        return iter(self._waiting)

    def add(self, task: TaskRecord) -> None:
        """A suspect is to run again."""
        self._waiting[task] = None
        self._is_new = True

    def remove(self, task: TaskRecord) -> None:
        """A suspect is not to run again after all."""
        self._waiting.pop(task, None)

    def reported(self, agent: AgentRecord, now: float) -> None:
        """An agent has said what its workers run: its suspect may have passed its probation."""
        task = agent.suspect
        if task is None or not _is_suspect_of(agent, task) or task.run not in agent.running:
            return
        extra = task.more()
        if not extra.seen:
            extra.seen = now
        elif now - extra.seen >= PROBATION_SECONDS * 2 ** (extra.lost_runs + extra.shared_losses - 1):
            extra.suspect, agent.suspect = False, None
            self._is_new = True

    def assign(self, agents: Iterable[AgentRecord], *, changed: bool) -> list[tuple[AgentRecord, TaskRecord]]:
        """Who is to run where now; `changed` says whether an agent has got room since the last time."""
        if not self._waiting or not (changed or self._is_new):
            return []
        self._is_new = False
        free = [agent for agent in agents if agent.workers and not agent.resuming and not _has_suspect(agent)]
        free.sort(key=lambda agent: -agent.active / agent.workers)
        assigned: list[tuple[AgentRecord, TaskRecord]] = []
        for task in list(self._waiting):
            if task.state != HELD:
                del self._waiting[task]
                continue
            requirement = task.group.lane.requirement
            able = (at for at in reversed(range(len(free))) if not requirement.unmet_by(free[at].worker_class))
            if (at := next(able, None)) is not None:
                agent = free.pop(at)
                agent.suspect, task.more().seen = task, 0.0
                del self._waiting[task]
                assigned.append((agent, task))
        return assigned


def _has_suspect(agent: AgentRecord) -> bool:
    return agent.suspect is not None and _is_suspect_of(agent, agent.suspect)


def _is_suspect_of(agent: AgentRecord, task: TaskRecord) -> bool:
    extra = task.extra
    return task.state == ASSIGNED and task.agent is agent and extra is not None and extra.suspect
