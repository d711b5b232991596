"""Callbacks: the thread that runs user code, separate from the io thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from scaler_io.reentrant_lock import ReentrantLock

_log = logging.getLogger("scaler")


class Callbacks:
    """Runs callbacks in order after `start`; an exception of one is logged and does not affect the others.

    The thread is started in advance, because starting it with the first callback may fail: at the limit of processes,
    or, from Python 3.12 on, during interpreter shutdown.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = ReentrantLock()  # a signal handler may submit in the middle of this
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="scaler-callbacks", daemon=True)

    def start(self) -> None:
        """Start the thread; raises RuntimeError at the limit of threads."""
        self._thread.start()

    def add(self, work: Callable[[], object]) -> None:
        """Queue this callback; after `stop` the calling thread runs it at once."""
        with self._lock:
            if not self._stopped:
                self._work.put(work)
                return
        _perform(work)

    def stop(self) -> None:
        """End the thread after the queued callbacks."""
        with self._lock:
            self._stopped = True
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            _perform(work)
            work = None  # do not keep a future's result alive while waiting for the next


def _perform(work: Callable[[], object]) -> None:
    try:
        work()
    except BaseException:  # sys.exit() in a callback ends neither the thread nor the process
        _log.exception("a callback failed")
