"""ProcessQueries: clients that ask for the workers' processes, which only the agents know. Pure, no IO."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import field

from scaler_protocol.capacity import ListProcesses, ProcessList
from scaler_protocol.ids import agent_of
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import MESSAGE_IDS
from scaler_scheduler.core.records import AgentRecord
from scaler_scheduler.core.state import SchedulerState

QUERIES = 256
"""Most open queries of one client; the oldest is dropped."""


@dataclass(slots=True, eq=False)
class ProcessQuery:
    """A query, and what the agents have answered."""

    client: bytes
    request: int
    asked: set[bytes]
    """Agents whose answers are missing."""
    pids: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    agents: list[bytes] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)


class ProcessQueries:
    """The queries that wait for agents."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._numbers = itertools.count(1)
        self._open: dict[int, ProcessQuery] = {}

    def ask(self, client: bytes, message: ListProcesses) -> None:
        """Ask every agent that has workers; one that connects later is not asked."""
        agents = {agent.peer for agent in self._state.agents.values() if agent.workers}
        mine = [number for number, query in self._open.items() if query.client == client]
        self._drop(lambda query: query.client == client and query.request == message.request)
        if len(mine) >= QUERIES:
            self._open.pop(mine[0], None)
        number = next(self._numbers)
        self._open[number] = ProcessQuery(client, message.request, agents)
        gone: dict[bytes, list[bytes]] = {}
        for worker in message.gone:
            if (agent := self._state.agent_of(agent_of(worker))) is not None:
                gone.setdefault(agent.peer, []).append(worker)
        for peer in agents:
            self._state.send(peer, ListProcesses(number, gone.get(peer, ())))
        self._answer(number)

    def answered(self, agent: AgentRecord, message: ProcessList) -> None:
        """An agent names its processes, a relay in as many parts as it takes; a late answer is ignored."""
        query = self._open.get(message.request)
        if query is None or agent.peer not in query.asked:
            return
        agents, hosts = [agent.peer] * len(message.pids), [agent.host] * len(message.pids)
        if agent.relay_incarnation and len(message.agents) == len(message.hosts) == len(message.pids):
            agents, hosts = list(message.agents), list(message.hosts)
            self._state.pinned.behind.update(dict.fromkeys(agents, agent))
        query.pids += message.pids
        query.names += message.names
        query.agents += agents
        query.hosts += hosts
        if not (message.left and agent.relay_incarnation):
            query.asked.discard(agent.peer)
            self._answer(message.request)

    def agent_left(self, agent: bytes) -> None:
        """An agent is gone, and its workers with it."""
        for number, query in list(self._open.items()):
            if agent in query.asked:
                query.asked.discard(agent)
                self._answer(number)

    def forget(self, client: bytes) -> None:
        """A client is gone."""
        self._drop(lambda query: query.client == client)

    def _drop(self, is_unwanted: Callable[[ProcessQuery], bool]) -> None:
        for number in [number for number, query in self._open.items() if is_unwanted(query)]:
            del self._open[number]

    def _answer(self, number: int) -> None:
        """Answer the client if all agents have answered."""
        if self._open[number].asked:
            return
        query = self._open.pop(number)
        count = len(query.pids)
        for at in range(0, max(1, count), MESSAGE_IDS):
            end = at + MESSAGE_IDS
            answer = ProcessList(
                query.request,
                query.pids[at:end],
                query.names[at:end],
                query.agents[at:end],
                query.hosts[at:end],
                left=max(0, count - end),
            )
            self._state.send(query.client, answer)
