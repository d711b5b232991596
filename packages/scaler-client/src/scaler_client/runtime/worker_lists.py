"""WorkerLists: threads that wait for the list of connected workers."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import Final

from scaler_client.core.effects import WorkersListed
from scaler_client.core.events import WorkersRequested, WorkersUnwanted
from scaler_client.runtime.blocking import BlockingSection, MailboxEntry
from scaler_client.runtime.mailbox import Mailbox
from scaler_io.thread_event import ThreadEvent
from scaler_protocol.capacity import WorkerList
from scaler_protocol.errors import ClientForkedError, ClientQuitError, ScalerError

LOOK_SECONDS: Final = 1.0
"""How long a thread blocks in one step, so that Ctrl-C is noticed on Windows."""
LAST_SECONDS: Final = 1.0
"""How long to wait, after the timeout, for the workers that there are."""


class _Waiting:
    """One thread that waits, and its answer."""

    def __init__(self) -> None:
        self.event = ThreadEvent()
        self.answer: WorkerList | ScalerError | None = None

    def set(self, answer: WorkerList | ScalerError) -> None:
        self.answer = answer
        self.event.set()

    def wait(self, seconds: float | None) -> WorkerList | None:
        """The answer; None after `seconds`. Raises the error that came instead."""
        until = None if seconds is None else time.monotonic() + seconds
        while not self.event.is_set():
            left = LOOK_SECONDS if until is None else min(LOOK_SECONDS, until - time.monotonic())
            if not self.event.wait(left) and left < LOOK_SECONDS:
                return None
        if isinstance(self.answer, ScalerError):
            raise type(self.answer)(*self.answer.args) from self.answer
        return self.answer


class WorkerLists:
    """Requests of any thread; the io thread answers them."""

    def __init__(self, mailbox: Mailbox[MailboxEntry], blocking: BlockingSection) -> None:
        self._mailbox, self._blocking = mailbox, blocking
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}

    def ask(self, at_least: int, seconds: float | None) -> WorkerList | None:
        """The connected workers, once there are `at_least`, or as they are after `seconds`; None without an answer.

        Raises ClientQuitError, or the error that ends the client's calls.
        """
        number, waiting = next(self._numbers), _Waiting()
        self._waiting[number] = waiting
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
