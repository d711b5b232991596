"""Work on big memory, done in parts by several threads at once: what spends its time on memory outside of Python."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

Work = Callable[[int, int], object]

_THREADS_LIMIT: Final = 4


def side_by_side(work: Work, size: int, least: int) -> None:
    """`work(start, stop)` for parts of `size`, none smaller than `least` if there are several. Raises what that does.

    To the caller it is a function like any other: its threads end before it does.
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
    """What waits for the end of a part."""
    try:
        return pool.submit(work, start, stop).result
    except RuntimeError:  # the interpreter is about to end, and starts no thread any more
        return lambda: work(start, stop)
