"""Replies in order: records leave in the order of the runs, also while one waits for object storage.

The record of a stored result may be written only when storage has the object. Meanwhile the next run executes, and its
records queue behind.
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
"""Makes the record that replaces the reply if its result could not be stored."""
_WAIT_SECONDS: Final = 1.0


class PendingReply:
    """Implements DeferredReply (scaler_worker.worker.runner)."""

    __slots__ = ("_error", "_on_error", "_record", "_replies", "_stored")

    def __init__(self, replies: OrderedReplies) -> None:
        self._replies = replies
        self._record: bytes | None = None
        self._on_error: OnError | None = None
        self._error: ScalerError | None = None
        self._stored = OnceEvent()

    def complete(self, record: bytes, on_error: OnError) -> None:
        """See DeferredReply."""
        self._record, self._on_error = record, on_error
        self._replies.flush()

    def stored(self, error: ScalerError | None) -> None:
        """See DeferredReply."""
        self._error = error
        self._stored.set()
        with contextlib.suppress(BrokenPipeError):  # the agent has exited, and this process exits soon
            self._replies.flush()

    def wait(self) -> bool:
        """See DeferredReply."""
        while not self._stored.wait(_WAIT_SECONDS):
            pass
        return self._error is None

    @property
    def record(self) -> bytes | None:
        """The record to write; None while it is unknown or its result is not stored yet."""
        if not self._stored.is_set() or self._record is None or self._on_error is None:
            return None
        return self._record if self._error is None else self._on_error(self._error)


class OrderedReplies:
    """The queue of records to the agent; thread-safe. `write` writes one record.

    If a finalizer or signal handler interrupts a write and prints, the interrupted call writes its record.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self.forked()
        notify_forks(self)

    def forked(self) -> None:
        """Drop queued records: the parent writes them."""
        self._waiting: deque[bytes | PendingReply] = deque()
        self._writing = False
        self._lock = threading.RLock()

    def write(self, record: bytes) -> None:
        """Write a record after all earlier ones."""
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
        """Reserve the next position in the order."""
        reply = PendingReply(self)
        self._waiting.append(reply)
        return reply

    def flush(self) -> None:
        """Write the records at the front that are complete."""
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
        """Wait for storage until every record is written."""
        for reply in list(self._waiting):
            if isinstance(reply, PendingReply):
                reply.wait()
        self.flush()

    def _next(self) -> bytes | None:
        """The record at the front, if it is complete."""
        if not self._waiting:
            return None
        return first.record if isinstance(first := self._waiting[0], PendingReply) else first
