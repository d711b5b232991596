"""Sweep: looks again and again, takes little time, and survives a look that fails."""

from __future__ import annotations

import asyncio
import time

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


def test_slow_looks_are_rare() -> None:
    async def run() -> int:
        looks = 0

        def look(seconds: float) -> float:
            nonlocal looks
            looks += 1
            time.sleep(0.05)
            return 0.01

        sweep = Sweep(look)
        await asyncio.sleep(0.7)
        sweep.close()
        return looks

    assert asyncio.run(run()) == 1
