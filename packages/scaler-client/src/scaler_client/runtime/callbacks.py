"""Callbacks: the thread that runs users' code, apart from the thread that talks to the scheduler."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

_log = logging.getLogger("scaler")


class Callbacks:
    """Runs what is added, in order, from `start` on; what one piece of work raises harms no other.

    The thread is not started by the first piece of work, which may come when none can be: at the limit of processes,
    or, from Python 3.12 on, when the interpreter ends.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.RLock()  # a signal handler may submit in the middle of this
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="scaler-callbacks", daemon=True)

    def start(self) -> None:
        """Start the thread; raises RuntimeError where the system has none left."""
        self._thread.start()

    def add(self, work: Callable[[], object]) -> None:
        """Run this soon; after `stop` the calling thread runs it at once."""
        with self._lock:
            if not self._stopped:
                self._work.put(work)
                return
        _perform(work)

    def stop(self) -> None:
        """End after what was added."""
        with self._lock:
            self._stopped = True
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            _perform(work)
            work = None  # the next may be long in coming, and a future keeps its result


def _perform(work: Callable[[], object]) -> None:
    try:
        work()
    except BaseException:  # sys.exit() in a callback ends neither the thread nor the process
        _log.exception("a callback failed")
