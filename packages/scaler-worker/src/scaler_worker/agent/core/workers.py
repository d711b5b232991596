"""The workers of an agent: which there are, which are free, how many more or fewer there should be."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence

from scaler_io.links.effects import Log
from scaler_protocol.messages import WorkerState
from scaler_worker.agent.core.events import AgentEffect, EndAgent, EndWorker, StartWorker
from scaler_worker.agent.core.records import WorkerRecord

REFILL_MICROSECONDS = 50_000.0
"""A worker with no more than this to do is given a second datagram, so that it never waits for us."""
SPARES = 32
"""Idle workers beyond the slots that are kept for a while: parents block again and again."""
SPARE_SECONDS = 10.0
FAILED_STARTS = 5
"""Workers in a row that end before they are ready, after which an agent that never had one that was gives up."""
FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 5.0
"""Between two tries to start workers."""


class Workers:
    """Worker records and the indexes over them. `reindex` is called after every change of a record."""

    def __init__(self, slots: int, names: Sequence[str], preload: str = "") -> None:
        self.slots = slots
        self.by_number: dict[int, WorkerRecord] = {}
        self.idle: dict[int, WorkerRecord] = {}
        self.refillable: dict[int, WorkerRecord] = {}
        self.running: set[int] = set()
        self.blocked: set[int] = set()
        self.draining: dict[int, WorkerRecord] = {}
        """Those that are not to be followed by others, until they are gone."""
        self.deaths: list[str] = []
        """What has ended workers unbidden, in words, since the last report."""
        self._names, self._preload = names, preload
        self._announced = 0
        self._free_numbers: list[int] = []
        self._failed = 0
        self._any_ready = False
        self._obstacle = False
        """Whether the last worker could not be started."""
        self._pause, self._start_at = 0.0, -math.inf
        self._missing = False
        """Whether more workers are to be started, at `_start_at`."""

    def __iter__(self) -> Iterator[WorkerRecord]:
        return iter(list(self.by_number.values()))

    def reindex(self, worker: WorkerRecord, now: float) -> None:
        """Bring the indexes and the worker's state in line with its record."""
        number, flight = worker.number, worker.datagrams
        self.refillable.pop(number, None)
        if worker.state in (WorkerState.STARTING, WorkerState.STOPPING, WorkerState.DRAINING):
            self.idle.pop(number, None)
            self.running.discard(number)
            self.blocked.discard(number)
            return
        if not flight:
            if number not in self.idle:
                self.idle[number], worker.idle_since, worker.blocked = worker, now, False
            worker.state = WorkerState.IDLE
            self.running.discard(number)
            self.blocked.discard(number)
            return
        self.idle.pop(number, None)
        if worker.blocked:
            worker.state = WorkerState.BLOCKED
            self.running.discard(number)
            self.blocked.add(number)
            return
        worker.state = WorkerState.RUNNING
        self.running.add(number)
        self.blocked.discard(number)
        if len(flight) == 1 and flight[0].estimate <= REFILL_MICROSECONDS and not flight[0].revoked:
            self.refillable[number] = worker

    def ready(self, worker: WorkerRecord, pid: int, now: float) -> Log | None:
        """The worker waits for tasks."""
        if worker.state != WorkerState.STARTING:
            return None
        worker.pid, worker.state = pid, WorkerState.IDLE
        self._failed, self._any_ready, self._pause = 0, True, 0.0
        self.reindex(worker, now)
        if self._obstacle:
            self._obstacle = False
            return Log(logging.INFO, f"Worker[{worker.number}] started: workers can be started again")
        if self._announced >= self.slots:
            return None
        self._announced += 1
        return Log(logging.INFO, f"Worker[{worker.number}] started")

    def drain(self, pid: int, now: float) -> WorkerRecord | None:
        """The worker of this process is to finish what it runs, and end; its place is no more."""
        for worker in self.by_number.values():
            if worker.pid == pid and worker.state not in (WorkerState.STOPPING, WorkerState.DRAINING):
                self.slots = max(0, self.slots - 1)  # while parents are blocked there are more workers than slots
                self.draining[worker.number], worker.state = worker, WorkerState.DRAINING
                self.reindex(worker, now)
                return worker
        return None

    def gone(self, worker: WorkerRecord, reason: str, now: float) -> Log | EndAgent | None:
        """The worker's process is no more."""
        starting = worker.state == WorkerState.STARTING
        self._remove(worker)
        if not starting:
            return None
        self._failed += 1
        if self._failed < FAILED_STARTS or self._any_ready:
            return self._put_off(f"a worker {reason} before it was ready", now)
        preload = f"; each begins with the preload {self._preload}" if self._preload else ""
        text = f"{self._failed} workers in a row ended before they were ready; the last one {reason}{preload}"
        return EndAgent(1, (text,))

    def not_started(self, worker: WorkerRecord, reason: str, now: float) -> Log | None:
        """There is no process for this worker."""
        self._remove(worker)
        return self._put_off(reason, now)

    def _remove(self, worker: WorkerRecord) -> None:
        worker.state = WorkerState.STOPPING
        self.reindex(worker, 0.0)
        del self.by_number[worker.number]
        self.draining.pop(worker.number, None)
        self._free_numbers.append(worker.number)
        self._free_numbers.sort(reverse=True)

    def _put_off(self, reason: str, now: float) -> Log | None:
        """Start the next worker after a pause, longer each time; says so the first time."""
        if now >= self._start_at:
            self._pause = min(max(2 * self._pause, FIRST_PAUSE_SECONDS), LAST_PAUSE_SECONDS)
            self._start_at = now + self._pause
        said, self._obstacle = self._obstacle, True
        return None if said else Log(logging.WARNING, f"workers can not be started, this is tried again: {reason}")

    def is_stuck(self) -> bool:
        """Whether all that could run something waits for other tasks, and no worker can be started for those."""
        return self._obstacle and bool(self.blocked) and len(self.blocked) + len(self.draining) == len(self.by_number)

    def balance(self, waiting: int, now: float) -> list[AgentEffect]:
        """Start what is missing for all slots to be filled, let go what has been idle too long."""
        effects: list[AgentEffect] = []
        usable = len(self.by_number) - len(self.blocked) - len(self.draining)
        # While parents are blocked, one worker more than can be used is kept: the next one that blocks need not wait.
        wanted = min(self.slots, len(self.running) + max(1, waiting)) + 1 if self.blocked else self.slots
        # One that is about to be gone counts until it is: its successor takes its number and name.
        self._missing = wanted > usable and now < self._start_at
        if now >= self._start_at:
            effects += (self._start() for _ in range(wanted - usable))
        for worker in self.draining.values():
            if worker.state == WorkerState.DRAINING and not worker.datagrams:
                effects.append(self._let_go(worker, now))
        spares = len(self.idle) + len(self.running) - self.slots
        for worker in list(self.idle.values()):
            if spares <= 0:
                break
            if spares > SPARES or now - worker.idle_since >= SPARE_SECONDS:
                effects.append(self._let_go(worker, now))
                spares -= 1
        return effects

    def _let_go(self, worker: WorkerRecord, now: float) -> EndWorker:
        worker.state = WorkerState.STOPPING
        self.reindex(worker, now)
        return EndWorker(worker.number)

    def due(self) -> float:
        """When `balance` has something to do although nothing happened."""
        return min(self._spare_due(), self._start_at if self._missing else math.inf)

    def _spare_due(self) -> float:
        if len(self.idle) + len(self.running) <= self.slots or not self.idle:
            return float("inf")
        return min(worker.idle_since for worker in self.idle.values()) + SPARE_SECONDS

    def _start(self) -> StartWorker:
        number = self._free_numbers.pop() if self._free_numbers else len(self.by_number)
        name = self._names[number] if number < len(self._names) else f"Worker[{number}]"
        self.by_number[number] = WorkerRecord(number, name)
        return StartWorker(number, name)

    def check(self) -> None:
        """The indexes agree with the records."""
        for number, worker in self.by_number.items():
            assert worker.number == number and len(worker.datagrams) <= 2
            assert (worker.state != WorkerState.DRAINING) or self.draining[number] is worker
            assert (number in self.idle) == (worker.state == WorkerState.IDLE)
            assert (number in self.running) == (worker.state == WorkerState.RUNNING)
            assert (number in self.blocked) == (worker.state == WorkerState.BLOCKED)
            if worker.state in (WorkerState.IDLE, WorkerState.STARTING):
                assert not worker.datagrams
            if number in self.refillable:
                assert len(worker.datagrams) == 1 and not worker.blocked
            sequences = [datagram.sequence for datagram in worker.datagrams]
            assert sequences == sorted(sequences)
            assert all(0 <= datagram.at < len(datagram.entries) for datagram in worker.datagrams)
        assert self.draining.keys() <= self.by_number.keys() and self.slots >= 0
        assert len(set(self._free_numbers) | set(self.by_number)) == len(self._free_numbers) + len(self.by_number)
