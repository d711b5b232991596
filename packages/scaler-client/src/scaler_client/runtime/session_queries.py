"""SessionQueries: threads that ask about the client's named session."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from scaler_client.core.effects import SessionAnswered
from scaler_client.core.events import SessionRequested
from scaler_client.runtime.answers import AnswerWaiter
from scaler_client.runtime.blocking import BlockingSection, MailboxEntry
from scaler_client.runtime.mailbox import Mailbox
from scaler_protocol.errors import ClientQuitError
from scaler_protocol.sessions import ConfirmTasks, EndSession, ListTasks, TaskList


class SessionQueries:
    """Requests of any thread; the io thread answers them."""

    def __init__(self, mailbox: Mailbox[MailboxEntry], blocking: BlockingSection) -> None:
        self._mailbox, self._blocking = mailbox, blocking
        self._numbers = itertools.count(1)
        self._waiting: dict[int, AnswerWaiter[Sequence[TaskList]]] = {}

    def tasks(self) -> Sequence[TaskList]:
        """The tasks of the session, in pieces; raises ScalerError."""
        return self._ask(ListTasks(next(self._numbers))) or ()

    def end_session(self) -> None:
        """End the session; raises ScalerError."""
        self._ask(EndSession(next(self._numbers)))

    def confirm(self, seconds: float) -> bool:
        """Whether the scheduler has all calls, or has them within `seconds`; raises ScalerError."""
        return self._ask(ConfirmTasks(next(self._numbers)), seconds) is not None

    def _ask(
        self, message: ListTasks | EndSession | ConfirmTasks, seconds: float | None = None
    ) -> Sequence[TaskList] | None:
        waiting = self._waiting[message.request] = AnswerWaiter[Sequence[TaskList]]()
        try:
            with self._blocking:
                self._mailbox.put(SessionRequested(message))
                self._mailbox.flush()
                return waiting.wait(seconds)
        finally:
            del self._waiting[message.request]

    # --- the io thread ----------------------------------------------------------------------------------------------

    def answer(self, effect: SessionAnswered) -> None:
        """Hand an answer to the thread that waits for it."""
        if waiting := self._waiting.get(effect.number):
            waiting.set(effect.answer)

    def end(self, failure: ClientQuitError | None) -> None:
        """The client is closed, and nothing is answered any more."""
        for waiting in list(self._waiting.values()):
            waiting.set(failure or ClientQuitError())
