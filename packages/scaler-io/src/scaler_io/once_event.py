"""OnceEvent: something that happens once, and that threads wait for; and which threads must not wait for anything."""

from __future__ import annotations

import contextlib
import threading


class _Thread(threading.local):
    serves = False


_this_thread = _Thread()


def never_wait_here() -> None:
    """This thread serves others, who would wait for ever if it did: from now on `check_may_wait` raises in it."""
    _this_thread.serves = True


def check_may_wait() -> None:
    """Raises RuntimeError in a thread that must not wait. It is called before any wait for the work of such a thread.

    Code of users comes to run there as a finalizer: the garbage collector calls those in whatever thread it runs in.
    """
    if _this_thread.serves:
        raise RuntimeError(
            f"a call that waits was made in thread {threading.current_thread().name}, which would wait for itself: a "
            "finalizer (__del__, weakref.finalize) may run in any thread; it may submit calls, but what waits for a "
            "result, or for storage, must be left to a thread of your own"
        )


class OnceEvent:
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
        thread that is interrupted here may leave others to find out at the end of theirs. Raises RuntimeError in a
        thread that must not wait.
        """
        if not self._set:
            check_may_wait()
        if not self._set and self._closed.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX)):
            self._open()  # for the next one
        return self._set

    def _open(self) -> None:
        with contextlib.suppress(RuntimeError):  # another thread has done it
            self._closed.release()
