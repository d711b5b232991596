"""Sweep: looks again and again, takes little time, and survives a look that fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from scaler_io.service.sweep import Sweep


def test_it_looks_until_it_is_closed() -> None:
    looks: list[float] = []

    async def run() -> None:
        enough = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)

        def look(seconds: float) -> float:
            looks.append(seconds)
            if len(looks) == 3:
                enough.set()
            if len(looks) == 2:
                raise OSError("a look that fails")
            return 0.01

        sweep = Sweep(look)
        await asyncio.wait_for(enough.wait(), 20)
        sweep.close()
        await asyncio.sleep(0.2)

    asyncio.run(run())
    assert len(looks) == 3 and all(0 < seconds <= 0.5 for seconds in looks)


def pause_after(look: Callable[[], object]) -> float:
    """The seconds from a look, which asks for the next one at once, to that one."""
    pauses: list[float] = []

    async def run() -> None:
        loop, looked = asyncio.get_running_loop(), asyncio.Event()
        call_later = loop.call_later

        def note(seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
            pauses.append(seconds)
            return call_later(seconds, callback)

        def count(_: float) -> float:
            look()
            looked.set()
            return 0.001

        loop.call_later = note  # type: ignore[assignment, method-assign]
        sweep = Sweep(count)
        await looked.wait()
        sweep.close()

    asyncio.run(run())
    return pauses[1]


def work() -> None:
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass


def test_looks_that_take_much_are_rare() -> None:
    assert pause_after(work) >= 1.0, "looks take a twentieth of a processor at most"


def test_looks_that_wait_for_the_lock_of_a_connection_are_not() -> None:
    assert pause_after(lambda: time.sleep(0.05)) < 0.5
