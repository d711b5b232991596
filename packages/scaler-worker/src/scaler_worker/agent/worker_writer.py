"""WorkerWriter: writes datagrams and messages to workers, at once or when their sockets are writable."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from scaler_worker.agent.core import events
from scaler_worker.agent.log_once import LogOnce
from scaler_worker.agent.worker_channel import WorkerChannel
from scaler_worker.ipc.frames import pack_definition, pack_tasks

RETRY_SECONDS: Final = 0.05


class WorkerWriter:
    """Writes to the channels of workers, in order; data for a worker that ends is discarded with its channel."""

    def __init__(self, channels: Mapping[int, WorkerChannel], errors: LogOnce) -> None:
        self._loop, self._channels, self._errors = asyncio.get_running_loop(), channels, errors

    def send_tasks(self, effect: events.SendTasks) -> None:
        """Send a task datagram to a worker."""
        runs, tasks, groups, calls, attempts, flags = zip(*effect.entries, strict=True)
        handles = [group.kind.handle for group in groups]
        self._send(effect.worker, pack_tasks(effect.sequence, runs, tasks, handles, calls, attempts, flags))

    def define(self, effect: events.Define) -> None:
        """Send a definition to a worker."""
        self._send(effect.worker, pack_definition(effect.definition))

    def relay(self, effect: events.Relay) -> None:
        """Send to the client inside a worker's task; ignored if the worker has ended."""
        channel = self._channels.get(effect.worker)
        if channel is not None and not channel.send_message(effect.message):
            self._loop.add_writer(channel.messages_fileno, self._flush_messages, channel)

    def unwatch(self, number: int) -> None:
        """Write nothing more to a worker."""
        channel = self._channels[number]
        for descriptor in (channel.tasks_fileno, channel.messages_fileno):
            if descriptor >= 0:
                self._loop.remove_writer(descriptor)

    def _send(self, number: int, datagram: bytes) -> None:
        channel = self._channels[number]
        channel.send(datagram)
        self._flush(number, channel)

    def _flush(self, number: int, channel: WorkerChannel) -> None:
        if self._channels.get(number) is not channel or channel.tasks_fileno < 0:
            return
        try:
            if not channel.flush_datagrams():
                self._loop.add_writer(channel.tasks_fileno, self._flush_when_writable, number, channel)
        except OSError as error:
            self._errors.log("a long call could not be written to its worker yet", error)
            self._loop.call_later(RETRY_SECONDS, self._flush, number, channel)

    def _flush_when_writable(self, number: int, channel: WorkerChannel) -> None:
        self._loop.remove_writer(channel.tasks_fileno)
        self._flush(number, channel)

    def _flush_messages(self, channel: WorkerChannel) -> None:
        if channel.flush_messages():
            self._loop.remove_writer(channel.messages_fileno)
