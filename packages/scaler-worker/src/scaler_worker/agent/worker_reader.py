"""WorkerReader: reads the pipes and message streams of workers.

The results of a worker that executes a batch are *swept*: read at intervals, many per wake-up, instead of each at once.
While the link to the scheduler is congested, results stay in the pipes (back-pressure).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from scaler_io.service.turn_loop import TurnLoop
from scaler_protocol.errors import ProtocolError
from scaler_protocol.messages import Blocked, Submit
from scaler_worker.agent.agent_link import AgentLink
from scaler_worker.agent.core.core import AgentCore
from scaler_worker.agent.processes import WorkerProcesses
from scaler_worker.agent.worker_events import WorkerEvents

LOGGER: Final = logging.getLogger("scaler")


class WorkerReader:
    """Watches the channels of workers; `pipe_ended` is called when a worker has closed its end of a pipe."""

    def __init__(
        self,
        core: AgentCore,
        processes: WorkerProcesses,
        events: WorkerEvents,
        link: AgentLink,
        turns: TurnLoop,
        pipe_ended: Callable[[], None],
    ) -> None:
        self._core, self._processes, self._channels = core, processes, processes.channels
        self._handle, self._link, self._turns, self._pipe_ended = events.handle, link, turns, pipe_ended
        self._loop = asyncio.get_running_loop()
        self._swept: set[int] = set()
        self._is_sweeping = False

    def watch(self, number: int) -> None:
        """Read what a new worker writes."""
        channel = self._channels[number]
        self._loop.add_reader(channel.results, self._read_results, number)
        self._loop.add_reader(channel.messages_fileno, self._read_messages, number)

    def unwatch(self, number: int) -> None:
        """Read nothing more of a worker."""
        self._swept.discard(number)
        channel = self._channels[number]
        for descriptor in (channel.results, channel.messages_fileno):
            self._loop.remove_reader(descriptor)

    def take_results(self, number: int) -> bool:
        """Read a pipe and pass its replies to the core; returns whether there were any."""
        if (channel := self._channels.get(number)) is None:
            return False
        try:
            found = channel.read()
        except EOFError:
            self._loop.remove_reader(channel.results)
            self._pipe_ended()
            return False
        except ProtocolError as error:
            LOGGER.error("Worker[%d] wrote an invalid reply (%s); it is killed", number, error)
            self._loop.remove_reader(channel.results)
            self._processes.kill(number)
            return False
        now = time.monotonic()
        for event in found:
            self._handle(number, event, now)
        return bool(found)

    def tasks_sent(self, number: int) -> None:
        """A worker was sent tasks, so its results may have to be swept."""
        if number not in self._swept and self._core.is_swept(number):
            self._start_sweeping(number)

    def _read_results(self, number: int) -> None:
        if self._link.is_congested:
            self._start_sweeping(number)
            return
        self.take_results(number)
        if self._core.has_running:  # other workers may finish at the same time: one turn for all of them
            self._turns.soon()
        else:
            self._turns.now()

    def _read_messages(self, number: int) -> None:
        """The message stream of the client inside a task is readable."""
        channel = self._channels[number]
        try:
            messages = channel.read_messages()
        except (EOFError, ProtocolError) as error:
            self._loop.remove_reader(channel.messages_fileno)
            if isinstance(error, ProtocolError):
                LOGGER.error("the client inside Worker[%d] wrote an invalid message: %s", number, error)
            return
        for message in messages:
            if isinstance(message, Blocked | Submit):  # the pipe may hold results of earlier runs
                self.take_results(number)
            self._handle(number, message, time.monotonic())
        self._turns.soon()

    def _start_sweeping(self, number: int) -> None:
        if number not in self._swept:
            self._swept.add(number)
            self._loop.remove_reader(self._channels[number].results)
        self._sweep_later()

    def _sweep_later(self) -> None:
        if self._swept and not self._is_sweeping:
            self._is_sweeping = True
            self._loop.call_later(self._core.sweep_seconds(self._swept), self._sweep)

    def _sweep(self) -> None:
        """Read the pipes of all swept workers; those without batches are watched by the event loop again."""
        self._is_sweeping = False
        if self._turns.closed:
            return
        if not self._link.is_congested:
            for number in list(self._swept):
                self.take_results(number)
        self._turns.now()
        if not self._link.is_congested:
            for number in [number for number in self._swept if not self._core.is_swept(number)]:
                self._swept.discard(number)
                self._loop.add_reader(self._channels[number].results, self._read_results, number)
        self._sweep_later()
