"""Work in order, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading

from scaler_worker.symphony.work_thread import WorkThread


def test_results_and_exceptions_come_to_the_loop_in_order() -> None:
    async def main() -> list[object]:
        thread, found, done = WorkThread("test"), list[object](), asyncio.Event()
        here = threading.get_ident()

        def take(result: object) -> None:
            assert threading.get_ident() == here
            found.append(result)
            if len(found) == 2:
                done.set()

        thread.do(lambda: threading.get_ident() == here, take)
        thread.do(lambda: int("x"), take)
        await asyncio.wait_for(done.wait(), 10)
        thread.close(10)
        return found

    first, second = asyncio.run(main())
    assert first is False and isinstance(second, ValueError)


def test_work_that_never_ends_does_not_block_closing() -> None:
    async def main() -> None:
        thread, forever = WorkThread("test"), threading.Event()
        thread.do(forever.wait, lambda result: None)
        thread.close(0.0)
        forever.set()

    asyncio.run(main())
