"""Calls that may block for long, in threads which do not keep the program from ending: those of an executor would."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


def call_each(function: Callable[[K], T], items: Iterable[K], most: int, name: str) -> dict[K, Future[T]]:
    """Call a function for each item, `most` at a time, this thread included; returns when all calls have ended."""
    futures: dict[K, Future[T]] = {item: Future() for item in items}
    waiting: queue.SimpleQueue[K] = queue.SimpleQueue()
    for item in futures:
        waiting.put(item)

    def run() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                item = waiting.get_nowait()
                _settle(futures[item], lambda item=item: function(item))  # type: ignore[misc]

    threads = []
    for _ in range(min(most, len(futures)) - 1):
        thread = threading.Thread(target=run, name=name, daemon=True)
        with contextlib.suppress(RuntimeError):  # no further thread is allowed: fewer do it, too
            thread.start()
            threads.append(thread)
    run()
    for thread in threads:
        thread.join()
    return futures


async def call_aside(function: Callable[[], T], name: str) -> T:
    """Call a function in a thread of its own; if this is cancelled the call goes on, and its outcome is dropped."""
    future: Future[T] = Future()
    threading.Thread(target=lambda: _settle(future, function), name=name, daemon=True).start()
    return await asyncio.wrap_future(future)


def _settle(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)
