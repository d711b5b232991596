"""Draining: a drained worker finishes its run and is not replaced; an agent without workers hands over and exits. Pure.

A drained worker ends its current run; the agent requeues its other runs. An agent without workers returns
all waiting runs to the scheduler, and every run that arrives later. It waits until its runs have ended, and then until
their owners have released the outcomes that only the agent keeps, but RELEASE_SECONDS at most: the scheduler keeps the
outcomes of an owner that is away. Then the agent exits.

An agent that drains as a whole exits after its drain timeout even if runs have not ended; the scheduler repeats them.
An agent that was resized to no workers does not exit, and may be resized again.
"""

from __future__ import annotations

import logging
import math
from typing import Final

from scaler_io.links.effects import Log
from scaler_protocol.operations import Drain, Resized
from scaler_protocol.plurals import counted
from scaler_worker.agent.core.events import DrainRequested, EndAgent, ResizeDone, ResizeRequested, SendToScheduler
from scaler_worker.agent.core.functions import FunctionTable
from scaler_worker.agent.core.in_flight import InFlight
from scaler_worker.agent.core.records import WorkerRecord, run_ids
from scaler_worker.agent.core.workers import Workers

RELEASE_SECONDS: Final = 2.0
"""How long owners may take to release the last outcomes."""


class Draining:
    """Handles Drain messages, which the scheduler has authorized, and the host's own requests to drain."""

    def __init__(self, workers: Workers, in_flight: InFlight, functions: FunctionTable, timeout_seconds: float) -> None:
        self._workers, self._in_flight, self._functions = workers, in_flight, functions
        self._timeout = timeout_seconds
        self._announced_slots = workers.slots
        self._over = False
        self._stays = False
        """Whether the agent stays when it has no workers: it was resized."""
        self.is_resizing = False
        """Whether a ResizeRequested waits for its answer."""
        self.deadline = math.inf
        """When the agent exits even if runs have not ended."""
        self._leave_at = math.inf
        """When the agent exits even if outcomes have not been released."""

    def drain(self, message: Drain, now: float) -> None:
        """Drain the worker with this process id, or all for 0; a worker that has ended or is stopping is ignored."""
        if not message.pid:
            self.drain_all(DrainRequested("the scheduler asks for it"), now)
        elif worker := self._workers.drain(message.pid, now):
            self._reclaim(worker)
            self._stays = self._stays and bool(self._workers.slots)
            self._tell()

    def drain_all(self, request: DrainRequested, now: float) -> None:
        """Drain all workers; a second request changes nothing."""
        if self.deadline < math.inf:
            return
        self.deadline, self._stays = now + self._timeout, False
        text = f"draining, for {self._timeout:g} s at most: {request.reason}"
        self._in_flight.effects.append(Log(logging.INFO, text))
        for worker in self._workers.drain_all(now):
            self._reclaim(worker)
        self._tell()

    def resize(self, request: ResizeRequested, now: float) -> None:
        """Start or drain workers until there are as many as requested; an agent that leaves ignores it."""
        if self.deadline < math.inf or self._over:
            return
        self._stays = self.is_resizing = True
        self._leave_at = math.inf
        if request.workers == self._workers.slots:
            return
        text = f"resizing from {self._workers.slots} to {request.workers} workers"
        self._in_flight.effects.append(Log(logging.INFO, text))
        for worker in self._workers.resize(request.workers, now):
            self._reclaim(worker)
        self._tell()

    @property
    def is_leaving(self) -> bool:
        """Whether the agent exits when its runs have ended."""
        return not self._workers.slots and not self._stays

    def _reclaim(self, worker: WorkerRecord) -> None:
        self._in_flight.reclaim(worker)
        self._in_flight.effects.append(
            Log(logging.INFO, f"{worker.called} drains: it finishes its run", worker=worker.name)
        )

    def _tell(self) -> None:
        self._in_flight.effects.append(SendToScheduler(Resized(self._workers.slots)))

    def resume(self) -> None:
        """Report the number of workers to a new scheduler if it differs from Hello."""
        if self._workers.slots != self._announced_slots:
            self._tell()

    def settle(self, now: float) -> None:
        """Report a resize that is done. Without workers, return waiting runs; end the agent when it may exit."""
        if self.is_resizing and self._workers.is_settled:
            self.is_resizing = False
            self._in_flight.effects.append(ResizeDone())
        if self._workers.slots:
            return
        in_flight = self._in_flight
        limited = in_flight.limited.take_newest(len(in_flight.limited.runs))
        waiting = in_flight.waiting.take_newest(in_flight.waiting.count)
        parked = self._functions.remove(set(run_ids(self._functions.parked_entries())))
        if waiting or limited or parked:
            in_flight.give_back(run_ids((*waiting, *limited, *parked)))
        if self._over or self._stays:
            return
        if now >= self.deadline:
            self._give_up()
        elif not self._workers.by_number:
            self._leave_at = min(self._leave_at, now + RELEASE_SECONDS)
            if not len(self._in_flight.kept) or now >= self._leave_at:
                self._end("all workers were drained")

    def _give_up(self) -> None:
        """End the agent because the drain timeout is over; log how many runs have not ended."""
        left = sum(worker.next_entry() is not None for worker in self._workers)
        if left:
            text = f"{counted(left, 'run')} did not end within {self._timeout:g} s; the scheduler repeats "
            self._in_flight.effects.append(Log(logging.WARNING, text + ("it" if left == 1 else "them")))
        self._end("the drain timeout is over")

    def _end(self, reason: str) -> None:
        self._over = True
        self._in_flight.effects.append(EndAgent(0, (reason,)))

    @property
    def due(self) -> float:
        """When to settle next."""
        return math.inf if self._over else min(self.deadline, self._leave_at)
