"""SessionRequests: what is asked about the client's named session, and the names of its futures. Pure, no IO.

A confirmation says that the scheduler has all calls. It is asked for when all calls were sent, and asked for again if
others, such as those that the scheduler has requested meanwhile, were sent since.
"""

from __future__ import annotations

from scaler_client.core.effects import SessionAnswered
from scaler_client.core.events import SessionRequested, TaskLabelled
from scaler_protocol.errors import ScalerError
from scaler_protocol.messages import Message
from scaler_protocol.sessions import ConfirmTasks, EndSession, LabelTask, ListTasks, TaskList, give_name


class SessionRequests:
    """Requests until the last piece of their answers; each number is used by one thread."""

    def __init__(self) -> None:
        self.is_ending = False
        """The end of the session was asked for, and has not failed: the scheduler takes nothing else."""
        self._open: dict[int, tuple[ListTasks | EndSession | ConfirmTasks, list[TaskList]]] = {}
        self._labels: dict[str, int] = {}
        self.unasked: dict[int, ConfirmTasks] = {}
        """Requests for a confirmation that wait until all calls are sent."""
        self._overtaken: set[int] = set()
        """Requests for a confirmation that were sent before the last calls."""

    def ask(self, event: SessionRequested) -> Message | None:
        """Open a request; returns the message to send now, if any."""
        message = event.message
        if isinstance(message, ConfirmTasks):
            self.unasked[message.request] = message
            return None
        self._open[message.request] = message, []
        self.is_ending |= isinstance(message, EndSession)
        return message

    def calls_sent(self) -> None:
        """Calls were sent: what is confirmed does not count."""
        for number, (message, _) in self._open.items():
            if isinstance(message, ConfirmTasks):
                self._overtaken.add(number)

    def confirmations(self) -> list[ConfirmTasks]:
        """All calls were sent: the requests for a confirmation to send."""
        unasked, self.unasked = self.unasked, {}
        self._open.update((number, (message, [])) for number, message in unasked.items())
        return list(unasked.values())

    def label(self, event: TaskLabelled) -> Message:
        """Name a task; returns the message to send."""
        give_name(self._labels, event.label, event.task)
        return LabelTask(event.task, event.label)

    def again(self) -> list[Message]:
        """The messages to send over a new stream."""
        self._overtaken.clear()
        for number, (message, pieces) in list(self._open.items()):
            pieces.clear()
            if isinstance(message, ConfirmTasks):
                del self._open[number]
                self.unasked[number] = message
        labels = [LabelTask(task, label) for label, task in self._labels.items()]
        return [*labels, *(message for message, _ in self._open.values())]

    def answer(self, piece: TaskList, *, all_sent: bool) -> SessionAnswered | None:
        """Add a piece; the answer if it was the last one. `all_sent`: no call waits to be sent."""
        if (found := self._open.get(piece.request)) is None:
            return None
        found[1].append(piece)
        if piece.left:
            return None
        message, pieces = self._open.pop(piece.request)
        if isinstance(message, ConfirmTasks) and not piece.error and not self._counts(message, all_sent=all_sent):
            self.unasked[message.request] = message
            return None
        self.is_ending &= not (piece.error and isinstance(message, EndSession))
        return SessionAnswered(piece.request, ScalerError(piece.error) if piece.error else pieces)

    def _counts(self, message: ConfirmTasks, *, all_sent: bool) -> bool:
        was_overtaken = message.request in self._overtaken
        self._overtaken.discard(message.request)
        return all_sent and not was_overtaken

    def fail(self, error: ScalerError) -> list[SessionAnswered]:
        """Close all requests with an error."""
        numbers = [*self._open, *self.unasked]
        self._open, self.unasked = {}, {}
        self._overtaken.clear()
        self.is_ending = False
        return [SessionAnswered(number, error) for number in numbers]
