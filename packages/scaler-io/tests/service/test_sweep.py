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


def looks_in(seconds: float, look: Callable[[], object]) -> int:
    """How many looks there are in a time, each of which asks for the next one at once."""

    async def run() -> int:
        looks = 0

        def count(_: float) -> float:
            nonlocal looks
            looks += 1
            look()
            return 0.001

        sweep = Sweep(count)
        await asyncio.sleep(seconds)
        sweep.close()
        return looks

    return asyncio.run(run())


def work() -> None:
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass


def test_looks_that_take_much_are_rare() -> None:
    assert looks_in(0.7, work) == 1


def test_looks_that_wait_for_the_lock_of_a_connection_are_not() -> None:
    assert looks_in(2.0, lambda: time.sleep(0.05)) > 5
