"""Memory goes back to the system when the scheduler rests, and only then."""

from __future__ import annotations

import asyncio
import contextlib

from scaler_scheduler.core.event_log import EventLog
from scaler_scheduler.service.idle import WORTH_BYTES, WORTH_TASKS, give_back_when_idle

SECONDS = 20.0


async def rest(event_log: EventLog, given: asyncio.Event) -> list[int]:
    """How many tasks had been submitted each time that memory was given back."""
    times: list[int] = []

    def give_back() -> None:
        times.append(event_log.submitted)
        given.set()

    idling = asyncio.ensure_future(give_back_when_idle(lambda: event_log.submitted, 0.01, give_back))
    for _ in range(2):
        event_log.submitted += WORTH_TASKS
        await asyncio.wait_for(given.wait(), SECONDS)
        given.clear()
    idling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await idling
    return times


def test_memory_is_given_back_once_for_each_burst() -> None:
    async def main() -> list[int]:
        return await rest(EventLog(), asyncio.Event())

    assert asyncio.run(main()) == [WORTH_TASKS, 2 * WORTH_TASKS]


def test_memory_that_peers_without_tasks_have_taken_is_given_back_once() -> None:
    async def main() -> list[int]:
        looked, given, enough = list[int](), list[int](), asyncio.Event()

        def taken() -> int:
            looked.append(WORTH_BYTES * (len(looked) > 5))
            if len(looked) > 20:
                enough.set()
            return looked[-1]

        idling = asyncio.ensure_future(give_back_when_idle(lambda: 0, 0.01, lambda: given.append(looked[-1]), taken))
        await asyncio.wait_for(enough.wait(), SECONDS)
        idling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await idling
        return given

    assert len(asyncio.run(main())) == 1
