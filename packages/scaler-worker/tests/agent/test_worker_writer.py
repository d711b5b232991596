"""WorkerWriter over real sockets: what does not fit, or fails, is written later and in order."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scaler_protocol.messages import Message, Output
from scaler_protocol.payloads import Payloads
from scaler_worker.agent.core.events import Define, Relay, TailRecalled
from scaler_worker.agent.log_once import LogOnce
from scaler_worker.agent.worker_channel import WorkerChannel
from scaler_worker.agent.worker_writer import WorkerWriter
from scaler_worker.ipc.client_messages import MessageReader
from scaler_worker.ipc.frames import Definition, pack_definition, pack_tasks
from support.gates import SECONDS


class WriterParts:
    """A WorkerWriter, the channel of worker 0, and the worker's ends of it."""

    def __init__(self) -> None:
        self.channel = WorkerChannel()
        self.writer = WorkerWriter({0: self.channel}, LogOnce(logging.getLogger(__name__)))
        tasks, _, messages = self.channel.worker_ends()
        self.tasks, self.messages = (socket.socket(fileno=os.dup(each)) for each in (tasks, messages))
        self.tasks.setblocking(False)
        self.messages.setblocking(False)

    async def read(self, source: socket.socket) -> bytes:
        """What the worker reads next."""
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(source, 1 << 20), SECONDS)

    def close(self) -> None:
        self.writer.unwatch(0)
        self.tasks.close()
        self.messages.close()
        self.channel.close()


def play(test: Callable[[WriterParts], Awaitable[None]]) -> None:
    async def main() -> None:
        parts = WriterParts()
        try:
            await test(parts)
        finally:
            parts.close()

    asyncio.run(main())


def definition(handle: int, size: int = 10_000) -> Definition:
    return Definition(handle, b"f", "m:f", handle.to_bytes(4, "little") * (size // 4), 1, 0)


def test_datagrams_that_do_not_fit_are_written_when_the_worker_has_read() -> None:
    async def test(parts: WriterParts) -> None:
        definitions = [definition(handle) for handle in range(1000)]  # ten times what the socket holds
        for each in definitions:
            parts.writer.define(Define(0, each))
        assert parts.channel._backlog
        assert [await parts.read(parts.tasks) for _ in definitions] == [pack_definition(each) for each in definitions]
        assert not parts.channel._backlog

    play(test)


def test_messages_that_do_not_fit_are_written_when_the_worker_has_read() -> None:
    async def test(parts: WriterParts) -> None:
        said = [Output([number], [1], Payloads([bytes(10_000)])) for number in range(200)]
        for each in said:
            parts.writer.relay(Relay(0, each))
        assert parts.channel._message_backlog
        reader, heard = MessageReader(), list[Message]()
        while len(heard) < len(said):
            heard += reader.feed(await parts.read(parts.messages))
        assert [message.tasks[0] for message in heard if isinstance(message, Output)] == list(range(200))
        assert not parts.channel._message_backlog

    play(test)


def test_a_long_datagram_without_a_memory_file_is_written_later_and_those_behind_it_after_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create, failures = os.memfd_create, iter(range(2))

    def failing(*words: Any) -> int:
        if next(failures, None) is not None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return create(*words)

    monkeypatch.setattr(os, "memfd_create", failing)

    async def test(parts: WriterParts) -> None:
        long, short = definition(1, 1_000_000), definition(2)
        parts.writer.define(Define(0, long))
        parts.writer.define(Define(0, short))
        head = await parts.read(parts.tasks)  # the rest is in the memory file
        assert head == pack_definition(long)[: len(head)]
        assert await parts.read(parts.tasks) == pack_definition(short)

    play(test)
    [line] = caplog.messages
    assert line.startswith("a long call could not be written to its worker yet (OSError: [Errno 24]")


def test_a_recall_names_the_datagrams_that_the_worker_has_not_read() -> None:
    async def test(parts: WriterParts) -> None:
        columns: Any = ([7], [7], [1], [b"call"], [1], [0])
        long: Any = ([8], [8], [1], [bytes(1_000_000)], [1], [0])
        parts.channel.send(pack_tasks(3, *columns))
        parts.channel.send(pack_tasks(4, *long))  # as a memory file
        parts.channel.send(pack_definition(definition(5)))
        assert parts.channel.flush_datagrams()
        parts.channel.send(pack_tasks(6, *columns))  # not written yet
        assert await parts.read(parts.tasks) == pack_tasks(3, *columns)
        recalled = parts.channel.recall()
        assert sorted(recalled.sequences) == [4, 6] and recalled.handles == (5,)
        assert parts.channel.recall() == TailRecalled((), ())

    play(test)


def test_nothing_is_written_to_a_worker_that_has_ended() -> None:
    async def test(parts: WriterParts) -> None:
        writer = WorkerWriter({}, LogOnce(logging.getLogger(__name__)))
        writer.relay(Relay(0, Output([1], [1], Payloads([b"x"]))))
        writer._flush(0, parts.channel)
        with pytest.raises(BlockingIOError):
            parts.messages.recv(1)

    play(test)
