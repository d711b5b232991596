"""WorkerReader over real pipes: what is read when, and what ends the reading."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from scaler_protocol.messages import Blocked
from scaler_worker.agent.worker_channel import WorkerChannel
from scaler_worker.agent.worker_reader import WorkerReader
from scaler_worker.ipc.client_messages import pack_message
from scaler_worker.ipc.frames import REPLY, RESULT, RunsEnded


def result(run: int) -> bytes:
    """The reply of a run that returned."""
    return REPLY.pack(RESULT, 0, 1, run, *[0] * 8) + b"x"


class ReaderParts:
    """A WorkerReader of worker 0 between stubs; `log` is what happened in order."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.swept = self.running = False
        self.channel = WorkerChannel()
        self.link = SimpleNamespace(is_congested=False)
        self.turns = SimpleNamespace(
            closed=False, now=lambda: self.log.append("now"), soon=lambda: self.log.append("soon")
        )
        parts = self

        class Core:
            """The queries of AgentCore."""

            @property
            def has_running(self) -> bool:
                return parts.running

            def is_swept(self, number: int) -> bool:
                return parts.swept

            def sweep_seconds(self, numbers: set[int]) -> float:
                assert numbers == {0}
                return 0.001

        processes = SimpleNamespace(channels={0: self.channel}, kill=lambda number: self.log.append(("kill", number)))
        events = SimpleNamespace(handle=self._handle)
        kind: Any = WorkerReader
        self.reader: WorkerReader = kind(
            Core(), processes, events, self.link, self.turns, lambda: self.log.append("pipe ended")
        )
        self.reader.watch(0)

    def _handle(self, number: int, event: Any, now: float) -> None:
        self.log.append(event.runs if isinstance(event, RunsEnded) else event)

    def write(self, data: bytes) -> None:
        os.write(self.channel.worker_ends()[1], data)

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, self.log
            await asyncio.sleep(0.001)

    async def rest(self) -> None:
        """Let all ready callbacks run, but no timer: the clock of the event loop stands still meanwhile."""
        loop: Any = asyncio.get_running_loop()
        stopped_at = loop.time()
        loop.time = lambda: stopped_at
        for _ in range(5):
            await asyncio.sleep(0)
        del loop.time


def play(test: Callable[[ReaderParts], Awaitable[None]]) -> None:
    async def main() -> None:
        parts = ReaderParts()
        try:
            await test(parts)
        finally:
            parts.turns.closed = True
            parts.reader.unwatch(0)
            parts.channel.close()

    asyncio.run(main())


def test_results_are_passed_on_at_once_or_with_those_of_others() -> None:
    async def test(parts: ReaderParts) -> None:
        parts.write(result(1))
        await parts.until(lambda: "now" in parts.log)
        parts.running = True
        parts.write(result(2) + result(3))
        await parts.until(lambda: "soon" in parts.log)
        assert parts.log == [[1], "now", [2, 3], "soon"]

    play(test)


def test_a_worker_with_a_batch_is_swept_until_it_has_none() -> None:
    async def test(parts: ReaderParts) -> None:
        parts.swept = True
        parts.reader.tasks_sent(0)
        parts.write(result(1))
        await parts.rest()
        assert parts.log == []
        await parts.until(lambda: parts.log[:1] == [[1]])
        parts.swept = False
        count = len(parts.log)
        await parts.until(lambda: len(parts.log) > count)
        parts.log.clear()
        parts.write(result(2))
        await parts.until(lambda: parts.log)
        await parts.rest()
        assert parts.log[0] == [2] and set(parts.log[1:]) == {"now"}

    play(test)


def test_results_stay_in_the_pipe_while_the_link_is_congested() -> None:
    async def test(parts: ReaderParts) -> None:
        parts.link.is_congested = True
        parts.write(result(1))
        await parts.until(lambda: parts.log.count("now") >= 2)
        assert set(parts.log) == {"now"}
        parts.link.is_congested = False
        await parts.until(lambda: [1] in parts.log)

    play(test)


def test_the_end_of_a_pipe_is_reported_after_its_last_reply() -> None:
    async def test(parts: ReaderParts) -> None:
        parts.write(result(1))
        parts.channel.handed_over()
        await parts.until(lambda: "pipe ended" in parts.log)
        await parts.rest()
        assert parts.log.index([1]) < parts.log.index("pipe ended") and parts.log.count("pipe ended") == 1

    play(test)


def test_a_worker_that_writes_no_reply_is_killed_and_not_read_again() -> None:
    async def test(parts: ReaderParts) -> None:
        parts.write(REPLY.pack(200, 0, 0, 1, *[0] * 8))
        await parts.until(lambda: ("kill", 0) in parts.log)
        parts.write(result(1))
        await parts.rest()
        assert parts.log == [("kill", 0), "now"]

    play(test)


def test_results_before_a_message_of_the_client_are_read_first() -> None:
    async def test(parts: ReaderParts) -> None:
        parts.write(result(1))
        parts.channel._messages_theirs.send(pack_message(Blocked((2,), (True,))))
        parts.reader._read_messages(0)
        assert parts.log[0] == [1] and isinstance(parts.log[1], Blocked) and parts.log[2:] == ["soon"]

    play(test)
