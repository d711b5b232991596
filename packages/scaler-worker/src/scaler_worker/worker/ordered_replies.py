"""Replies leave in the order of the runs, also while one waits for object storage.

The reply of a stored result may be written only when storage has the object. Meanwhile the next run executes, and its
replies queue behind.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final

from scaler_io.reentrant_lock import ReentrantLock
from scaler_io.thread_event import ThreadEvent
from scaler_protocol.errors import ScalerError
from scaler_worker.worker.forks import notify_forks

OnError = Callable[[ScalerError], bytes]
"""Makes the bytes that replace the reply if its result could not be stored."""
_WAIT_SECONDS: Final = 1.0


class PendingReply:
    """A reply with a reserved position: written when its bytes are known and its result is stored."""

    __slots__ = ("_error", "_on_error", "_packed", "_replies", "_stored")

    def __init__(self, replies: OrderedReplies) -> None:
        self._replies = replies
        self._packed: bytes | None = None
        self._on_error: OnError | None = None
        self._error: ScalerError | None = None
        self._stored = ThreadEvent()

    def complete(self, reply: bytes, on_error: OnError) -> None:
        """Set the reply to write once the result is stored; `on_error` makes one if it could not be stored."""
        self._packed, self._on_error = reply, on_error
        self._replies.flush()

    def stored(self, error: ScalerError | None) -> None:
        """Storage has the result, or failed with `error`; from any thread."""
        self._error = error
        self._stored.set()
        with contextlib.suppress(BrokenPipeError):  # the agent has exited, and this process exits soon
            self._replies.flush()

    def wait(self) -> bool:
        """Block until storage has answered; returns whether it has the result."""
        while not self._stored.wait(_WAIT_SECONDS):
            pass
        return self._error is None

    @property
    def packed(self) -> bytes | None:
        """The bytes to write; None while they are unknown or its result is not stored yet."""
        if not self._stored.is_set() or self._packed is None or self._on_error is None:
            return None
        return self._packed if self._error is None else self._on_error(self._error)


class OrderedReplies:
    """The queue of replies to the agent; thread-safe. `write` writes one of them.

    If a finalizer or signal handler interrupts a write and prints, the interrupted call writes its reply.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self.forked()
        notify_forks(self)

    def forked(self) -> None:
        """Drop queued replies: the parent writes them."""
        self._waiting: deque[bytes | PendingReply] = deque()
        self._writing = False
        self._lock = ReentrantLock()

    def write(self, reply: bytes) -> None:
        """Write a reply after all earlier ones."""
        with self._lock:
            if self._writing or self._waiting:
                self._waiting.append(reply)
            else:
                self._writing = True
                try:
                    self._write(reply)
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
        """Write the replies at the front that are complete."""
        with self._lock:
            while not self._writing and self._next() is not None:
                self._writing = True
                try:
                    while (packed := self._next()) is not None:
                        self._waiting.popleft()
                        self._write(packed)
                finally:
                    self._writing = False

    def finish(self) -> None:
        """Wait for storage until every reply is written."""
        for reply in list(self._waiting):
            if isinstance(reply, PendingReply):
                reply.wait()
        self.flush()

    def _next(self) -> bytes | None:
        """The bytes of the reply at the front, if it is complete."""
        if not self._waiting:
            return None
        return first.packed if isinstance(first := self._waiting[0], PendingReply) else first
