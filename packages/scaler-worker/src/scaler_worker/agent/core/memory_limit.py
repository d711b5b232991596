"""The memory limit of workers: a run that exceeds it is stopped, before the kernel stops the host. A part of AgentCore.

The shell measures each worker that runs a task. A worker is measured again before it can exceed its limit: the time is
what is left divided by FASTEST_GROWTH. A run without another one beside it on the host may use what all workers of the
host may use together, so that the scheduler can repeat a stopped run alone.
"""

from __future__ import annotations

import logging
import math
from typing import Final

from scaler_io.links.effects import Log
from scaler_protocol.errors import MemoryLimitError, describe
from scaler_protocol.messages import Status, WorkerState
from scaler_worker.agent.core import events
from scaler_worker.agent.core.in_flight import InFlight
from scaler_worker.agent.core.records import RUN, WorkerRecord
from scaler_worker.agent.core.workers import Workers

FASTEST_GROWTH: Final = 2 * 1024**3
"""Bytes per second at which a process can fill new memory: about what the kernel takes to clear pages."""
SHORTEST_SECONDS: Final = 0.01
LONGEST_SECONDS: Final = 0.25
"""Bounds of the time between two measurements."""


class MemoryLimit:
    """Stops runs that use more than `limit` bytes; 0 is no limit."""

    def __init__(self, workers: Workers, in_flight: InFlight, limit: int, host: str) -> None:
        self._workers, self._in_flight, self._limit, self._host = workers, in_flight, limit, host
        self._measure_at = 0.0

    @property
    def lone_task_bytes(self) -> int:
        """Bytes that a task alone on the host may use: what all workers may use together; 0 is no limit."""
        return self._limit * self._workers.slots

    def due(self) -> float:
        """When `settle` measures next; infinity while no worker runs a task."""
        return self._measure_at if self._limit and (self._workers.running or self._workers.blocked) else math.inf

    def settle(self, now: float) -> None:
        """Measure every worker with a task."""
        self._measure_at = now + LONGEST_SECONDS
        for number in (*self._workers.running, *self._workers.blocked):
            self._in_flight.effects.append(events.ReadMemory(number))

    def measured(self, worker: WorkerRecord, event: events.MemoryUsed, now: float) -> None:
        """Stop the current run of a worker that uses too much; the results of earlier ones were handled before."""
        if worker.state == WorkerState.STOPPING:
            return
        allowed = self._allowed()
        if event.bytes <= allowed:
            left = (allowed - event.bytes) / FASTEST_GROWTH
            self._measure_at = min(self._measure_at, now + max(SHORTEST_SECONDS, left))
            return
        entry = worker.next_entry()
        if entry is None or entry[RUN] != event.run:
            text = f"{worker.called} is replaced: between tasks it uses {_mebibytes(event.bytes)}"
            text = f"{text}, and may use {_mebibytes(allowed)}"
            self._in_flight.effects.append(Log(logging.WARNING, text, worker=worker.name))
            self._in_flight.kill(worker, None, b"", now)
            return
        error = self._error(worker, event.bytes, allowed)
        self._in_flight.kill(worker, event.run, describe(error), now, status=Status.LOST)

    def _allowed(self) -> int:
        """Bytes that one run may use now."""
        occupied = len(self._workers.running) + len(self._workers.blocked)
        return self._limit if occupied > 1 else max(self._limit, self.lone_task_bytes)

    def _error(self, worker: WorkerRecord, used: int, allowed: int) -> MemoryLimitError:
        limit = f"the limit per worker is {_mebibytes(self._limit)}"
        if allowed > self._limit:
            limit += f", and {_mebibytes(allowed)} for a task alone on its host"
        return MemoryLimitError(
            f"the task used {_mebibytes(used)} of memory on {self._host} and was stopped: {limit} "
            "(--memory-limit-per-worker)",
            host=self._host,
            worker=worker.name,
            used_bytes=used,
            limit_bytes=allowed,
        )


def _mebibytes(size: int) -> str:
    return f"{size >> 20:,} MiB"
