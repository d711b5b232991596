"""WorkerQueries: clients that ask for the workers, or wait until enough of them are connected. Pure, no IO."""

from __future__ import annotations

from scaler_protocol.capacity import ListWorkers, WorkerList
from scaler_scheduler.core.event_log import capability_text
from scaler_scheduler.core.state import SchedulerState

QUERIES = 256
"""Most open queries of one client; the oldest is dropped."""


class WorkerQueries:
    """The queries that wait for workers."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._open: dict[bytes, dict[int, int]] = {}
        """By client, its requests with the number of workers that each waits for."""

    def ask(self, peer: bytes, query: ListWorkers) -> None:
        """Answer a query at once, or as soon as enough workers are connected."""
        requests = self._open.setdefault(peer, {})
        requests.pop(query.request, None)
        requests[query.request] = query.at_least
        if len(requests) > QUERIES:
            del requests[next(iter(requests))]
        self.answer()

    def answer(self) -> None:
        """Workers may have connected: answer the queries that waited for them."""
        if not self._open:
            return
        agents = [agent for agent in self._state.agents.values() if agent.workers]
        count = sum(agent.workers for agent in agents)
        for peer, requests in list(self._open.items()):
            for request in [request for request, at_least in requests.items() if at_least <= count]:
                del requests[request]
                answer = WorkerList(
                    request,
                    [agent.host for agent in agents],
                    [agent.workers for agent in agents],
                    [capability_text(agent.worker_class.capabilities) for agent in agents],
                    [agent.manager for agent in agents],
                )
                self._state.send(peer, answer)
            if not requests:
                del self._open[peer]

    def forget(self, peer: bytes) -> None:
        """A client is gone."""
        self._open.pop(peer, None)
