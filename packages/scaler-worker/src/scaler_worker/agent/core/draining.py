"""Draining: a drained worker finishes its run and is not replaced; an agent without workers exits. Pure.

Runs behind the current one of a drained worker are requeued. An agent whose last worker is drained returns all waiting
runs, and any that still arrive, to the scheduler.
"""

from __future__ import annotations

import logging

from scaler_io.links.effects import Log
from scaler_protocol.messages import Returned
from scaler_protocol.operations import Drain, Resized
from scaler_worker.agent.core.events import EndAgent, SendToScheduler
from scaler_worker.agent.core.functions import FunctionTable
from scaler_worker.agent.core.in_flight import InFlight
from scaler_worker.agent.core.records import run_ids
from scaler_worker.agent.core.workers import Workers


class Draining:
    """Handles Drain messages; the scheduler has already authorized the operator."""

    def __init__(self, workers: Workers, in_flight: InFlight, functions: FunctionTable) -> None:
        self._workers, self._in_flight, self._functions = workers, in_flight, functions
        self._announced_slots = workers.slots
        self._over = False

    def drain(self, message: Drain, now: float) -> None:
        """Drain a worker; ignored if it has ended or is stopping."""
        worker = self._workers.drain(message.pid, now)
        if worker is None:
            return
        self._in_flight.reclaim(worker)
        self._in_flight.effects.append(Log(logging.INFO, f"{worker.name} (process {worker.pid}) is drained"))
        self.tell()

    def tell(self) -> None:
        """Report the number of workers if it differs from Hello."""
        if self._workers.slots != self._announced_slots:
            self._in_flight.effects.append(SendToScheduler(Resized(self._workers.slots)))

    def settle(self) -> None:
        """Without workers, return waiting runs and end the agent."""
        if self._workers.slots:
            return
        waiting = self._in_flight.waiting.take_newest(len(self._in_flight.waiting))
        parked = self._functions.remove(set(run_ids(self._functions.parked_entries())))
        if waiting or parked:
            self._in_flight.effects.append(SendToScheduler(Returned(run_ids((*waiting, *parked)))))
        if not self._workers.by_number and not self._over:
            self._over = True
            self._in_flight.effects.append(EndAgent(0, ("all workers were drained",)))
