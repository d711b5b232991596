"""WorkerRequests: which requests for the connected workers, or for their processes, are open. Pure, no IO."""

from __future__ import annotations

from scaler_client.core.effects import WorkersListed
from scaler_client.core.events import ProcessesRequested, WorkersRequested
from scaler_protocol.capacity import ListProcesses, ListWorkers, ProcessList, WorkerList
from scaler_protocol.errors import ScalerError


class WorkerRequests:
    """Requests until their answers; each number is used by one thread."""

    def __init__(self) -> None:
        self._open: dict[int, ListWorkers | ListProcesses] = {}
        self._parts: dict[int, list[ProcessList]] = {}
        """The answers that have come in part."""

    def __bool__(self) -> bool:
        return bool(self._open)

    def ask(self, event: WorkersRequested | ProcessesRequested) -> ListWorkers | ListProcesses:
        """Open a request, or replace the one with this number; returns the message to send."""
        message: ListWorkers | ListProcesses = (
            ListWorkers(event.number, event.at_least)
            if isinstance(event, WorkersRequested)
            else ListProcesses(event.number, event.gone)
        )
        self._open[event.number] = message
        return message

    def drop(self, number: int) -> ListWorkers | None:
        """Nobody waits for this request any more; returns the message that ends it at the scheduler, if there is one.

        One for processes ends on its own, and its answer is ignored.
        """
        self._parts.pop(number, None)
        return ListWorkers(number) if isinstance(self._open.pop(number, None), ListWorkers) else None

    def again(self) -> list[ListWorkers | ListProcesses]:
        """The messages that open all requests at a new scheduler."""
        self._parts.clear()
        return list(self._open.values())

    def answer(self, message: WorkerList | ProcessList) -> WorkersListed | None:
        """Close a request with its answer; None for a request that is not open, and for a part of an answer."""
        if message.request not in self._open:
            return None
        if isinstance(message, ProcessList):
            parts = self._parts.setdefault(message.request, [])
            parts.append(message)
            if message.left:
                return None
            message = _joined(self._parts.pop(message.request))
        del self._open[message.request]
        return WorkersListed(message.request, message)

    def fail(self, error: ScalerError) -> list[WorkersListed]:
        """Close all requests with an error."""
        requests, self._open = self._open, {}
        self._parts.clear()
        return [WorkersListed(number, error) for number in requests]


def _joined(parts: list[ProcessList]) -> ProcessList:
    """One list of several."""
    return ProcessList(
        parts[0].request,
        [pid for part in parts for pid in part.pids],
        [name for part in parts for name in part.names],
        [agent for part in parts for agent in part.agents],
        [host for part in parts for host in part.hosts],
    )
