"""Pump: work that any thread, finalizer or signal handler may ask for, done by one of them at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Pump:
    """Calls `work` when asked to.

    A finalizer or signal handler may interrupt `work`, and ask, anywhere: it does not wait, and `work` is called again
    by the caller that it has interrupted.
    """

    __slots__ = ("_asked", "_lock", "_work", "_working")

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.renew()

    def renew(self) -> None:
        """Begin anew in a forked process: whoever was at work is not here."""
        self._lock = threading.RLock()
        self._asked = self._working = False

    def run(self) -> None:
        """Have `work` called after this moment."""
        self._asked = True
        with self._lock:
            if self._working:
                return
            while self._asked:
                self._working = True
                try:
                    self._asked = False
                    self._work()
                finally:
                    self._working = False
