"""Work on big memory, done in parts by several threads at once: what spends its time on memory outside of Python."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

_THREADS_LIMIT: Final = 4


def side_by_side(work: Callable[[int, int], T], size: int, least: int) -> list[T]:
    """`work(start, stop)` for parts of `size`, none smaller than `least` if there are several; what each returns.

    To the caller it is a function like any other: its threads end before it does. Raises what `work` does.
    """
    count = max(1, min(size // least, os.cpu_count() or 1, _THREADS_LIMIT))
    step = -(-size // count)
    if count == 1:
        return [work(0, size)]
    with ThreadPoolExecutor(count - 1) as pool:
        others = [_begun(pool, work, start, min(start + step, size)) for start in range(step, size, step)]
        return [work(0, step), *(other() for other in others)]


def _begun(pool: ThreadPoolExecutor, work: Callable[[int, int], T], start: int, stop: int) -> Callable[[], T]:
    try:
        future: Future[T] = pool.submit(work, start, stop)
    except RuntimeError:  # the interpreter is about to end, and starts no thread any more
        return lambda: work(start, stop)
    return future.result
