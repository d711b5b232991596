"""Balance: which agents are asked to return queued runs, because workers elsewhere are idle.

Loads are compared every REBALANCE_SECONDS while they may have changed, or are unequal. While some agent has idle
workers, others with queued work that could run there are asked to return part of it: first those whose workers are in
long runs, then those with the most work. What they return waits again, and goes to idle workers first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from scaler_protocol.messages import Recall
from scaler_scheduler.core.exclusive import is_reserved
from scaler_scheduler.core.records import AgentRecord
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.requirements import Requirement, WorkerClass

RECALL_SECONDS = 0.005
"""Agents with less work than this per worker are asked for none while they progress: moving it would cost more."""
VAIN_SECONDS = 0.1
"""So long agents that had nothing to return are not asked again."""
REBALANCE_SECONDS = 0.01
"""Interval between comparisons of the agents' loads, of which each may look at COMPARED_AGENTS."""
PAUSE_SECONDS = 2e-6
"""The interval is this much longer for each run that was looked at, which takes a twentieth of it."""
COMPARED_AGENTS = 500
SHORTEST_SECONDS = 2e-6
"""Tasks are counted as at least this long when a number of tasks is derived from a time."""


class Balance:
    """Compares the loads of agents in `rebalance`; the other methods record what has changed."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._rebalance_at = 0.0
        self._unbalanced = False
        self._changed: dict[AgentRecord, None] = {}
        """Agents whose numbers of runs or workers may have changed since the last comparison of loads."""
        self._idle_workers: dict[WorkerClass, int] = {}
        """By class, the sum of `AgentRecord.idle`; only numbers above 0."""
        self._overloaded: dict[AgentRecord, None] = {}
        """Agents with more runs than workers, at the last comparison."""

    def changed(self, agents: Iterable[AgentRecord]) -> None:
        """The runs or workers of these agents may have changed."""
        self._changed.update(dict.fromkeys(agents))

    def left(self, agent: AgentRecord) -> None:
        """An agent is gone."""
        self._changed.pop(agent, None)
        self._overloaded.pop(agent, None)
        self._set_idle(agent, 0)

    def rebalance(self, now: float) -> None:
        """If workers are idle after all waiting tasks they could run were assigned, ask for what agents have queued."""
        if now < self._rebalance_at:
            return
        self._unbalanced = False
        if len(self._state.agents) < 2:
            return
        self._compare_changed()
        self._rebalance_at = now + REBALANCE_SECONDS * max(1.0, len(self._overloaded) / COMPARED_AGENTS)
        if self._idle_workers and self._overloaded:
            self._unbalanced = True
            looked = self._recall(sum(self._idle_workers.values()), list(self._idle_workers), now)
            self._rebalance_at += looked * PAUSE_SECONDS

    def returned(self, agent: AgentRecord, runs: Sequence[int], now: float) -> None:
        """An agent has returned these runs, none if it has none that wait."""
        agent.recalling = False
        agent.recall_from = now if runs else now + VAIN_SECONDS  # a relay has none at first, and gets some from agents

    def recall(self, count: int, now: float) -> None:
        """Ask agents for about so many queued runs: workers that are not known here could begin with them."""
        self._compare_changed()
        self._recall(count, list({agent.worker_class for agent in self._overloaded}), now)

    def _compare_changed(self) -> None:
        for agent in self._changed:
            self._compare(agent)
        self._changed.clear()

    def _compare(self, agent: AgentRecord) -> None:
        """Note whether an agent has idle workers, or more runs than workers."""
        workers, active = agent.workers, agent.active
        self._set_idle(agent, _idle_workers(agent))
        if 0 < workers < active:
            self._overloaded[agent] = None
        else:
            self._overloaded.pop(agent, None)

    def _set_idle(self, agent: AgentRecord, idle: int) -> None:
        if idle == agent.idle:
            return
        of_class = self._idle_workers.pop(agent.worker_class, 0) + idle - agent.idle
        if of_class:
            self._idle_workers[agent.worker_class] = of_class
        agent.idle = idle

    def _recall(self, idle: int, worker_classes: Sequence[WorkerClass], now: float) -> int:
        """Recall as many runs as there are idle workers, which are of these classes, or as occupy them for the horizon.

        Agents without progress since the last comparison come first: their workers are in runs that take long, whatever
        was expected of the queued ones. They take turns, since what one returns may be of no use, for example where it
        takes what no idle worker has left. Then the most loaded ones follow. Returns how many runs were looked at.
        """
        seconds, looked = idle * self._state.config.horizon_seconds, 0
        movable: dict[Requirement, bool] = {}
        for agent in sorted(self._overloaded, key=_recall_order):
            has_progressed, agent.progressed = agent.progressed, False
            if agent.recalling or now < agent.recall_from:
                continue
            if has_progressed and agent.load / agent.workers < RECALL_SECONDS:
                continue
            if max(idle, seconds) <= 0:
                continue
            newest = _newest_movable(agent, worker_classes, movable)
            looked += newest or len(agent.runs)
            if newest:
                cost = max(SHORTEST_SECONDS, agent.load / agent.active)
                queued = agent.active - agent.workers
                count = min(max(idle, math.ceil(seconds / cost)), math.ceil(queued / 2))
                idle, seconds = idle - count, seconds - count * cost
                agent.recalling, agent.recall_from = True, now
                # Its queue has another order: of a mixed one all is recalled.
                self._state.send(agent.peer, Recall(count if newest == 1 else max(newest, queued)))
        return looked

    def due(self) -> float | None:
        """When loads should be compared again."""
        if not self._unbalanced and (not self._changed or len(self._state.agents) < 2):
            return None
        return self._rebalance_at

    def check(self) -> None:
        """Assert that the notes on loads are right, but for the agents that have changed since; for tests."""
        by_class: dict[WorkerClass, int] = {}
        for agent in self._state.agents.values():
            by_class[agent.worker_class] = by_class.get(agent.worker_class, 0) + agent.idle
            if agent not in self._changed and agent not in self._state.with_room:
                assert agent.idle == (idle := _idle_workers(agent)), f"{agent.name} has {idle} idle workers"
                assert (0 < agent.workers < agent.active) == (agent in self._overloaded), agent.name
        assert self._idle_workers == {found: count for found, count in by_class.items() if count}
        assert all(self._state.agents.get(agent.peer) is agent for agent in (*self._overloaded, *self._changed))


def _recall_order(agent: AgentRecord) -> tuple[bool, float, float]:
    return agent.progressed, 0.0 if agent.progressed else agent.recall_from, -agent.load / agent.workers


def _idle_workers(agent: AgentRecord) -> int:
    """How many more runs could begin on the agent now."""
    return 0 if is_reserved(agent) or agent.resuming else max(0, agent.workers - agent.active)


def _newest_movable(agent: AgentRecord, worker_classes: Sequence[WorkerClass], known: dict[Requirement, bool]) -> int:
    """How many of the agent's newest runs include one that could run on a worker of these classes; 0 if none could.

    Those that are known to be on workers do not count. `known` holds what was found by requirement.
    """
    for count, (run, task) in enumerate(reversed(agent.runs.items()), 1):
        requirement = task.group.lane.requirement
        if (found := known.get(requirement)) is None:
            found = not requirement.agent and any(not requirement.unmet_by(each) for each in worker_classes)
            known[requirement] = found
        if found and run not in agent.running and run not in agent.blocked:
            return count
    return 0
