"""Pump: serializes work that threads, finalizers and signal handlers request."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Pump:
    """Calls `work` once per request or for several at once, never concurrently.

    A finalizer or signal handler may interrupt `work` and request it: `run` then returns at once, and the interrupted
    caller calls `work` again.
    """

    __slots__ = ("_asked", "_lock", "_work", "_working")

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.renew()

    def renew(self) -> None:
        """Reset in a forked process, where the thread that was working does not exist."""
        self._lock = threading.RLock()
        self._asked = self._working = False

    def run(self) -> None:
        """Have `work` called after this request."""
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
