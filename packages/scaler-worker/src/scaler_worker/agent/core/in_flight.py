"""What workers are given, and what becomes of it: the part of AgentCore that deals with runs in flight."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final

from scaler_io.links.effects import Log
from scaler_protocol.errors import ScalerError, TaskTimeoutError, describe
from scaler_protocol.ids import SESSION_BITS
from scaler_protocol.messages import Message, Status, WorkerState
from scaler_protocol.objects import REFERENCE_BYTES
from scaler_protocol.profiles import NO_PROFILE
from scaler_worker.agent.core import events
from scaler_worker.agent.core.functions import FunctionTable
from scaler_worker.agent.core.records import NO_RUN, UNKNOWN, Datagram, Entry, FunctionKind, WaitingRuns, WorkerRecord
from scaler_worker.agent.core.result_buffer import KeptResults, ResultBuffer
from scaler_worker.agent.core.workers import Workers
from scaler_worker.ipc import frames

CHUNK_MICROSECONDS: Final = 8_000.0
"""Of work in one datagram: each result that is heard of by itself costs the host most of a millisecond."""
SWEEP_SECONDS: Final = 0.001
LONGEST_SWEEP_SECONDS: Final = 0.008
"""Between two sweeps of pipes."""
OVERDUE_SECONDS: Final = 0.005
"""Beyond ten times the estimate, after which what stands behind a run is taken back."""
OUTLIERS: Final = 32
"""One run in so many is not counted into the estimate of its function."""
RETRY_SECONDS: Final = 0.05
"""How soon a run that was to be stopped is looked at again."""


class InFlight:
    """Runs from waiting to ended, over the workers of one agent."""

    def __init__(self, workers: Workers, functions: FunctionTable, results: ResultBuffer) -> None:
        self.waiting = WaitingRuns()
        self.kept = KeptResults()
        self.effects: list[events.AgentEffect] = []
        self.needed: dict[bytes, None] = {}
        """Functions whose bytes are to be asked for."""
        self.input_missing_runs: list[int] = []
        """To be given back to the scheduler: what they take was not made before them."""
        self.check_at = math.inf
        self._workers = workers
        self._functions = functions
        self._results = results

    # --- giving -----------------------------------------------------------------------------------------------------

    def assign(self, now: float) -> None:
        """Give waiting runs to workers that have nothing, or little, to do."""
        waiting, workers = self.waiting, self._workers
        while waiting and workers.idle and (free := workers.slots - len(workers.running)) > 0:
            share = -(-len(waiting) // min(free, len(workers.idle)))
            _, worker = workers.idle.popitem()
            self._give(worker, min(share, frames.COUNT_LIMIT), now)
        for worker in list(workers.refillable.values()):
            if not waiting:
                return
            self._give(worker, frames.COUNT_LIMIT, now)

    def share(self, now: float) -> None:
        """Nothing waits and a worker is idle: see whether it can have what another one has not begun to read."""
        wanted = min(len(self._workers.idle), self._workers.slots - len(self._workers.running))
        for number in self._workers.running:
            flight = self._workers.by_number[number].datagrams
            if wanted > 0 and len(flight) > 1 and not flight[1].checked:
                flight[1].checked = now
                self.effects.append(events.RecallTail(number))
                wanted -= 1

    def sweep_seconds(self, numbers: Iterable[int]) -> float:
        """How long what these workers write may stand unread: none of them runs out of work meanwhile."""
        least = LONGEST_SWEEP_SECONDS
        for number in numbers:
            left = sum(
                d.estimate * (len(d.entries) - d.at) / len(d.entries) for d in self._workers.by_number[number].datagrams
            )
            least = min(least, left / 2e6)
        return max(SWEEP_SECONDS, least)

    def _give(self, worker: WorkerRecord, count: int, now: float) -> None:
        entries = self.waiting.take(count, CHUNK_MICROSECONDS, frames.DATAGRAM_LIMIT)
        kinds = {entry[2].kind for entry in entries}
        if unknown := [kind for kind in kinds if kind.handle not in worker.knows]:
            entries = self._define(worker, unknown, entries)
        if entries:
            worker.sequence += 1
            datagram = Datagram(worker.sequence, entries, sum(entry[2].kind.estimate for entry in entries))
            worker.datagrams.append(datagram)
            self.effects.append(events.SendTasks(worker.number, worker.sequence, entries))
            if len(worker.datagrams) == 1:
                datagram.since = now
            self._watch(worker)
        self._workers.reindex(worker, now)

    def _define(self, worker: WorkerRecord, kinds: Iterable[FunctionKind], entries: list[Entry]) -> list[Entry]:
        """Tell the worker of these kinds; returns the runs whose functions are all here."""
        for kind in kinds:
            if missing := self._functions.missing(kind):
                self.needed.update(zip(missing, repeat(None)))
                self._functions.park(entry for entry in entries if entry[2].kind is kind)
                entries = [entry for entry in entries if entry[2].kind is not kind]
            else:
                worker.learn(kind)
                self.effects.append(events.Define(worker.number, self._functions.definition(kind)))
        return entries

    def _watch(self, worker: WorkerRecord) -> None:
        """See that `check` comes when the worker's next run is overdue or out of time."""
        head = worker.datagrams[0]
        if timeout := head.entries[head.at][2].timeout:
            self.check_at = min(self.check_at, head.since + timeout)
        if worker.withdrawn or len(worker.datagrams) > 1 or (not head.revoked and head.at + 1 < len(head.entries)):
            self.check_at = min(self.check_at, _overdue_at(head))

    # --- ending -----------------------------------------------------------------------------------------------------

    def ended(self, worker: WorkerRecord, batch: frames.RunsEnded, now: float) -> None:
        """A worker finished runs."""
        at, total = 0, len(batch.runs)
        while at < total:
            if not worker.datagrams:
                self.broken(worker, batch.runs[at], now)
                return
            head = worker.datagrams[0]
            entries = head.entries[head.at : head.at + total - at]
            end = at + len(entries)
            whole = not at and end == total
            part = batch if whole else batch.part(at, end)
            if [entry[0] for entry in entries] != part.runs or not _is_sound(part):
                self.broken(worker, batch.runs[at], now)
                return
            self._take_outcomes(worker, entries, part)
            self._advance(worker, len(entries), now)
            at = end
        worker.children.clear()
        worker.blocked = worker.inferred_blocked = worker.skipped = False
        if worker.datagrams:
            self._watch(worker)
        self._workers.reindex(worker, now)

    def broken(self, worker: WorkerRecord, run: int, now: float) -> None:
        """A task wrote into its worker's pipe or word: what the worker says can not be believed any more.

        Where this is known of a run, the worker's end is charged to that: it may do so each time.
        """
        if worker.state == WorkerState.STOPPING:
            return
        text = f"{worker.name} (process {worker.pid}) is replaced: a task has overwritten what the worker says to us"
        self.effects.append(Log(logging.WARNING, text))
        worker.charged_run = run
        self.kill(worker, None, b"", now)

    def _advance(self, worker: WorkerRecord, count: int, now: float) -> None:
        head = worker.datagrams[0]
        head.at += count
        worker.last_run = head.entries[head.at - 1][0]
        head.since = now
        if head.at >= len(head.entries):
            worker.datagrams.popleft()
            if worker.datagrams:
                worker.datagrams[0].since = now

    def _take_outcomes(self, worker: WorkerRecord, entries: list[Entry], batch: frames.RunsEnded) -> None:
        _measure(entries, batch.durations)
        if worker.withdrawn and not worker.withdrawn.isdisjoint(batch.runs):
            # An object that nobody wants must be told of all the same, or nobody frees it.
            wanted = [at for at, run in enumerate(batch.runs) if run not in worker.withdrawn or at in batch.stored]
            worker.withdrawn.difference_update(batch.runs)
            for at in wanted:
                self._take_outcomes(worker, [entries[at]], batch.part(at, at + 1))
            return
        tasks = [entry[1] for entry in entries]
        if len({task >> SESSION_BITS for task in tasks}) > 1:
            for at, entry in enumerate(entries):
                self._settle_runs([entry[1]], batch.part(at, at + 1))
        else:
            self._settle_runs(tasks, batch)

    def _settle_runs(self, tasks: list[int], batch: frames.RunsEnded) -> None:
        size = sum(map(len, batch.payloads))
        runs, statuses, payloads, profiles = batch.runs, batch.statuses, batch.payloads, batch.profiles
        self._results.extend(tasks, runs, statuses, payloads, profiles, batch.stored, size)
        stored: Iterable[bool] = repeat(False, len(tasks))
        if batch.stored:
            positions = set(batch.stored)
            stored = [at in positions for at in range(len(tasks))]
        self.kept.keep(tasks, zip(runs, statuses, payloads, profiles, stored, strict=True), size)

    def fail(self, run: int, task: int, status: int, payload: bytes) -> None:
        """The engine ends a run."""
        outcome = (run, status, payload, NO_PROFILE, False)
        self._results.append(task, outcome)
        if status == Status.FAILED:
            self.kept.keep((task,), (outcome,), len(payload))

    def send(self, message: Message) -> None:
        """Say something to the scheduler."""
        self.effects.append(events.SendToScheduler(message))

    def not_given(self, worker: WorkerRecord, sequence: int, payload: bytes, now: float) -> None:
        """A datagram could not be written to the worker: its runs fail so."""
        for datagram in [datagram for datagram in worker.datagrams if datagram.sequence == sequence]:
            worker.datagrams.remove(datagram)
            for run, task, *_ in datagram.left():
                if run not in worker.withdrawn:
                    self.fail(run, task, Status.FAILED, payload)
                worker.withdrawn.discard(run)
        if worker.datagrams:
            worker.datagrams[0].since = now
        self._workers.reindex(worker, now)

    def function_missing(self, worker: WorkerRecord, run: int, now: float) -> None:
        """A worker has dropped the function of its next run."""
        entry = worker.next_entry()
        if entry is None or entry[0] != run:
            return
        kind = entry[2].kind
        worker.knows.pop(kind.handle, None)
        self._advance(worker, 1, now)
        if kind.fault and run not in worker.withdrawn:
            self.fail(run, entry[1], Status.FAILED, kind.fault)
        else:
            self._requeue(worker, [entry])
        self._workers.reindex(worker, now)

    def input_missing(self, worker: WorkerRecord, run: int, now: float) -> None:
        """A worker could not start its next run, because the one before made nothing that it could take."""
        entry = worker.next_entry()
        if entry is None or entry[0] != run:
            return
        self._advance(worker, 1, now)
        if run not in worker.withdrawn:
            self.input_missing_runs.append(run)
        worker.withdrawn.discard(run)
        self._workers.reindex(worker, now)

    def returned(self, worker: WorkerRecord, run: int, now: float) -> None:
        """A worker did not start this run and what stands behind it in its datagram: that is revoked, or it retires.

        Where it does so again and again, a task has overwritten the word by which datagrams are revoked.
        """
        worker.last_run = run
        entry = worker.next_entry()
        if entry is None or entry[0] != run:
            return
        skipped = not worker.datagrams[0].revoked
        self._requeue(worker, worker.datagrams.popleft().left())
        if worker.datagrams:
            worker.datagrams[0].since = now
        self._workers.reindex(worker, now)
        if skipped and worker.skipped:
            self.broken(worker, 0, now)
        worker.skipped = skipped

    def _requeue(self, worker: WorkerRecord, entries: Sequence[Entry]) -> None:
        """Runs that were not started are next again, but for those that nobody wants any more."""
        if worker.withdrawn:
            runs = {entry[0] for entry in entries}
            entries = [entry for entry in entries if entry[0] not in worker.withdrawn]
            worker.withdrawn -= runs
        self.waiting.requeue(entries)

    # --- taking back ------------------------------------------------------------------------------------------------

    def reclaim(self, worker: WorkerRecord) -> None:
        """Have back what stands behind the worker's current run."""
        if worker.state == WorkerState.STOPPING or not worker.datagrams:
            return
        if len(worker.datagrams) > 1 or worker.withdrawn:
            self.effects.append(events.RecallTail(worker.number))
        head = worker.datagrams[0]
        if not head.revoked and head.at + 1 < len(head.entries):
            head.revoked = True
            self.effects.append(events.ReadRun(worker.number, head.sequence))

    def tail_recalled(self, worker: WorkerRecord, event: events.TailRecalled, now: float) -> None:
        """The last datagrams of a flight were never read; the run it is in may be one that is to be stopped."""
        for handle in event.handles:
            worker.knows.pop(handle, None)
        for _ in range(min(event.datagrams, len(worker.datagrams))):
            self._requeue(worker, worker.datagrams.pop().left())
        entry, run = worker.next_entry(), worker.run_named(event.run)
        if entry is not None and entry[0] == run and worker.state != WorkerState.STOPPING:
            if run == worker.kill_target:
                self.kill(worker, run, worker.kill_reason, now)
            elif run in worker.withdrawn and (_is_long(entry) or now >= worker.datagrams[0].since + _patience(entry)):
                self.kill(worker, run, b"", now)
        worker.kill_target = worker.kill_target if worker.state == WorkerState.STOPPING else None
        self._workers.reindex(worker, now)

    def run_read(self, worker: WorkerRecord, event: events.RunRead, now: float) -> None:
        """A datagram is revoked for certain: what stands behind the run that was read is ours again."""
        for datagram in worker.datagrams:
            if datagram.sequence == event.sequence:
                runs = [entry[0] for entry in datagram.entries]
                if event.run in runs[datagram.at :]:
                    cut = runs.index(event.run) + 1
                    worker.revoked_run = runs[cut] if cut < len(runs) else NO_RUN
                    self._requeue(worker, datagram.entries[cut:])
                    del datagram.entries[cut:]
                return

    def withdraw(self, runs: set[int], now: float) -> None:
        """Stop these runs wherever they are; each is CANCELLED at once."""
        for entry in (*self.waiting.remove(runs), *self._functions.remove(runs)):
            self.fail(entry[0], entry[1], Status.CANCELLED, b"")
        for worker in self._workers:
            hit = [entry for entry in worker.entries() if entry[0] in runs and entry[0] not in worker.withdrawn]
            if hit:
                for entry in hit:
                    self.fail(entry[0], entry[1], Status.CANCELLED, b"")
                worker.withdrawn.update(entry[0] for entry in hit)
                if worker.state != WorkerState.STOPPING:
                    self.effects.append(events.RecallTail(worker.number))
                    self._watch(worker)

    def stop_run(self, worker: WorkerRecord, run: int, error: ScalerError) -> None:
        """End a run that is being executed with an error, if it still is."""
        if worker.state != WorkerState.STOPPING:
            worker.kill_target, worker.kill_reason = run, describe(error)
            self.effects.append(events.RecallTail(worker.number))

    def kill(self, worker: WorkerRecord, run: int | None, kill_reason: bytes, now: float) -> None:
        """Kill a worker to stop one of its runs."""
        if run is not None and (entry := worker.next_entry()):
            text = f"{worker.name} (process {worker.pid}) is killed to stop task {entry[1]:x}"
            self.effects.append(Log(logging.INFO, text))
        worker.kill_target, worker.kill_reason, worker.state = run, kill_reason, WorkerState.STOPPING
        self._workers.reindex(worker, now)
        self.effects.append(events.KillWorker(worker.number))

    # --- what time brings -------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Find runs that are out of time, and what waits behind runs that take too long."""
        self.check_at = math.inf
        for worker in self._workers:
            if not worker.datagrams or worker.state == WorkerState.STOPPING:
                continue
            head = worker.datagrams[0]
            entry = head.entries[head.at]
            timeout = entry[2].timeout
            if timeout and now >= head.since + timeout:
                message = f"the task ran longer than its timeout of {timeout:g} s and was stopped"
                self.stop_run(worker, entry[0], TaskTimeoutError(message, timeout_seconds=timeout))
                head.since = now - timeout + RETRY_SECONDS
            elif now >= _overdue_at(head):
                if self._workers.idle:  # otherwise nobody could run it sooner
                    self.reclaim(worker)
                elif worker.withdrawn:
                    self.effects.append(events.RecallTail(worker.number))
                head.checked = now
            self._watch(worker)


def _overdue_at(head: Datagram) -> float:
    return max(head.since, head.checked) + _patience(head.entries[head.at])


def _patience(entry: Entry) -> float:
    """Seconds that a run may take before it is overdue."""
    estimate = entry[2].kind.estimate
    return OVERDUE_SECONDS + (0.0 if estimate == UNKNOWN else estimate / 1e5)


def _is_long(entry: Entry) -> bool:
    return entry[2].kind.estimate >= OVERDUE_SECONDS * 1e6


def _measure(entries: list[Entry], durations: list[int]) -> None:
    kinds = {entry[2].kind for entry in entries}
    if len(kinds) == 1:
        kinds.pop().measured(_typical(durations))
        return
    for kind in kinds:
        found = [duration for entry, duration in zip(entries, durations, strict=True) if entry[2].kind is kind]
        kind.measured(_typical(found))


def _typical(durations: list[int]) -> float:
    """The mean of all but the longest few, which other processes of the host held up."""
    count = len(durations) - len(durations) // OUTLIERS
    return sum(durations if count == len(durations) else sorted(durations)[:count]) / count


def _is_sound(batch: frames.RunsEnded) -> bool:
    """Whether these can be outcomes that a worker has written."""
    return max(batch.statuses) <= Status.FAILED and all(
        len(batch.payloads[position]) == REFERENCE_BYTES for position in batch.stored
    )
