"""WorkerLists: threads that wait for the list of connected workers."""

from __future__ import annotations

import contextlib
import itertools
from typing import Final

from scaler_client.core.effects import WorkersListed
from scaler_client.core.events import WorkersRequested, WorkersUnwanted
from scaler_client.runtime.answers import AnswerWaiter
from scaler_client.runtime.blocking import BlockingSection, MailboxEntry
from scaler_client.runtime.mailbox import Mailbox
from scaler_protocol.capacity import WorkerList
from scaler_protocol.errors import ClientForkedError, ClientQuitError

LAST_SECONDS: Final = 1.0
"""How long to wait, after the timeout, for the workers that there are."""


class WorkerLists:
    """Requests of any thread; the io thread answers them."""

    def __init__(self, mailbox: Mailbox[MailboxEntry], blocking: BlockingSection) -> None:
        self._mailbox, self._blocking = mailbox, blocking
        self._numbers = itertools.count()
        self._waiting: dict[int, AnswerWaiter[WorkerList]] = {}

    def ask(self, at_least: int, seconds: float | None) -> WorkerList | None:
        """The connected workers, once there are `at_least`, or as they are after `seconds`; None without an answer.

        Raises ClientQuitError, or the error that ends the client's calls.
        """
        number = next(self._numbers)
        waiting = self._waiting[number] = AnswerWaiter[WorkerList]()
        try:
            with self._blocking:
                self._request(number, at_least)
                if answer := waiting.wait(seconds):
                    return answer
                self._request(number, 0)
                return waiting.wait(LAST_SECONDS)
        finally:
            del self._waiting[number]
            if not waiting.event.is_set():
                with contextlib.suppress(ClientQuitError, ClientForkedError):
                    self._mailbox.put(WorkersUnwanted(number))

    def _request(self, number: int, at_least: int) -> None:
        self._mailbox.put(WorkersRequested(number, at_least))
        self._mailbox.flush()

    # --- the io thread ----------------------------------------------------------------------------------------------

    def answer(self, effect: WorkersListed) -> None:
        """Hand an answer to the thread that waits for it."""
        if waiting := self._waiting.get(effect.number):
            waiting.set(effect.answer)

    def end(self, failure: ClientQuitError | None) -> None:
        """The client is closed, and nothing is answered any more."""
        for waiting in list(self._waiting.values()):
            waiting.set(failure or ClientQuitError())
