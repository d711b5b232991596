"""WorkerLists: threads that wait for the list of connected workers, or of their processes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Final

from scaler_client.core.effects import WorkersListed
from scaler_client.core.events import ProcessesRequested, WorkersRequested, WorkersUnwanted
from scaler_client.runtime.answers import AnswerWaiter
from scaler_client.runtime.blocking import BlockingSection, MailboxEntry
from scaler_client.runtime.mailbox import Mailbox
from scaler_protocol.capacity import ProcessList, WorkerList
from scaler_protocol.errors import ClientForkedError, ClientQuitError

LAST_SECONDS: Final = 1.0
"""How long to wait, after the timeout, for the workers that there are."""


class WorkerLists:
    """Requests of any thread; the io thread answers them."""

    def __init__(self, mailbox: Mailbox[MailboxEntry], blocking: BlockingSection) -> None:
        self._mailbox, self._blocking = mailbox, blocking
        self._numbers = itertools.count()
        self._waiting: dict[int, AnswerWaiter[WorkerList | ProcessList]] = {}

    def ask(self, at_least: int, seconds: float | None) -> WorkerList | None:
        """The connected workers, once there are `at_least`, or as they are after `seconds`; None without an answer.

        Raises ClientQuitError, or the error that ends the client's calls.
        """
        with self._request() as (number, waiting):
            self._send(WorkersRequested(number, at_least))
            if (answer := waiting.wait(seconds)) is None:
                self._send(WorkersRequested(number, 0))
                answer = waiting.wait(LAST_SECONDS)
            assert answer is None or isinstance(answer, WorkerList)
            return answer

    def processes(self, seconds: float | None, gone: tuple[bytes, ...] = ()) -> ProcessList | None:
        """The processes of all workers, when those `gone` have ended; None without an answer within `seconds`.

        Raises as `ask` does.
        """
        with self._request() as (number, waiting):
            self._send(ProcessesRequested(number, gone))
            answer = waiting.wait(seconds)
            assert answer is None or isinstance(answer, ProcessList)
            return answer

    @contextlib.contextmanager
    def _request(self) -> Iterator[tuple[int, AnswerWaiter[WorkerList | ProcessList]]]:
        """The number of a new request, and what waits for its answer."""
        number = next(self._numbers)
        waiting = self._waiting[number] = AnswerWaiter[WorkerList | ProcessList]()
        try:
            with self._blocking:
                yield number, waiting
        finally:
            del self._waiting[number]
            if not waiting.event.is_set():
                with contextlib.suppress(ClientQuitError, ClientForkedError):
                    self._mailbox.put(WorkersUnwanted(number))

    def _send(self, request: WorkersRequested | ProcessesRequested) -> None:
        self._mailbox.put(request)
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
