"""Locality: tasks go to where their big inputs are, unless that would idle a worker. Pure, no IO.

What was decided for one turn is improved: a task that was given to an agent of another host than the one with most
bytes of its inputs goes to an idle worker of that host, or changes places with a task that has no reason to be there.
So it is never a question of whether or when a task runs, only of where; whose turn it is, and how full agents are,
stays as it was. A chain (`scaler_scheduler.core.chains`) goes where its first task goes.

An input is where it was made, and where it has been needed since. Objects below LOCAL_BYTES travel faster than they
are looked for. Tasks without inputs cost nothing here but a glance, and not that while there are no big results, or
only one host.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping

from scaler_protocol.objects import OBJECT_ID_BYTES, SHARED_BYTES, Reference
from scaler_scheduler.core.records import AgentRecord, TaskRecord

LOCAL_BYTES = SHARED_BYTES
PLACES_LIMIT = 16_384
"""Objects whose hosts are remembered."""
_HOSTS_LIMIT = 16
"""Hosts of one object: what so many have costs nobody much."""

Inputs = Mapping[int, tuple[bytes, bool] | None]
Given = dict[AgentRecord, list[TaskRecord]]


class Locality:
    """Knows which host has which big result, and moves tasks there."""

    def __init__(self) -> None:
        self._places: OrderedDict[bytes, set[str]] = OrderedDict()
        self._hosts: dict[str, list[AgentRecord]] = {}

    def joined(self, agent: AgentRecord) -> None:
        """An agent can be given work."""
        self._hosts.setdefault(agent.host, []).append(agent)

    def left(self, agent: AgentRecord) -> None:
        """An agent is gone."""
        agents = self._hosts[agent.host]
        agents.remove(agent)
        if not agents:
            del self._hosts[agent.host]

    def made(self, packed: bytes, host: str) -> None:
        """A host has an object."""
        name = packed[:OBJECT_ID_BYTES]
        if name in self._places:
            self._places.move_to_end(name)
            if len(self._places[name]) < _HOSTS_LIMIT:
                self._places[name].add(host)
        elif len(packed) > OBJECT_ID_BYTES and Reference.unpack(packed).size >= LOCAL_BYTES:
            self._places[name] = {host}
            if len(self._places) > PLACES_LIMIT:
                self._places.popitem(last=False)

    def improve(self, given: Given) -> set[AgentRecord]:
        """Move tasks between these agents, and to idle ones; returns those whose tasks are others now."""
        if not self._places or len(self._hosts) < 2:
            return set()
        turn = _Turn(given)
        for agent, task, held in self._astray(given):
            for other in self._hosts.get(max(held, key=held.__getitem__), ()):
                if other.offer != agent.offer or other.resuming or task in turn.moved:
                    continue
                if turn.is_idle(other):
                    turn.move(task, agent, other)
                elif (stranger := self._stranger(other, turn)) is not None:
                    turn.exchange(task, agent, stranger, other)
                else:
                    continue
                break
        return turn.finish()

    def _astray(self, given: Given) -> list[tuple[AgentRecord, TaskRecord, Counter[str]]]:
        found = []
        for agent, tasks in given.items():
            for task in tasks:
                if task.extra is not None and task.extra.inputs and not task.extra.lacking:
                    held = self._held(task.extra.inputs)
                    if held and held[agent.host] < max(held.values()):
                        found.append((agent, task, held))
        return found

    def _held(self, inputs: Inputs) -> Counter[str]:
        """Bytes of the inputs by host."""
        held: Counter[str] = Counter()
        for found in inputs.values():
            if found is not None and found[1]:
                for host in self._places.get(found[0][:OBJECT_ID_BYTES], ()):
                    held[host] += Reference.unpack(found[0]).size
        return held

    def _stranger(self, agent: AgentRecord, turn: _Turn) -> TaskRecord | None:
        """A task of this agent's that has no reason to be there."""
        if agent not in turn.strangers:
            turn.strangers[agent] = [
                task
                for task in turn.given.get(agent, ())
                if task.extra is None or not (task.extra.lacking or self._held(task.extra.inputs)[agent.host])
            ]
        strangers = turn.strangers[agent]
        while strangers and strangers[-1] in turn.moved:
            strangers.pop()
        return strangers.pop() if strangers else None

    def needed(self, given: Given) -> None:
        """These tasks are on their way, and their inputs will be where they are."""
        if self._places and len(self._hosts) > 1:
            for agent, tasks in given.items():
                for task in tasks:
                    if task.extra is not None:
                        for found in task.extra.inputs.values():
                            if found is not None and found[1] and found[0][:OBJECT_ID_BYTES] in self._places:
                                self.made(found[0], agent.host)


class _Turn:
    """What becomes of the tasks of one turn: who changes places, and who goes to an idle worker."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.moved: set[TaskRecord] = set()
        self.strangers: dict[AgentRecord, list[TaskRecord]] = {}
        self._instead: dict[AgentRecord, dict[TaskRecord, TaskRecord | None]] = {}
        self._more: dict[AgentRecord, list[TaskRecord]] = {}

    def is_idle(self, agent: AgentRecord) -> bool:
        """Whether the agent has a worker without a task."""
        left = sum(instead is None for instead in self._instead.get(agent, {}).values())
        return agent.active + len(self._more.get(agent, ())) - left < agent.workers

    def move(self, task: TaskRecord, agent: AgentRecord, other: AgentRecord) -> None:
        """The task goes to another agent."""
        self.moved.add(task)
        self._instead.setdefault(agent, {})[task] = None
        self._more.setdefault(other, []).append(task)

    def exchange(self, task: TaskRecord, agent: AgentRecord, stranger: TaskRecord, other: AgentRecord) -> None:
        """The task and one of the other agent's change places."""
        self.moved |= {task, stranger}
        self._instead.setdefault(agent, {})[task] = stranger
        self._instead.setdefault(other, {})[stranger] = task

    def finish(self) -> set[AgentRecord]:
        """Make it so; returns the agents that it concerns."""
        changed = self._instead.keys() | self._more.keys()
        chains = {chain[0]: chain for agent in changed for chain in _chains(self.given.get(agent, ()))}
        for agent in changed:
            instead = self._instead.get(agent, {})
            kept = [instead.get(task, task) for task in self.given.get(agent, ()) if task in chains]
            kept += self._more.get(agent, ())
            self.given[agent] = [task for first in kept if first is not None for task in chains[first]]
        return set(changed)


def _chains(tasks: Iterable[TaskRecord]) -> list[list[TaskRecord]]:
    """Each task with those behind it that lack its result, or that of one of these."""
    chains: list[list[TaskRecord]] = []
    for task in tasks:
        if task.extra is not None and task.extra.lacking:
            chains[-1].append(task)
        else:
            chains.append([task])
    return chains
