"""OrderedReplies: the records of runs, which leave in the order of the runs, also where one waits for storage.

The record of a stored outcome may go only when storage has that. Meanwhile the next run is on, and what it says stands
behind.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from scaler_io.once_event import OnceEvent
from scaler_protocol.errors import ScalerError
from scaler_worker.worker.forks import notify_forks

OnError = Callable[[ScalerError], bytes]
"""The record to say instead."""
_WAIT_SECONDS: Final = 1.0


class PendingReply:
    """A DeferredReply (scaler_worker.worker.runner)."""

    __slots__ = ("_answers", "_error", "_on_error", "_record", "_stored")

    def __init__(self, answers: OrderedReplies) -> None:
        self._answers = answers
        self._record: bytes | None = None
        self._on_error: OnError | None = None
        self._error: ScalerError | None = None
        self._stored = OnceEvent()

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


class OrderedReplies:
    """The way to the agent, for several threads; `write` writes one record.

    A finalizer or signal handler that interrupts a write, and prints, leaves its record to the call that it interrupts.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self.forked()
        notify_forks(self)

    def forked(self) -> None:
        """What our parent has not said yet it says itself."""
        self._waiting: deque[bytes | PendingReply] = deque()
        self._writing = False
        self._lock = threading.RLock()

    def write(self, record: bytes) -> None:
        """Say this behind all that was to be said before."""
        with self._lock:
            if self._writing or self._waiting:
                self._waiting.append(record)
            else:
                self._writing = True
                try:
                    self._write(record)
                finally:
                    self._writing = False
            if self._waiting:
                self.flush()

    def reserve(self) -> PendingReply:
        """The next place."""
        answer = PendingReply(self)
        self._waiting.append(answer)
        return answer

    def flush(self) -> None:
        """Say what need not wait any more."""
        with self._lock:
            while not self._writing and self._next() is not None:
                self._writing = True
                try:
                    while (record := self._next()) is not None:
                        self._waiting.popleft()
                        self._write(record)
                finally:
                    self._writing = False

    def finish(self) -> None:
        """Wait for storage until all is said."""
        for answer in list(self._waiting):
            if isinstance(answer, PendingReply):
                answer.wait()
        self.flush()

    def _next(self) -> bytes | None:
        """What may be said now."""
        if not self._waiting:
            return None
        return first.record if isinstance(first := self._waiting[0], PendingReply) else first
