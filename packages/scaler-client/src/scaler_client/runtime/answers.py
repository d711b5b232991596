"""AnswerWaiter: a thread that waits for the scheduler's answer."""

from __future__ import annotations

import time
from typing import Final, Generic, TypeVar

from scaler_io.thread_event import ThreadEvent
from scaler_protocol.errors import ScalerError

Answer = TypeVar("Answer")
LOOK_SECONDS: Final = 1.0
"""How long a thread blocks in one step, so that Ctrl-C is noticed on Windows."""


class AnswerWaiter(Generic[Answer]):
    """One thread that waits, and its answer."""

    def __init__(self) -> None:
        self.event = ThreadEvent()
        self.answer: Answer | ScalerError | None = None

    def set(self, answer: Answer | ScalerError) -> None:
        """Hand over the answer."""
        self.answer = answer
        self.event.set()

    def wait(self, seconds: float | None) -> Answer | None:
        """The answer; None after `seconds`. Raises the error that came instead."""
        until = None if seconds is None else time.monotonic() + seconds
        while not self.event.is_set():
            left = LOOK_SECONDS if until is None else min(LOOK_SECONDS, until - time.monotonic())
            if not self.event.wait(left) and left < LOOK_SECONDS:
                return None
        if isinstance(self.answer, ScalerError):
            raise type(self.answer)(*self.answer.args) from self.answer
        return self.answer
