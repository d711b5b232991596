"""Returns free memory to the system while the scheduler is idle."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from scaler_io.service.process import give_back_memory, resident_bytes

IDLE_SECONDS = 10.0
WORTH_TASKS = 100_000
"""Memory is returned after at least this many tasks,"""
WORTH_BYTES = 32 * 1024 * 1024
"""or if it has grown by this much: peers and messages without tasks take memory, too."""


def _own_bytes() -> int:
    return resident_bytes(os.getpid())


async def give_back_when_idle(
    submitted: Callable[[], int],
    seconds: float = IDLE_SECONDS,
    give_back: Callable[[], None] = give_back_memory,
    taken: Callable[[], int] = _own_bytes,
) -> None:
    """Return free memory to the system, which takes milliseconds, when no task was submitted for `seconds`.

    `submitted` counts tasks since the start, `taken` the process's resident bytes.
    """
    given_back_at = seen = 0
    left = taken()
    while True:
        await asyncio.sleep(seconds)
        before, seen = seen, submitted()
        if seen == before and (seen >= given_back_at + WORTH_TASKS or taken() >= left + WORTH_BYTES):
            given_back_at = seen
            give_back()
            left = taken()
