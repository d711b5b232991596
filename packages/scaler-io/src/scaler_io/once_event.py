"""OnceEvent: a one-time event that threads wait for, and the check that a thread may wait at all."""

from __future__ import annotations

import contextlib
import threading


class _Thread(threading.local):
    serves = False


_this_thread = _Thread()


def never_wait_here() -> None:
    """Mark this thread as one that other threads wait for: from now on `check_may_wait` raises in it."""
    _this_thread.serves = True


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


class OnceEvent:
    """Like `threading.Event`, but it is never cleared, and `wait` may be interrupted at any point.

    An Event that is interrupted within `wait` may release a lock that it does not hold, which raises RuntimeError. A
    lock is acquired in one step.
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
        self._open()

    def wait(self, timeout: float) -> bool:
        """Block until the event has happened, at most `timeout` seconds; returns whether it has.

        To wait without a limit, call this in a loop with a timeout of a second: on Windows only this lets Ctrl-C
        through, and after an interrupted wait other threads may see the event only at their timeout. Raises
        RuntimeError in a thread that must not wait.
        """
        if not self._set:
            check_may_wait()
        if not self._set and self._closed.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX)):
            self._open()  # for the next waiting thread
        return self._set

    def _open(self) -> None:
        with contextlib.suppress(RuntimeError):  # another thread has done it
            self._closed.release()
