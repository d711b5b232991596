"""WorkThread: a thread that does work in order, and has the loop told of the results."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class WorkThread:
    """Runs functions that may block. A daemon: work that never ends does not keep the process from ending.

    Construct it inside the running loop.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Callable[..., object]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], T], then: Callable[[T | Exception], object]) -> None:
        """Do this after what was asked before; `then` gets its result or exception, on the loop."""
        self._work.put((work, then))

    def close(self, seconds: float) -> None:
        """Do what was asked, for at most so long, and end."""
        self._work.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, then = item
            result: Any
            try:
                result = work()
            except Exception as error:
                result = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(then, result)
            del item, work, then, result
