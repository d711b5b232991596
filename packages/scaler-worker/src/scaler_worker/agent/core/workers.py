"""The workers of an agent: records, indexes by state, and how many should run."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence

from scaler_io.links.effects import Log
from scaler_protocol.messages import WorkerState
from scaler_worker.agent.core.events import AgentEffect, EndAgent, EndWorker, StartWorker
from scaler_worker.agent.core.gpus import Gpus
from scaler_worker.agent.core.records import WorkerRecord

REFILL_MICROSECONDS = 50_000.0
"""A worker with less work than this gets a second datagram, so that it does not wait for the agent."""
SPARES = 32
"""Idle workers beyond the slots that are kept for SPARE_SECONDS, since parents may block again."""
SPARE_SECONDS = 10.0
FAILED_STARTS = 5
"""Consecutive failed starts after which an agent that never had a ready worker gives up."""
FIRST_BACKOFF_SECONDS = 0.05
LAST_BACKOFF_SECONDS = 5.0
"""Bounds of the exponential backoff between attempts to start workers."""
STUCK_SECONDS = 3.0
"""How long no worker can be started before parents are ended: the next template needs a while."""


_TAKING = (WorkerState.IDLE, WorkerState.RUNNING, WorkerState.BLOCKED)


class Workers:
    """Worker records and indexes over them. `reindex` must be called after every change of a record."""

    def __init__(
        self, slots: int, names: Sequence[str], preload: str = "", gpus: Sequence[str] = (), agent: str = ""
    ) -> None:
        self.slots = slots
        self.gpus = Gpus(gpus)
        self.missing_gpus = 0
        """Runs that could start if more idle workers saw a GPU."""
        self.by_number: dict[int, WorkerRecord] = {}
        self.idle: dict[int, WorkerRecord] = {}
        self.refillable: dict[int, WorkerRecord] = {}
        self.running: set[int] = set()
        self.blocked: set[int] = set()
        self.draining: dict[int, WorkerRecord] = {}
        """Drained workers, which are not replaced, until they have ended."""
        self.deaths: list[str] = []
        """Descriptions of unexpected deaths since the last status report."""
        self._names, self._preload, self._agent = names, preload, agent
        self._announced = 0
        self._free_numbers: list[int] = []
        self._failed = 0
        self._any_ready = False
        self._failing_since = math.inf
        """When an attempt to start a worker failed, and none has succeeded since."""
        self._backoff, self._start_at = 0.0, -math.inf
        self._missing = False
        """Whether workers are missing and will be started at `_start_at`."""
        self.balance_at = math.inf
        """When to `balance` next if no event arrives before."""
        self._is_balanced = False
        """Whether workers that only begin or end runs leave `balance` nothing to do."""

    def __iter__(self) -> Iterator[WorkerRecord]:
        return iter(list(self.by_number.values()))

    def reindex(self, worker: WorkerRecord, now: float) -> None:
        """Update the indexes and the worker's state from its record."""
        number, flight = worker.number, worker.datagrams
        if number in self.refillable:
            del self.refillable[number]
        if worker.state in (WorkerState.STARTING, WorkerState.STOPPING, WorkerState.DRAINING):
            self._is_balanced = False
            self.idle.pop(number, None)
            self.running.discard(number)
            self.blocked.discard(number)
            return
        if not flight:
            if number not in self.idle:
                self.idle[number], worker.idle_since, worker.blocked = worker, now, False
            worker.state = WorkerState.IDLE
            self.running.discard(number)
            if self.blocked:
                self.blocked.discard(number)
            return
        if number in self.idle:
            del self.idle[number]
        if worker.blocked:
            worker.state, self._is_balanced = WorkerState.BLOCKED, False
            self.running.discard(number)
            self.blocked.add(number)
            return
        worker.state = WorkerState.RUNNING
        self.running.add(number)
        if self.blocked:
            self.blocked.discard(number)
        if len(flight) == 1 and flight[0].estimate <= REFILL_MICROSECONDS and not flight[0].revoked:
            self.refillable[number] = worker

    def ready(self, worker: WorkerRecord, pid: int, now: float) -> Log | None:
        """The worker is ready for tasks."""
        if worker.state != WorkerState.STARTING:
            return None
        worker.pid, worker.state, self._is_balanced = pid, WorkerState.IDLE, False
        self._failed, self._any_ready, self._backoff = 0, True, 0.0
        self.reindex(worker, now)
        if self._failing_since < math.inf:
            self._failing_since = math.inf
            return Log(logging.INFO, f"Worker[{worker.number}] started: workers can be started again")
        if self._announced >= self.slots:
            return None
        self._announced += 1
        return Log(logging.INFO, f"Worker[{worker.number}] started")

    def idle_worker(self, *, sees_gpu: bool = False) -> WorkerRecord | None:
        """An idle worker for the next run; where that needs no GPU, one that sees none is preferred."""
        idle = self.idle.values()
        if not self.gpus:
            return next(reversed(idle), None)
        if sees_gpu:
            free = self.gpus.free(self)
            return next((worker for worker in idle if worker.gpu in free), None)
        return min(idle, key=lambda worker: bool(worker.gpu), default=None)

    def find(self, pid: int) -> WorkerRecord | None:
        """The worker with this process id."""
        return next((worker for worker in self.by_number.values() if worker.pid == pid), None)

    @property
    def ready_workers(self) -> list[WorkerRecord]:
        """The workers that take tasks, or will once their present one has ended."""
        return [worker for worker in self.by_number.values() if worker.state in _TAKING and not worker.retire_reason]

    @property
    def is_complete(self) -> bool:
        """Whether each slot has such a worker, or none can be started."""
        return self._failing_since < math.inf or len(self.ready_workers) >= self.slots

    def drain(self, pid: int, now: float) -> WorkerRecord | None:
        """Drain the worker with this process id: it finishes its run and exits, and its slot is removed."""
        for worker in self.by_number.values():
            if worker.pid == pid and worker.state not in (WorkerState.STOPPING, WorkerState.DRAINING):
                self.slots = max(0, self.slots - 1)  # with blocked parents there are more workers than slots
                self._drain(worker, now)
                return worker
        return None

    def drain_all(self, now: float) -> list[WorkerRecord]:
        """Drain every worker; returns those that were not draining or stopping before."""
        self.slots, self._is_balanced = 0, False
        drained = [
            worker
            for worker in self.by_number.values()
            if worker.state not in (WorkerState.STOPPING, WorkerState.DRAINING)
        ]
        for worker in drained:
            self._drain(worker, now)
        return drained

    def resize(self, slots: int, now: float) -> list[WorkerRecord]:
        """Set the number of slots; returns the surplus workers, which are drained now: those that do least first, and
        before all others those that see no GPU.

        Workers that are blocked occupy no slot, and are drained only if no slot is left: their children cannot run.
        """
        if not slots:
            return self.drain_all(now)
        self.slots, self._is_balanced = slots, False
        order = (WorkerState.STARTING, WorkerState.IDLE, WorkerState.RUNNING)
        usable = [worker for state in order for worker in self.by_number.values() if worker.state == state]
        usable.sort(key=lambda worker: bool(worker.gpu))
        surplus = usable[: max(0, len(usable) - slots)]
        for worker in surplus:
            self._drain(worker, now)
        return surplus

    @property
    def is_settled(self) -> bool:
        """Whether every slot has a worker that is ready, and drained workers have ended."""
        in_between = (WorkerState.STARTING, WorkerState.STOPPING)
        return not (
            self._missing or self.draining or any(worker.state in in_between for worker in self.by_number.values())
        )

    def _drain(self, worker: WorkerRecord, now: float) -> None:
        self.draining[worker.number], worker.state = worker, WorkerState.DRAINING
        self.reindex(worker, now)

    def gone(self, worker: WorkerRecord, reason: str, now: float) -> Log | EndAgent | None:
        """The worker's process has ended."""
        starting = worker.state == WorkerState.STARTING
        self._remove(worker)
        if not starting:
            return None
        self._failed += 1
        if self._failed < FAILED_STARTS or self._any_ready:
            return self._back_off(f"a worker {reason} before it was ready", now)
        preload = f"; each begins with the preload {self._preload}" if self._preload else ""
        text = f"{self._failed} workers in a row ended before they were ready; the last one {reason}{preload}"
        return EndAgent(1, (text,))

    def not_started(self, worker: WorkerRecord, reason: str, now: float) -> Log | None:
        """The worker could not be started."""
        self._remove(worker)
        return self._back_off(reason, now)

    def _remove(self, worker: WorkerRecord) -> None:
        worker.state = WorkerState.STOPPING
        self.reindex(worker, 0.0)
        del self.by_number[worker.number]
        self.draining.pop(worker.number, None)
        self._free_numbers.append(worker.number)
        self._free_numbers.sort(reverse=True)

    def _back_off(self, reason: str, now: float) -> Log | None:
        """Delay the next start with exponential backoff; returns a log line for the first failure."""
        if now >= self._start_at:
            self._backoff = min(max(2 * self._backoff, FIRST_BACKOFF_SECONDS), LAST_BACKOFF_SECONDS)
            self._start_at = now + self._backoff
        if self._failing_since < math.inf:
            return None
        self._failing_since = now
        return Log(logging.WARNING, f"workers cannot be started; retrying: {reason}")

    def is_stuck(self, now: float) -> bool:
        """Whether every worker is blocked or draining, and for a while no worker could be started."""
        if now < self._failing_since + STUCK_SECONDS:
            return False
        return bool(self.blocked) and len(self.blocked) + len(self.draining) == len(self.by_number)

    def balance(self, waiting: int, now: float) -> list[AgentEffect]:
        """Start workers for empty slots; end workers that are drained or idle for too long."""
        if self._is_balanced and not self.missing_gpus:
            return []
        effects: list[AgentEffect] = []
        usable = len(self.by_number) - len(self.blocked) - len(self.draining)
        # With blocked parents, keep one more worker than can be used, so that the next parent to block need not wait.
        wanted = min(self.slots, len(self.running) + max(1, waiting)) + 1 if self.blocked else self.slots
        # A stopping worker counts until it has ended: its successor takes its number and name.
        self._missing = wanted > usable and now < self._start_at
        if (wanted > usable or self.missing_gpus) and now >= self._start_at:
            effects += (self._start() for _ in range(wanted - usable))
            effects += (self._start() for _ in range(self._missing_gpu_workers()))
        for worker in self.draining.values():
            if worker.state == WorkerState.DRAINING and not worker.datagrams:
                effects.append(self._release(worker, now))
        self.balance_at = self._start_at if self._missing else math.inf
        if (spares := len(self.idle) + len(self.running) - self.slots) > 0:
            effects += self._end_spares(spares, now)
        self._is_balanced = not (spares > 0 or self._missing or self.blocked or self.draining)
        return effects

    def _end_spares(self, spares: int, now: float) -> list[AgentEffect]:
        """End idle workers beyond the slots, unless they have not been idle for long."""
        effects: list[AgentEffect] = []
        running = map(self.by_number.__getitem__, self.running)
        for worker in self.gpus.least_needed_first(self.idle.values(), running):
            if spares <= 0:
                break
            if spares > SPARES or now - worker.idle_since >= SPARE_SECONDS:
                effects.append(self._release(worker, now))
                spares -= 1
        if spares > 0 and self.idle:
            oldest = min(worker.idle_since for worker in self.idle.values())
            self.balance_at = min(self.balance_at, oldest + SPARE_SECONDS)
        return effects

    def _missing_gpu_workers(self) -> int:
        """How many workers are to be started because none sees a GPU that runs need, although there are enough."""
        if not self.missing_gpus or not self.slots:
            return 0
        starting = sum(bool(worker.gpu) for worker in self if worker.state == WorkerState.STARTING)
        return max(0, min(self.missing_gpus - starting, len(self.gpus.unseen(self))))

    def _release(self, worker: WorkerRecord, now: float) -> EndWorker:
        worker.state = WorkerState.STOPPING
        self.reindex(worker, now)
        return EndWorker(worker.number)

    def _start(self) -> StartWorker:
        number = self._free_numbers.pop() if self._free_numbers else len(self.by_number)
        name = self._names[number] if number < len(self._names) else f"Worker[{number}]"
        gpu = next(iter(self.gpus.unseen(self)), "") if self.gpus else None
        self.by_number[number] = WorkerRecord(number, name, gpu or "", self._agent)
        return StartWorker(number, name, gpu)

    def check(self) -> None:
        """Assert that the indexes agree with the records."""
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
        if self._is_balanced:
            assert len(self.by_number) >= self.slots >= len(self.idle) + len(self.running)
            assert not (self.blocked or self.draining)
        assert len(set(self._free_numbers) | set(self.by_number)) == len(self._free_numbers) + len(self.by_number)
