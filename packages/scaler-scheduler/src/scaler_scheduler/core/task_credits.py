"""TaskCredits: how many tasks each client may have unfinished if the number of waiting ones is limited. Pure, no IO.

Each client may have as many unfinished tasks as there are workers, and an equal share of the limit besides. Tasks
beyond that are not refused: the credit is announced to clients, which keep to it.
"""

from __future__ import annotations

from collections.abc import Collection

from scaler_protocol.messages import TaskCredit
from scaler_scheduler.core.state import SchedulerState


class TaskCredits:
    """The task credit, which is the same for all clients and announced to all of them."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._announced = self.credit(1)

    def credit(self, clients: int) -> int:
        """The tasks that each of so many clients may have unfinished; 0 for any number."""
        limit = self._state.config.max_number_of_tasks_waiting
        if limit < 0:
            return 0
        return sum(agent.workers for agent in self._state.agents.values()) + max(1, limit // max(1, clients))

    def announce(self, clients: Collection[bytes]) -> None:
        """Clients or workers have come or gone: tell all clients their credit if it has changed."""
        credit = self.credit(len(clients))
        if credit != self._announced:
            self._announced = credit
            for client in clients:
                self._state.send(client, TaskCredit(credit))
