"""Runs memory-bound work, which releases the GIL, in parts on several threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

Work = Callable[[int, int], object]

_THREADS_LIMIT: Final = 4


def run_parallel(work: Work, size: int, least: int) -> None:
    """`work(start, stop)` for parts of `size`, none smaller than `least` if there are several; raises what it raises.

    Its threads have ended when it returns.
    """
    count = max(1, min(size // least, os.cpu_count() or 1, _THREADS_LIMIT))
    step = -(-size // count)
    if count == 1:
        work(0, size)
        return
    with ThreadPoolExecutor(count - 1) as pool:
        ends = [_begun(pool, work, start, min(start + step, size)) for start in range(step, size, step)]
        work(0, step)
        for end in ends:
            end()


def _begun(pool: ThreadPoolExecutor, work: Work, start: int, stop: int) -> Callable[[], object]:
    """Start a part; returns the function that waits for its end."""
    try:
        return pool.submit(work, start, stop).result
    except RuntimeError:  # during interpreter shutdown no thread can be started
        return lambda: work(start, stop)
