"""WorkerRequests: which requests for the connected workers are open. Pure, no IO."""

from __future__ import annotations

from scaler_client.core.effects import WorkersListed
from scaler_client.core.events import WorkersRequested
from scaler_protocol.capacity import ListWorkers, WorkerList
from scaler_protocol.errors import ScalerError


class WorkerRequests:
    """Requests until their answers; each number is used by one thread."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        """By number, how many workers the request waits for."""

    def __bool__(self) -> bool:
        return bool(self._open)

    def ask(self, event: WorkersRequested) -> ListWorkers:
        """Open a request, or replace the one with this number; returns the message to send."""
        self._open[event.number] = event.at_least
        return ListWorkers(event.number, event.at_least)

    def drop(self, number: int) -> ListWorkers | None:
        """Nobody waits for this request any more; returns the message that ends it at the scheduler, if it is open."""
        return ListWorkers(number) if self._open.pop(number, None) is not None else None

    def again(self) -> list[ListWorkers]:
        """The messages that open all requests at a new scheduler."""
        return [ListWorkers(number, at_least) for number, at_least in self._open.items()]

    def answer(self, message: WorkerList) -> WorkersListed | None:
        """Close a request with its answer; None for a request that is not open."""
        if self._open.pop(message.request, None) is None:
            return None
        return WorkersListed(message.request, message)

    def fail(self, error: ScalerError) -> list[WorkersListed]:
        """Close all requests with an error."""
        requests, self._open = self._open, {}
        return [WorkersListed(number, error) for number in requests]
