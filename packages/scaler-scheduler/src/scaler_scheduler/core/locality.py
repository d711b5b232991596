"""Locality: planned tasks move to the hosts of their big inputs, unless that would idle a worker. Pure, no IO.

The plan of one turn is improved: a task planned for an agent on another host than the one with most bytes of its inputs
moves to an idle worker of that host, or is exchanged for a task there that has no input on that host. So locality never
decides whether or when a task runs, only where; the order of tasks and the load of agents stay as they were. A chain
(`scaler_scheduler.core.chains`) moves with its first task.

An object is on the host that made it, and on those to which tasks that need it were sent. Objects below LOCAL_BYTES are
ignored: sending them costs less than looking for them. Where there are no big results, or only one host, nothing is
searched.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scaler_protocol.objects import OBJECT_ID_BYTES, SHARED_BYTES, Reference
from scaler_scheduler.core.exclusive import is_reserved
from scaler_scheduler.core.records import AgentRecord, TaskRecord
from scaler_scheduler.core.task_extra import TaskExtra

LOCAL_BYTES = SHARED_BYTES
OBJECTS_LIMIT = 16_384
"""Objects whose hosts are remembered."""
_HOSTS_LIMIT = 16
"""Hosts remembered for one object."""

Plan = Mapping[AgentRecord, list[TaskRecord]]


class Locality:
    """Which host has which big object; moves planned tasks there."""

    def __init__(self) -> None:
        self._hosts_by_object: OrderedDict[bytes, set[str]] = OrderedDict()
        self._agents_by_host: dict[str, list[AgentRecord]] = {}

    def joined(self, agent: AgentRecord) -> None:
        """An agent has connected and can be given work."""
        self._agents_by_host.setdefault(agent.host, []).append(agent)

    def left(self, agent: AgentRecord) -> None:
        """An agent is gone."""
        agents = self._agents_by_host[agent.host]
        agents.remove(agent)
        if not agents:
            del self._agents_by_host[agent.host]

    def add_location(self, packed: bytes, host: str) -> None:
        """The object of this packed reference is on a host."""
        name = packed[:OBJECT_ID_BYTES]
        if name in self._hosts_by_object:
            self._hosts_by_object.move_to_end(name)
            if len(self._hosts_by_object[name]) < _HOSTS_LIMIT:
                self._hosts_by_object[name].add(host)
        elif len(packed) > OBJECT_ID_BYTES and Reference.unpack(packed).size >= LOCAL_BYTES:
            self._hosts_by_object[name] = {host}
            if len(self._hosts_by_object) > OBJECTS_LIMIT:
                self._hosts_by_object.popitem(last=False)

    def improve(self, plan: Plan) -> dict[AgentRecord, list[TaskRecord]]:
        """The agents that should get other tasks than planned, each with all of its tasks."""
        if not self._is_active():
            return {}
        exchange = _Exchange(plan)
        for agent, task, sizes in list(self._misplaced(plan)):
            for other in self._agents_by_host.get(max(sizes, key=sizes.__getitem__), ()):
                usable = other.worker_class == agent.worker_class and not (other.resuming or is_reserved(other))
                if usable and task not in exchange.moved and self._move(task, agent, other, exchange):
                    break
        return exchange.result()

    def add_transfers(self, plan: Plan) -> None:
        """The inputs of these tasks will be on the hosts that the tasks are sent to."""
        if self._is_active():
            for agent, tasks in plan.items():
                for task in tasks:
                    if task.extra is not None:
                        for reference in _stored_inputs(task.extra):
                            if reference[:OBJECT_ID_BYTES] in self._hosts_by_object:
                                self.add_location(reference, agent.host)

    def _is_active(self) -> bool:
        return bool(self._hosts_by_object) and len(self._agents_by_host) > 1

    def _misplaced(self, plan: Plan) -> Iterator[tuple[AgentRecord, TaskRecord, Counter[str]]]:
        """Planned tasks of which another host has more input bytes, with the bytes by host."""
        for agent, tasks in plan.items():
            for task in tasks:
                if task.extra is not None and task.extra.inputs and not task.extra.missing_inputs:
                    sizes = self._bytes_by_host(task.extra)
                    if sizes and sizes[agent.host] < max(sizes.values()):
                        yield agent, task, sizes

    def _bytes_by_host(self, task: TaskExtra) -> Counter[str]:
        sizes: Counter[str] = Counter()
        for reference in _stored_inputs(task):
            for host in self._hosts_by_object.get(reference[:OBJECT_ID_BYTES], ()):
                sizes[host] += Reference.unpack(reference).size
        return sizes

    def _move(self, task: TaskRecord, agent: AgentRecord, other: AgentRecord, exchange: _Exchange) -> bool:
        """Move the task to an idle worker of the other agent, or exchange it; returns whether that was possible."""
        if exchange.is_idle(other):
            exchange.move(task, agent, other)
            return True
        substitute = self._task_without_affinity(other, exchange)
        if substitute is None:
            return False
        exchange.swap(task, agent, substitute, other)
        return True

    def _task_without_affinity(self, agent: AgentRecord, exchange: _Exchange) -> TaskRecord | None:
        """A task planned for this agent that has no input on its host and has not moved."""
        candidates = exchange.candidates.get(agent)
        if candidates is None:
            candidates = exchange.candidates[agent] = [
                task
                for task in exchange.plan.get(agent, ())
                if task.extra is None or not (task.extra.missing_inputs or self._bytes_by_host(task.extra)[agent.host])
            ]
        while candidates and candidates[-1] in exchange.moved:
            candidates.pop()
        return candidates.pop() if candidates else None


class _Exchange:
    """Moves within the plan of one turn: tasks that are swapped, and tasks that go to idle workers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.moved: set[TaskRecord] = set()
        self.candidates: dict[AgentRecord, list[TaskRecord]] = {}
        self._replacements: dict[AgentRecord, dict[TaskRecord, TaskRecord | None]] = {}
        """By agent, planned tasks that leave it, each with the task that takes its place, if any."""
        self._additions: dict[AgentRecord, list[TaskRecord]] = {}

    def is_idle(self, agent: AgentRecord) -> bool:
        """Whether the agent has a worker without a task."""
        planned = len(self.plan.get(agent, ())) + len(self._additions.get(agent, ()))
        removed = sum(replacement is None for replacement in self._replacements.get(agent, {}).values())
        return agent.active + planned - removed < agent.workers

    def move(self, task: TaskRecord, agent: AgentRecord, other: AgentRecord) -> None:
        """Move the task to another agent."""
        self.moved.add(task)
        self._replacements.setdefault(agent, {})[task] = None
        self._additions.setdefault(other, []).append(task)

    def swap(self, task: TaskRecord, agent: AgentRecord, substitute: TaskRecord, other: AgentRecord) -> None:
        """Exchange the task for one of the other agent's."""
        self.moved |= {task, substitute}
        self._replacements.setdefault(agent, {})[task] = substitute
        self._replacements.setdefault(other, {})[substitute] = task

    def result(self) -> dict[AgentRecord, list[TaskRecord]]:
        """The agents that are concerned, each with its tasks after all moves; chains stay together."""
        changed = self._replacements.keys() | self._additions.keys()
        chains = {chain[0]: chain for agent in changed for chain in _chains(self.plan.get(agent, ()))}
        return {
            agent: [task for first in self._first_tasks(agent) if first in chains for task in chains[first]]
            for agent in changed
        }

    def _first_tasks(self, agent: AgentRecord) -> Iterator[TaskRecord]:
        replacements = self._replacements.get(agent, {})
        for task in self.plan.get(agent, ()):
            replacement = replacements.get(task, task)
            if replacement is not None:
                yield replacement
        yield from self._additions.get(agent, ())


def _stored_inputs(task: TaskExtra) -> Iterator[bytes]:
    """The packed references among the inputs that have arrived."""
    for found in task.inputs.values():
        if found is not None and found[2]:
            yield found[1]


def _chains(tasks: Iterable[TaskRecord]) -> Sequence[list[TaskRecord]]:
    """Each ready task with the tasks of its chain, which follow it."""
    chains: list[list[TaskRecord]] = []
    for task in tasks:
        if task.extra is not None and task.extra.missing_inputs:
            chains[-1].append(task)
        else:
            chains.append([task])
    return chains
