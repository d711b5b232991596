"""Idling: what the scheduler does when it has nothing to do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from scaler_io.service.process import give_back_memory, resident_bytes
from scaler_scheduler.core.event_log import EventLog

IDLE_SECONDS = 10.0
WORTH_TASKS = 100_000
"""After fewer tasks there is little to give back,"""
WORTH_BYTES = 32 * 1024 * 1024
"""unless our memory has grown by so much: peers and messages without tasks take some, too."""


def _own_bytes() -> int:
    return resident_bytes(os.getpid())


async def give_back_when_idle(
    event_log: EventLog,
    seconds: float = IDLE_SECONDS,
    give_back: Callable[[], None] = give_back_memory,
    taken: Callable[[], int] = _own_bytes,
) -> None:
    """Return free memory to the system once no task was submitted for some time: it takes milliseconds."""
    given_back_at = seen = 0
    left = taken()
    while True:
        await asyncio.sleep(seconds)
        before, seen = seen, event_log.submitted
        if seen == before and (seen >= given_back_at + WORTH_TASKS or taken() >= left + WORTH_BYTES):
            given_back_at = seen
            give_back()
            left = taken()
