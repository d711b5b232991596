"""Short agents: those with room that lack consumables for the tasks that are next; and which of these must wait. Pure.

A short agent is not looked at again before other tasks are next for its class, one of its runs has ended, or more of
what the cluster has is free.

No task overtakes one that goes before it and waits for the same quantity of the cluster, wherever the two can run. The
earlier one waits for it if not enough is free, and also if enough is free and an agent could start it now: classes are
filled one after the other. If only its workers are busy it does not wait for the quantity, and others may have that.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import field
from functools import partial

from scaler_protocol.lazy_dataclass import dataclass
from scaler_scheduler.core.queue import ClassQueue, Parts, heads_of, in_order, next_part
from scaler_scheduler.core.records import AgentRecord, LaneRecord
from scaler_scheduler.core.shares import can_take
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.requirements import Requirement, WorkerClass

Entry = tuple[float, int, int, AgentRecord]
"""Load per worker, insertion number, entry version, and the agent: an entry in the list of agents with room."""
_Names = tuple[str, ...]


@dataclass(slots=True)
class _OfClass:
    """The short agents of a class, and what was so when they were found short."""

    heads: tuple[tuple[_Names, Requirement], ...]
    version: int
    held_back: frozenset[_Names]
    agents: dict[AgentRecord, Entry] = field(default_factory=dict)


class ShortAgents:
    """Takes agents off the lists of those with room, one heap for each class, and puts them back."""

    def __init__(self, state: SchedulerState, with_room: dict[WorkerClass, list[Entry]]) -> None:
        self._state, self._with_room = state, with_room
        self._by_class: dict[WorkerClass, _OfClass] = {}
        self._held_back: dict[WorkerClass, frozenset[_Names]] | None = None
        """By class, the queues whose next task must wait for one of another class; None: not known, or changed."""

    def left(self, agent: AgentRecord) -> None:
        """An agent is gone."""
        if agent.worker_class in self._by_class:
            self._by_class[agent.worker_class].agents.pop(agent, None)

    def class_left(self, worker_class: WorkerClass) -> None:
        """The last agent of a class is gone."""
        self._by_class.pop(worker_class, None)

    def changed(self) -> None:
        """Tasks have come or gone, or a run has begun that takes something."""
        self._held_back = None

    def part_for(self, agent: AgentRecord, parts: Parts) -> ClassQueue | None:
        """What the agent, the first one with room, is given tasks from; takes it off the list if it can have none."""
        worker_class = agent.worker_class
        part = next_part(parts, partial(can_take, agent), self._held_back_of(worker_class))
        if part is None:  # another agent may have what this one lacks
            self._by_class[worker_class].agents[agent] = heapq.heappop(self._with_room[worker_class])
        return part

    def reconsider(self, worker_class: WorkerClass, parts: Parts) -> None:
        """List the short agents again if anything has changed since they were found short."""
        now, before = self._now(worker_class, parts), self._by_class.get(worker_class)
        if before is None or not _is_same(before, now):
            for entry in before.agents.values() if before is not None else ():
                heapq.heappush(self._with_room[worker_class], entry)
            self._by_class[worker_class] = now

    def is_outdated(self) -> bool:
        """Whether a class must be filled again, since more of its tasks may start than when it was filled."""
        if self._state.cluster is None:
            return False
        self._held_back = None
        return any(
            short.agents and not _is_same(short, self._now(worker_class, self._state.waiting.parts_of(worker_class)))
            for worker_class, short in self._by_class.items()
        )

    def _now(self, worker_class: WorkerClass, parts: Parts) -> _OfClass:
        version = self._state.cluster.version if self._state.cluster is not None else 0
        return _OfClass(heads_of(parts), version, self._held_back_of(worker_class))

    def _held_back_of(self, worker_class: WorkerClass) -> frozenset[_Names]:
        if self._state.cluster is None:
            return frozenset()
        if self._held_back is None:
            self._held_back = self._find_held_back(self._state.cluster.totals)
        return self._held_back.get(worker_class, frozenset())

    def _find_held_back(self, totals: dict[str, int]) -> dict[WorkerClass, frozenset[_Names]]:
        by_class = self._state.waiting.parts_by_class
        if len(by_class) < 2:
            return {}  # the order of its queues is enough
        queues = {
            (worker_class, names): queue for worker_class, parts in by_class.items() for names, queue in parts.items()
        }
        claimed: dict[str, LaneRecord] = {}
        found: dict[WorkerClass, frozenset[_Names]] = {}
        for (worker_class, names), lane in in_order(queues):
            ours = totals.keys() & names
            if any(claimed.get(name, lane) is not lane for name in ours):
                found[worker_class] = found.get(worker_class, frozenset()) | {names}
            elif ours and self._waits(worker_class, lane.requirement):
                claimed.update(dict.fromkeys(ours, lane))
        return found

    def _waits(self, worker_class: WorkerClass, requirement: Requirement) -> bool:
        """Whether a task that is next waits for what the cluster has: not enough is free, or it is about to begin."""
        assert self._state.cluster is not None
        if not self._state.cluster.has(requirement.share_of(worker_class)):
            return True
        return any(can_take(agent, requirement) for agent in self._agents_with_room(worker_class))

    def _agents_with_room(self, worker_class: WorkerClass) -> Iterator[AgentRecord]:
        yield from (agent for _, _, version, agent in self._with_room[worker_class] if version == agent.entry_version)
        if short := self._by_class.get(worker_class):
            yield from short.agents


def _is_same(one: _OfClass, other: _OfClass) -> bool:
    return (one.version, one.held_back, one.heads) == (other.version, other.held_back, other.heads)
