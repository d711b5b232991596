"""SessionRequests: what is asked about the client's named session, and the names of its futures. Pure, no IO."""

from __future__ import annotations

from scaler_client.core.effects import SessionAnswered
from scaler_client.core.events import SessionRequested, TaskLabelled
from scaler_protocol.errors import ScalerError
from scaler_protocol.messages import Message
from scaler_protocol.sessions import EndSession, LabelTask, ListTasks, TaskList


class SessionRequests:
    """Requests until the last piece of their answers; each number is used by one thread."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[ListTasks | EndSession, list[TaskList]]] = {}
        self._labels: dict[str, int] = {}
        self.leaving: list[int] = []
        """Numbers of LeaveRequested that wait until all calls are sent."""

    def ask(self, event: SessionRequested) -> Message:
        """Open a request; returns the message to send."""
        self._open[event.message.request] = event.message, []
        return event.message

    def label(self, event: TaskLabelled) -> Message:
        """Name a task; returns the message to send."""
        self._labels[event.label] = event.task
        return LabelTask(event.task, event.label)

    def again(self) -> list[Message]:
        """The messages to send over a new stream."""
        for _, pieces in self._open.values():
            pieces.clear()
        labels = [LabelTask(task, label) for label, task in self._labels.items()]
        return [*labels, *(message for message, _ in self._open.values())]

    def answer(self, piece: TaskList) -> SessionAnswered | None:
        """Add a piece; the answer if it was the last one."""
        if (found := self._open.get(piece.request)) is None:
            return None
        found[1].append(piece)
        if piece.left:
            return None
        del self._open[piece.request]
        return SessionAnswered(piece.request, ScalerError(piece.error) if piece.error else found[1])

    def fail(self, error: ScalerError) -> list[SessionAnswered]:
        """Close all requests with an error."""
        requests, self._open = self._open, {}
        return [SessionAnswered(number, error) for number in requests]
