"""Callbacks: the thread that runs users' code, apart from the thread that talks to the scheduler."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

_log = logging.getLogger("scaler")


class Callbacks:
    """Runs what is added, in order. The first piece of work starts the thread; what one raises harms no other."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, work: Callable[[], object]) -> None:
        """Run this soon. Raises RuntimeError where no thread can be started; the next call tries again."""
        self._work.put(work)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="scaler-callbacks", daemon=True)
            thread.start()
            self._thread = thread

    def stop(self) -> None:
        """End after what was added; the calling thread runs it where no thread could be started."""
        self._work.put(None)
        if self._thread is None:
            self._run()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException:  # sys.exit() in a callback ends neither this thread nor the process
                _log.exception("a callback failed")
            work = None  # the next may be long in coming, and a future keeps its result
