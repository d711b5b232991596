"""Sweep: looks again and again, takes little time, and survives a look that fails."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from scaler_io.service.sweep import Sweep
from scaler_io.transport.connections import ALL_SECONDS, SWEEP_SECONDS


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

        sweep = Sweep(look, None)
        await asyncio.wait_for(enough.wait(), 20)
        sweep.close()
        await asyncio.sleep(0.2)

    asyncio.run(run())
    assert len(looks) == 3 and all(0 < seconds <= 0.5 for seconds in looks)


def pauses_of(loop: asyncio.AbstractEventLoop) -> list[float]:
    """The seconds of all timers that are set from now on."""
    pauses: list[float] = []
    call_later = loop.call_later

    def note(seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        pauses.append(seconds)
        return call_later(seconds, callback)

    loop.call_later = note  # type: ignore[assignment, method-assign]
    return pauses


def pause_after(look: Callable[[], object]) -> float:
    """The seconds from a look, which asks for the next one at once, to that one."""

    async def run() -> list[float]:
        pauses, looked = pauses_of(asyncio.get_running_loop()), asyncio.Event()

        def count(_: float) -> float:
            look()
            looked.set()
            return 0.001

        sweep = Sweep(count, None)
        await looked.wait()
        sweep.close()
        return pauses

    return asyncio.run(run())[1]


def work() -> None:
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass


def test_looks_that_take_much_are_rare() -> None:
    assert pause_after(work) >= 1.0, "looks take a twentieth of a processor at most"


def test_looks_that_wait_for_the_lock_of_a_connection_are_not() -> None:
    assert pause_after(lambda: time.sleep(0.05)) < 0.5


def test_it_waits_for_arrivals_while_a_look_finds_nothing() -> None:
    arrivals, far = os.pipe()
    looks: list[float] = []

    async def run() -> None:
        pauses, looked = pauses_of(asyncio.get_running_loop()), asyncio.Event()

        def look(seconds: float) -> float:
            looks.append(seconds)
            looked.set()
            return ALL_SECONDS

        async def next_look() -> None:
            await looked.wait()
            looked.clear()

        sweep = Sweep(look, arrivals)
        await next_look()
        assert pauses == [SWEEP_SECONDS, ALL_SECONDS]
        os.write(far, b"1")
        await next_look()
        assert pauses[2:] == [SWEEP_SECONDS, ALL_SECONDS]
        os.read(arrivals, 1)
        await next_look()  # the descriptor was readable at the end of the last look
        assert pauses[4:] == [SWEEP_SECONDS, ALL_SECONDS]
        await next_look()
        assert pauses[6:] == [ALL_SECONDS]
        sweep.close()
        os.write(far, b"1")
        await asyncio.sleep(0)
        assert len(pauses) == 7

    asyncio.run(asyncio.wait_for(run(), 30))
    os.close(arrivals)
    os.close(far)
    assert len(looks) == 4 and looks[3] >= 0.9 * ALL_SECONDS, "a pause that was asked for counts as a whole"
