"""ThreadEvent: an event that threads wait for, and the check that a thread may wait at all."""

from __future__ import annotations

import sys
import threading
import time
from typing import Final

_LONGEST_WAIT: Final = 0.25 if sys.platform == "win32" else threading.TIMEOUT_MAX
"""Seconds that a thread waits for a lock without a look for signals: on Windows a wait lets no Ctrl-C through."""


class _Thread(threading.local):
    serves = False


_this_thread = _Thread()


def never_wait_here() -> None:
    """Mark this thread as one that other threads wait for: from now on `check_may_wait` raises in it."""
    _this_thread.serves = True


def may_wait() -> bool:
    """Whether this thread may wait for others: not if `never_wait_here` was called in it."""
    return not _this_thread.serves


def check_may_wait() -> None:
    """Raise RuntimeError in a thread that must not wait. Call it before every wait for the work of such a thread.

    User code runs there as a finalizer: the garbage collector calls finalizers in the thread that triggers it.
    """
    if _this_thread.serves:
        raise RuntimeError(
            f"a blocking call was made in thread {threading.current_thread().name}, which would wait for itself: a "
            "finalizer (__del__, weakref.finalize) may run in any thread; it may submit calls, but must leave calls "
            "that wait for a result or for storage to a thread of your own"
        )


class ThreadEvent:
    """Like `threading.Event`, but `wait` may be interrupted at any point.

    A `threading.Event` that a signal handler interrupts within `wait` may release a lock that it does not hold, which
    raises RuntimeError. A lock is acquired in one step.
    """

    __slots__ = ("_closed", "_set")

    def __init__(self) -> None:
        self._closed = threading.Lock()
        self._closed.acquire()
        self._set = False

    def is_set(self) -> bool:
        """Whether the event has happened."""
        return self._set

    def set(self) -> None:
        """Record that the event has happened; may be repeated."""
        self._set = True
        try:  # not contextlib.suppress, which takes longer than the rest
            self._closed.release()
        except RuntimeError:
            return  # it was released before

    def clear(self) -> None:
        """Forget that the event has happened. Only for an event with one waiting thread, which calls this itself."""
        self._set = False
        self._closed.acquire(blocking=False)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the event has happened, at most `timeout` seconds; returns whether it has.

        If several threads wait, let each call this in a loop with a timeout of a second: after an interrupted wait
        other threads may see the event only at their timeout. Raises RuntimeError in a thread that must not wait.
        """
        if self._set:
            return True
        check_may_wait()
        left = threading.TIMEOUT_MAX if timeout is None else float(min(max(timeout, 0.0), threading.TIMEOUT_MAX))
        ends = time.monotonic() + left
        while not self._closed.acquire(timeout=min(left, _LONGEST_WAIT)):
            left = ends - time.monotonic()
            if self._set or left <= 0.0:
                return self._set
        try:
            self._closed.release()  # for the next waiting thread
        except RuntimeError:
            return True  # another thread has released it
        return self._set
