"""Outliers: workers whose runs fail where those of others succeed.

Theory. A worker that a task has damaged may fail at once what others run well, and so get more than its share of tasks.
Of each function that failed on a worker its *streak* there is kept: the failures in a row, and how many runs on other
workers succeeded meanwhile. A success that ends a streak shows that it depends on the call whether the function fails:
then no streak of the function means anything. A worker with a long streak, while others have succeeded as often, is
killed, and replaced. What it was running is run again elsewhere, without being charged.
"""

from __future__ import annotations

import logging
from typing import Final

from scaler_io.effects import Log
from scaler_protocol.messages import WorkerState
from scaler_worker.channel import RunsEnded
from scaler_worker.fleet import Fleet
from scaler_worker.flights import Flights
from scaler_worker.records import FunctionKind, WorkerRecord

STREAK: Final = 8
"""Failures in a row, and successes elsewhere."""
KINDS_LIMIT: Final = 256
"""Functions whose streaks are kept."""


class Outliers:
    """Hears of all runs that ended, and passes them on to the flights."""

    def __init__(self, fleet: Fleet, flights: Flights) -> None:
        self._fleet, self._flights = fleet, flights
        self._streaks: dict[FunctionKind, dict[int, list[int]]] = {}
        """By function and worker: failures in a row here, successes elsewhere."""

    def ended(self, worker: WorkerRecord, batch: RunsEnded, now: float) -> None:
        """A worker finished runs."""
        unlike = (self._streaks or any(batch.statuses)) and self._is_unlike(worker, batch.statuses)
        self._flights.ended(worker, batch, now)
        if unlike and worker.state != WorkerState.STOPPING:
            text = (
                f"{worker.name} (process {worker.pid}) is replaced: its last {STREAK} runs of a function failed,"
                " while those on other workers succeeded"
            )
            self._fleet.deaths.append(text)
            self._flights.effects.append(Log(logging.WARNING, text))
            self._flights.kill(worker, None, b"", now)

    def gone(self, worker: int) -> None:
        """Another process takes the worker's number."""
        for kind in [kind for kind, streaks in self._streaks.items() if worker in streaks]:
            del self._streaks[kind][worker]
            if not self._streaks[kind]:
                del self._streaks[kind]

    def _is_unlike(self, worker: WorkerRecord, statuses: list[int]) -> bool:
        unlike = False
        for entry, status in zip(worker.entries(), statuses, strict=False):
            kind = entry[2].kind
            if status:
                unlike |= self._failed(worker.number, kind)
            else:
                self._succeeded(worker.number, kind)
        return unlike

    def _failed(self, worker: int, kind: FunctionKind) -> bool:
        streaks = self._streaks.get(kind)
        if streaks is None:
            if len(self._streaks) >= KINDS_LIMIT:
                del self._streaks[next(iter(self._streaks))]
            streaks = self._streaks[kind] = {}
        streak = streaks.setdefault(worker, [0, 0])
        streak[0] += 1
        return min(streak) >= STREAK

    def _succeeded(self, worker: int, kind: FunctionKind) -> None:
        streaks = self._streaks.get(kind)
        if streaks is None:
            return
        if worker in streaks:
            del self._streaks[kind]
        else:
            for streak in streaks.values():
                streak[1] += 1
