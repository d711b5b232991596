"""Answers: the records of runs, which leave in the order of the runs, also where one waits for storage.

The record of a stored outcome may go only when storage has that. Meanwhile the next run is on, and what it says stands
behind.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final

from scaler_io.latches import Latch
from scaler_protocol.errors import ScalerError
from scaler_worker.forks import tell_in_forks
from scaler_worker.pump import Pump

OnError = Callable[[ScalerError], bytes]
"""The record to say instead."""
_WAIT_SECONDS: Final = 1.0


class Answer:
    """A LateAnswer (scaler_worker.worker_core)."""

    __slots__ = ("_answers", "_error", "_on_error", "_record", "_stored")

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._record: bytes | None = None
        self._on_error: OnError | None = None
        self._error: ScalerError | None = None
        self._stored = Latch()

    def say(self, record: bytes, on_error: OnError) -> None:
        """As the contract says."""
        self._record, self._on_error = record, on_error
        self._answers.flush()

    def stored(self, error: ScalerError | None) -> None:
        """As the contract says."""
        self._error = error
        self._stored.set()
        with contextlib.suppress(BrokenPipeError):  # the agent is gone, and we soon are
            self._answers.flush()

    def wait(self) -> bool:
        """As the contract says."""
        while not self._stored.wait(_WAIT_SECONDS):
            pass
        return self._error is None

    @property
    def record(self) -> bytes | None:
        """What is to be said now, if anything."""
        if not self._stored.is_set() or self._record is None or self._on_error is None:
            return None
        return self._record if self._error is None else self._on_error(self._error)


class Answers:
    """The way to the agent, for several threads, finalizers and signal handlers; `write` writes one record."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._waiting: deque[bytes | Answer] = deque()
        self._pump = Pump(self._say)
        tell_in_forks(self)

    def forked(self) -> None:
        """What the parent has not said yet it says itself."""
        self._waiting.clear()
        self._pump.renew()

    def write(self, record: bytes) -> None:
        """Say this behind all that was to be said before."""
        self._waiting.append(record)
        self._pump.run()

    def reserve(self) -> Answer:
        """The next place."""
        answer = Answer(self)
        self._waiting.append(answer)
        return answer

    def flush(self) -> None:
        """Say what need not wait any more."""
        self._pump.run()

    def _say(self) -> None:
        waiting = self._waiting
        while waiting:
            record = first.record if isinstance(first := waiting[0], Answer) else first
            if record is None:
                return
            waiting.popleft()
            self._write(record)
