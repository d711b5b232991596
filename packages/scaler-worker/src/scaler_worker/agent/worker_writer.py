"""What workers are given: written to their channels at once, or as soon as that is possible."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from scaler_protocol.messages import Message
from scaler_worker.agent.log_once import LogOnce
from scaler_worker.agent.worker_channel import WorkerChannel

RETRY_SECONDS: Final = 0.05


class WorkerWriter:
    """Writes to the channels of workers, in order; what is for one that ends meanwhile is dropped with its channel."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, channels: Mapping[int, WorkerChannel], log_once: LogOnce
    ) -> None:
        self._loop, self._channels, self._log_once = loop, channels, log_once

    def give(self, number: int, datagram: bytes) -> None:
        """Write a datagram."""
        channel = self._channels[number]
        channel.give(datagram)
        self._give_rest(number, channel)

    def _give_rest(self, number: int, channel: WorkerChannel) -> None:
        if self._channels.get(number) is not channel or channel.tasks_fileno < 0:
            return
        try:
            if not channel.give_rest():
                self._loop.add_writer(channel.tasks_fileno, self._give_when_writable, number, channel)
        except OSError as error:
            self._log_once.say("a long call waits to be given to its worker", error)
            self._loop.call_later(RETRY_SECONDS, self._give_rest, number, channel)

    def _give_when_writable(self, number: int, channel: WorkerChannel) -> None:
        self._loop.remove_writer(channel.tasks_fileno)
        self._give_rest(number, channel)

    def relay(self, number: int, message: Message) -> None:
        """Write to the client inside a worker's task; nothing happens where the worker is gone."""
        channel = self._channels.get(number)
        if channel is not None and not channel.send_message(message):
            self._loop.add_writer(channel.messages_fileno, self._relay_rest, channel)

    def _relay_rest(self, channel: WorkerChannel) -> None:
        if channel.send_rest():
            self._loop.remove_writer(channel.messages_fileno)
