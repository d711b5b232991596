"""The socket on which an agent is told its number of workers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from scaler_worker.agent.resize_channel import ResizeChannel


def test_requests_are_answered_with_their_numbers_and_replace_each_other() -> None:
    asked: list[tuple[int, Callable[[], None]]] = []

    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        channel = ResizeChannel(theirs.detach(), lambda workers, done: asked.append((workers, done)))
        loop = asyncio.get_running_loop()
        for piece in (b"1 4\n", b"2 ", b"3\n3 0\n"):
            await loop.sock_sendall(ours, piece)
            await asyncio.sleep(0)
        while len(asked) < 2:
            await asyncio.sleep(0.001)
        for _, done in asked:
            done()
        assert await loop.sock_recv(ours, 100) == b"1\n3\n", "the second request was replaced before it was seen"
        ours.close()
        asked[0][1]()  # nobody is there
        while channel._socket.fileno() >= 0:
            await asyncio.sleep(0.001)
        channel.close()

    asyncio.run(asyncio.wait_for(main(), 20))
    assert [workers for workers, _ in asked] == [4, 0]
