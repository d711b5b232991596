"""Futures in asyncio: await them, gather them, give up on them."""

from __future__ import annotations

import asyncio
import time

from scaler import Client, SchedulerClusterCombo


def square(value: int) -> int:
    """Runs on a worker."""
    return value * value


async def work(client: Client) -> None:
    """The event loop is free while calls are under way."""
    print(await client.submit(square, 4))
    print(await asyncio.gather(*(client.submit(square, value) for value in range(5))))

    # wrap_future is for code that wants an asyncio.Future.
    future = asyncio.wrap_future(client.submit(square, 5))
    print(await future)

    # A wait that is given up cancels the call, and frees its worker.
    sleeping = client.submit(time.sleep, 60)
    try:
        await asyncio.wait_for(sleeping, timeout=0.2)
    except asyncio.TimeoutError:
        print("cancelled:", sleeping.cancelled())


def main() -> None:
    """Connecting and leaving block, so they stay outside of the loop."""
    with (
        SchedulerClusterCombo(n_workers=1, logging_level="WARNING") as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        asyncio.run(work(client))


if __name__ == "__main__":
    main()
