"""Latch: something that happens once, and that threads wait for."""

from __future__ import annotations

import contextlib
import threading


class Latch:
    """As `threading.Event`, but it is never cleared.

    An Event will not do where a user waits: interrupted in the middle of its `wait` it may let go of a lock that it
    does not have, and what comes out of it is a RuntimeError. A lock is waited for in one step.
    """

    __slots__ = ("_closed", "_set")

    def __init__(self) -> None:
        self._closed = threading.Lock()
        self._closed.acquire()
        self._set = False

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._set

    def set(self) -> None:
        """It has happened; nothing more where it had."""
        self._set = True
        self._open()

    def wait(self, timeout: float) -> bool:
        """Block until it has happened, for so many seconds at most; whether it has.

        Who waits without end asks again and again, a second each: on Windows nothing else lets a Ctrl-C through, and a
        thread that is interrupted here may leave others to find out at the end of theirs.
        """
        if not self._set and self._closed.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX)):
            self._open()  # for the next one
        return self._set

    def _open(self) -> None:
        with contextlib.suppress(RuntimeError):  # another thread has done it
            self._closed.release()
