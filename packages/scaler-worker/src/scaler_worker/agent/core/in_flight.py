"""Runs in flight: sending them to workers, taking results, reclaiming, timeouts. A part of AgentCore."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Final

from scaler_io.links.effects import Log
from scaler_protocol.errors import ScalerError, TaskTimeoutError, describe, restore
from scaler_protocol.ids import SESSION_BITS
from scaler_protocol.messages import Message, Returned, Status, Withdraw, WorkerState, pieces_of
from scaler_protocol.objects import REFERENCE_BYTES
from scaler_protocol.profiles import LONGEST_RUN_US, NO_PROFILE, Profile
from scaler_worker.agent.core import events
from scaler_worker.agent.core.functions import FunctionTable
from scaler_worker.agent.core.kept_outcomes import KeptOutcomes
from scaler_worker.agent.core.limited_runs import LimitedRuns
from scaler_worker.agent.core.pinned_runs import PinnedRuns
from scaler_worker.agent.core.records import (
    ATTEMPT,
    GROUP,
    NO_RUN,
    OVERDUE_SECONDS,
    RUN,
    TASK,
    Datagram,
    Entry,
    FunctionKind,
    WorkerRecord,
    run_ids,
)
from scaler_worker.agent.core.result_buffer import ResultBuffer
from scaler_worker.agent.core.waiting_runs import WaitingRuns
from scaler_worker.agent.core.workers import Workers
from scaler_worker.ipc import frames

SWEEP_SECONDS: Final = 0.001
LONGEST_SWEEP_SECONDS: Final = 0.008
"""Bounds of the interval between two sweeps of result pipes."""
OUTLIERS: Final = 32
"""The slowest of each OUTLIERS runs does not count for the estimate of its function."""
RETRY_SECONDS: Final = 0.05
"""Interval between attempts to stop a run."""
STILL_SECONDS: Final = 5.0
"""A worker that begins nothing of what it was sent for twice as long is stopped, or hangs between two tasks."""
READ_BYTES: Final = 10_000_000
"""What a worker reads of a long call in a second at least; a host that has little memory left is that slow."""


class InFlight:
    """The runs of one agent, from waiting to ended."""

    def __init__(
        self, workers: Workers, functions: FunctionTable, results: ResultBuffer, consumables: Mapping[str, int]
    ) -> None:
        self.waiting = WaitingRuns()
        self.pinned = PinnedRuns()
        self.limited = LimitedRuns(consumables)
        self.kept = KeptOutcomes()
        self.effects: list[events.AgentEffect] = []
        self.needed: dict[bytes, None] = {}
        """Functions whose bytes `settle` requests."""
        self.input_missing_runs: list[int] = []
        """Runs that `settle` returns to the scheduler: the previous run has no result for them."""
        self.check_at = math.inf
        self.last_sent = (0, (0, 0))
        """Session and level of the last run that was sent to a worker."""
        self._workers = workers
        self._functions = functions
        self._results = results
        self._withdrawn_profiles: dict[int, bytes] = {}
        """Of withdrawn runs that are reported when they are over."""

    @property
    def waiting_count(self) -> int:
        """Runs that wait for a worker."""
        return self.waiting.count + len(self.limited.runs)

    def will_join(self, session: int) -> bool:
        """Whether further outcomes of this session come, and workers have their next runs here meanwhile."""
        if not self.waiting.count:
            return False
        running = (self._workers.by_number[number].next_entry() for number in self._workers.running)
        return self.waiting.has_runs_of(session) or any(
            entry is not None and entry[TASK] >> SESSION_BITS == session for entry in running
        )

    # --- sending ----------------------------------------------------------------------------------------------------

    def queue(self, entries: Sequence[Entry], now: float) -> None:
        """Queue new runs, some of which are limited or pinned: the latter go before what is queued behind a run."""
        self.waiting.extend(self.limited.sort_out(self.pinned.sort_out(entries)))
        for pid in self.pinned.pids:
            if (worker := self._workers.find(pid)) is not None:
                self.reclaim(worker)

    def sweep_seconds(self, numbers: Iterable[int]) -> float:
        """How long the results of these workers may stay unread before one of them could run out of work."""
        least = LONGEST_SWEEP_SECONDS
        for number in numbers:
            left = sum(
                d.estimate * (len(d.entries) - d.at) / len(d.entries) for d in self._workers.by_number[number].datagrams
            )
            least = min(least, left / 2e6)
        return max(SWEEP_SECONDS, least)

    def send_runs(self, worker: WorkerRecord, entries: list[Entry], now: float) -> None:
        """Send runs to a worker in one datagram; those whose functions are missing are parked."""
        kinds = {entry[GROUP].kind for entry in entries}
        if unknown := [kind for kind in kinds if kind.handle not in worker.defined]:
            entries = self._define(worker, unknown, entries)
        if entries:
            worker.sequence += 1
            datagram = Datagram(worker.sequence, entries, sum(entry[GROUP].kind.estimate for entry in entries))
            worker.datagrams.append(datagram)
            self.effects.append(events.SendTasks(worker.number, worker.sequence, entries))
            self.last_sent = entries[-1][TASK] >> SESSION_BITS, entries[-1][GROUP].level
            if len(worker.datagrams) == 1:
                datagram.since = now
            self._watch(worker)
        self._workers.reindex(worker, now)

    def _define(self, worker: WorkerRecord, kinds: Iterable[FunctionKind], entries: list[Entry]) -> list[Entry]:
        """Define these kinds at the worker; parks runs whose functions are missing and returns the others."""
        for kind in kinds:
            if missing := self._functions.missing(kind):
                self.needed.update(zip(missing, repeat(None)))
                self._functions.park(entry for entry in entries if entry[GROUP].kind is kind)
                entries = [entry for entry in entries if entry[GROUP].kind is not kind]
            else:
                worker.learn(kind)
                self.effects.append(events.Define(worker.number, self._functions.definition(kind)))
        return entries

    def _watch(self, worker: WorkerRecord) -> None:
        """Schedule `check_times` for the time when the worker's next run is overdue, times out or has not begun."""
        head = worker.datagrams[0]
        if not head.begun:
            self.check_at = min(self.check_at, _unbegun_at(head))
        if timeout := head.entries[head.at][GROUP].timeout:
            self.check_at = min(self.check_at, _stop_at(head, timeout))
        if worker.withdrawn or len(worker.datagrams) > 1 or (not head.revoked and head.at + 1 < len(head.entries)):
            self.check_at = min(self.check_at, _overdue_at(head))

    # --- results ----------------------------------------------------------------------------------------------------

    def ended(self, worker: WorkerRecord, batch: frames.RunsEnded, now: float) -> None:
        """A worker has finished runs."""
        at, total = 0, len(batch.runs)
        while at < total:
            if not worker.datagrams:
                self.corrupted(worker, batch.runs[at], now)
                return
            head = worker.datagrams[0]
            entries = head.entries[head.at : head.at + total - at]
            end = at + len(entries)
            whole = not at and end == total
            part = batch if whole else batch.part(at, end)
            if run_ids(entries) != part.runs or not _is_sound(part):
                self.corrupted(worker, batch.runs[at], now)
                return
            self._take_results(worker, entries, part)
            self._advance(worker, len(entries), now)
            at = end
        worker.children.clear()
        worker.blocked = worker.inferred_blocked = worker.returned_unrevoked = False
        if worker.datagrams:
            self._watch(worker)
        self._workers.reindex(worker, now)

    def corrupted(self, worker: WorkerRecord, run: int | None, now: float) -> None:
        """A task has written into its worker's pipe or cells, so the worker's replies are unreliable: kill it.

        The death is charged to `run`, since it may do so in each attempt. If the worker does not have that one, its
        next run has written the number; None if it is not known which one it was.
        """
        if worker.state == WorkerState.STOPPING:
            return
        text = f"{worker.called} is replaced: a task has overwritten its replies or shared state"
        self.effects.append(Log(logging.WARNING, text, worker=worker.name))
        if run is not None and run not in run_ids(worker.entries()):
            entry = worker.next_entry()
            run = entry[RUN] if entry is not None else None
        worker.charged_run = run or 0
        self.kill(worker, None, b"", now)

    def _advance(self, worker: WorkerRecord, count: int, now: float) -> None:
        head = worker.datagrams[0]
        worker.still_seconds = 0.0
        head.begun = False
        head.at += count
        worker.last_run = head.entries[head.at - 1][0]
        head.since = now
        if head.at >= len(head.entries):
            worker.datagrams.popleft()
            if worker.datagrams:
                worker.datagrams[0].since = now

    def _take_results(self, worker: WorkerRecord, entries: list[Entry], batch: frames.RunsEnded) -> None:
        _measure(entries, batch.durations)
        if worker.withdrawn and not worker.withdrawn.isdisjoint(batch.runs):
            withdrawn = worker.withdrawn.intersection(batch.runs)
            worker.withdrawn -= withdrawn
            for at, run in enumerate(batch.runs):
                if run not in withdrawn:
                    self._take_results(worker, [entries[at]], batch.part(at, at + 1))
                elif at in batch.stored:
                    # Only reported, so that the scheduler deletes it: a newer run of the task may have ended before.
                    self._report([entries[at][TASK]], batch.part(at, at + 1))
                else:
                    self._withdrawn_over(entries[at])
            return
        tasks = [entry[TASK] for entry in entries]
        if len({task >> SESSION_BITS for task in tasks}) > 1:
            for at, entry in enumerate(entries):
                self._report_and_keep([entry[TASK]], batch.part(at, at + 1))
        else:
            self._report_and_keep(tasks, batch)
        if any(entry[GROUP].takes for entry in entries):
            self._results.hurry()  # another run may wait for what these took

    def _report(self, tasks: list[int], batch: frames.RunsEnded) -> int:
        """Report the outcomes of these tasks; returns the size of their payloads in bytes."""
        size = sum(map(len, batch.payloads))
        self._results.extend(tasks, batch.runs, batch.statuses, batch.payloads, batch.profiles, batch.stored, size)
        return size

    def _report_and_keep(self, tasks: list[int], batch: frames.RunsEnded) -> None:
        size = self._report(tasks, batch)
        runs, statuses, payloads, profiles = batch.runs, batch.statuses, batch.payloads, batch.profiles
        stored: Iterable[bool] = repeat(False, len(tasks))
        if batch.stored:
            positions = set(batch.stored)
            stored = [at in positions for at in range(len(tasks))]
        self.kept.keep(tasks, zip(runs, statuses, payloads, profiles, stored, strict=True), size)

    def fail(self, run: int, task: int, status: int, payload: bytes, profile: bytes = NO_PROFILE) -> None:
        """End a run with an error of the engine."""
        row = (run, status, payload, profile, False)
        self._results.append(task, row)
        if status == Status.FAILED:
            self.kept.keep((task,), (row,), len(payload))

    def give_back(self, runs: Sequence[int]) -> None:
        """Return runs that have not started to the scheduler."""
        for some in pieces_of(runs):
            self.send(Returned(some))

    def send(self, message: Message) -> None:
        """Queue a message to the scheduler."""
        self.effects.append(events.SendToScheduler(message))

    def tasks_not_sent(self, worker: WorkerRecord, sequence: int, payload: bytes, now: float) -> None:
        """A datagram could not be written to the worker: its runs fail with `payload`."""
        for datagram in [datagram for datagram in worker.datagrams if datagram.sequence == sequence]:
            worker.datagrams.remove(datagram)
            for run, task, *_ in datagram.left():
                if run not in worker.withdrawn:
                    self.fail(run, task, Status.FAILED, payload)
            self.discard_withdrawn(worker, datagram.left())
        if worker.datagrams:
            worker.datagrams[0].since = now
        self._workers.reindex(worker, now)

    def function_missing(self, worker: WorkerRecord, event: frames.FunctionMissing, now: float) -> None:
        """A worker no longer holds the function of its next run."""
        run, entry = event.run, worker.next_entry()
        if entry is None or entry[RUN] != run:
            self.corrupted(worker, run, now)
            return
        kind = entry[GROUP].kind
        worker.defined.pop(kind.handle, None)
        self._advance(worker, 1, now)
        if kind.fault and run not in worker.withdrawn:
            self.fail(run, entry[TASK], Status.FAILED, kind.fault)
        else:
            self._requeue(worker, [entry])
        self._workers.reindex(worker, now)

    def input_missing(self, worker: WorkerRecord, event: frames.InputMissing, now: float) -> None:
        """A worker could not start its next run, because the previous run has no result for it."""
        run, entry = event.run, worker.next_entry()
        if entry is None or entry[RUN] != run:
            self.corrupted(worker, run, now)
            return
        self._advance(worker, 1, now)
        if run not in worker.withdrawn:
            self.input_missing_runs.append(run)
        self.discard_withdrawn(worker, [entry])
        self._workers.reindex(worker, now)

    def returned(self, worker: WorkerRecord, event: frames.DatagramReturned, now: float) -> None:
        """A worker did not start this run and the rest of its datagram: that was revoked, or the worker retires.

        If it happens twice without a revocation, a task has overwritten the revoked sequence.
        """
        worker.last_run, worker.still_seconds = event.run, 0.0
        # A run that was reclaimed from a revoked datagram may be in the next one already, which is not returned.
        entry = worker.next_entry()
        if entry is None or entry[RUN] != event.run or worker.datagrams[0].sequence != event.sequence:
            return
        unrevoked = not worker.datagrams[0].revoked
        self._requeue(worker, worker.datagrams.popleft().left())
        if worker.datagrams:
            worker.datagrams[0].since = now
        self._workers.reindex(worker, now)
        if unrevoked and worker.returned_unrevoked:
            self.corrupted(worker, None, now)
        worker.returned_unrevoked = unrevoked

    def _requeue(self, worker: WorkerRecord, entries: Sequence[Entry]) -> None:
        """Requeue runs that were not started at the front; withdrawn ones are discarded."""
        if worker.withdrawn:
            wanted = [entry for entry in entries if entry[RUN] not in worker.withdrawn]
            self.discard_withdrawn(worker, entries)
            entries = wanted
        self.requeue(entries)

    def requeue(self, entries: Sequence[Entry]) -> None:
        """Put runs that were not started back to the front."""
        self.waiting.requeue(self.limited.sort_out(self.pinned.sort_out(entries, first=True), first=True))

    # --- reclaiming and stopping ------------------------------------------------------------------------------------

    def reclaim(self, worker: WorkerRecord) -> None:
        """Reclaim the runs behind the worker's current one."""
        if worker.state == WorkerState.STOPPING or not worker.datagrams:
            return
        if len(worker.datagrams) > 1 or worker.withdrawn:
            self.effects.append(events.RecallTail(worker.number))
        head = worker.datagrams[0]
        if not head.revoked and head.at + 1 < len(head.entries):
            head.revoked = True
            self.effects.append(events.ReadRun(worker.number, head.sequence))

    def tail_recalled(self, worker: WorkerRecord, event: events.TailRecalled, now: float) -> None:
        """Datagrams were read back: requeue their runs.

        They need not be the last ones: another may have been sent since, or the worker has read a later one meanwhile.
        """
        for handle in event.handles:
            worker.defined.pop(handle, None)
        head = worker.datagrams[0] if worker.datagrams else None
        for datagram in [each for each in reversed(worker.datagrams) if each.sequence in event.sequences]:
            worker.datagrams.remove(datagram)
            self._requeue(worker, datagram.left())
        if worker.datagrams and worker.datagrams[0] is not head:
            worker.datagrams[0].since = now
        self._workers.reindex(worker, now)
        if head is not None and head.sequence in event.sequences:
            self._stood_still(worker, head, now)

    def run_seen(self, worker: WorkerRecord, event: events.RunSeen, now: float) -> None:
        """The worker's current run after a recall is known: kill the worker if that run is to be stopped.

        A worker that stands still may have read its next datagram: the kernel, which was in the middle of that, ends it
        before it stops the process.
        """
        entry, run = worker.next_entry(), worker.run_named(event.run)
        if entry is not None and worker.state != WorkerState.STOPPING:
            head = worker.datagrams[0]
            head.begun = head.begun or bool(worker.begun(event.run))
            if not head.begun:
                self._stood_still(worker, head, now)
            elif entry[RUN] == run == worker.kill_target:
                self.kill(worker, run, worker.kill_reason, now)
            elif run == entry[RUN] in worker.withdrawn and (_is_long(entry) or now >= head.since + head.patience):
                self.kill(worker, run, b"", now)
        worker.kill_target = worker.kill_target if worker.state == WorkerState.STOPPING else None

    def _stood_still(self, worker: WorkerRecord, head: Datagram, now: float) -> None:
        """The worker has begun nothing of the first datagram since the last look: kill it if that was so for long."""
        # The agent may have been paused itself: one look counts for STILL_SECONDS at most.
        worker.still_seconds += min(now - max(head.since, head.seen), STILL_SECONDS)
        head.seen = now
        reading = sum(len(call) for _, _, _, call, *_ in head.entries) // READ_BYTES
        if worker.still_seconds >= 2 * STILL_SECONDS + reading and worker.state != WorkerState.STOPPING:
            text = f"it has begun no task for {worker.still_seconds:.0f} s: it is stopped, or hangs between two tasks"
            text = f"{worker.called} is replaced: {text}"
            self.effects.append(Log(logging.WARNING, text, worker=worker.name))
            self.kill(worker, None, b"", now)

    def run_read(self, worker: WorkerRecord, event: events.RunRead, now: float) -> None:
        """The answer to ReadRun: the revocation is effective, so requeue the runs behind the current one."""
        for datagram in worker.datagrams:
            if datagram.sequence == event.sequence:
                runs = run_ids(datagram.entries)
                if event.run in runs[datagram.at :]:
                    cut = runs.index(event.run) + 1
                    worker.revoked_run = runs[cut] if cut < len(runs) else NO_RUN
                    worker.revoked_sequence = datagram.sequence
                    self._requeue(worker, datagram.entries[cut:])
                    del datagram.entries[cut:]
                return

    def withdraw(self, message: Withdraw, now: float) -> None:
        """Withdraw runs in any state; each is reported CANCELLED at once.

        Those at workers that take consumables are so when they are over: until then others must not have these.
        """
        runs = set(message.runs)
        queued = (*self.waiting.remove(runs), *self.limited.remove(runs), *self.pinned.remove(runs))
        for entry in (*queued, *self._functions.remove(runs)):
            self.fail(entry[RUN], entry[TASK], Status.CANCELLED, b"")
        for worker in self._workers:
            hit = [entry for entry in worker.entries() if entry[RUN] in runs and entry[RUN] not in worker.withdrawn]
            if hit:
                for entry in hit:
                    profile = _profile_so_far(worker, entry, now)
                    if entry[GROUP].takes:
                        self._withdrawn_profiles[entry[RUN]] = profile
                    else:
                        self.fail(entry[RUN], entry[TASK], Status.CANCELLED, b"", profile)
                worker.withdrawn.update(run_ids(hit))
                if worker.state != WorkerState.STOPPING:
                    self.effects.append(events.RecallTail(worker.number))
                    self._watch(worker)

    def discard_withdrawn(self, worker: WorkerRecord, entries: Iterable[Entry]) -> None:
        """Forget those of the runs that were withdrawn: no process has them any more."""
        for entry in entries:
            if entry[RUN] in worker.withdrawn:
                worker.withdrawn.discard(entry[RUN])
                self._withdrawn_over(entry)

    def _withdrawn_over(self, entry: Entry) -> None:
        """A withdrawn run was at a worker, and is over: others may have what it took."""
        if entry[GROUP].takes:
            profile = self._withdrawn_profiles.pop(entry[RUN], NO_PROFILE)
            self.fail(entry[RUN], entry[TASK], Status.CANCELLED, b"", profile)

    def stop_run(self, worker: WorkerRecord, run: int, error: ScalerError) -> None:
        """Stop an executing run and end it with `error`, unless it ends before."""
        if worker.state != WorkerState.STOPPING:
            worker.kill_target, worker.kill_reason = run, describe(error)
            self.effects.append(events.RecallTail(worker.number))

    def kill(
        self, worker: WorkerRecord, run: int | None, kill_reason: bytes, now: float, *, status: int = Status.FAILED
    ) -> None:
        """Kill a worker to stop one of its runs, which ends with this status and `kill_reason` as its payload."""
        if run is not None and (entry := worker.next_entry()):
            text = f"{worker.called} is killed to stop task {entry[TASK]:x}"
            text = f"{text}: {restore(kill_reason)}" if kill_reason else text
            self.effects.append(Log(logging.INFO, text, task=entry[TASK], worker=worker.name))
        worker.kill_target, worker.kill_reason, worker.kill_status = run, kill_reason, status
        worker.state = WorkerState.STOPPING
        self._workers.reindex(worker, now)
        self.effects.append(events.KillWorker(worker.number))

    # --- time -------------------------------------------------------------------------------------------------------

    def check_times(self, now: float) -> None:
        """Stop runs that exceed their timeout; reclaim runs behind overdue ones, and those that are not begun."""
        self.check_at = math.inf
        for worker in self._workers:
            if not worker.datagrams or worker.state == WorkerState.STOPPING:
                continue
            head = worker.datagrams[0]
            entry = head.entries[head.at]
            timeout = entry[GROUP].timeout
            if timeout and now >= _stop_at(head, timeout):
                message = f"the task ran longer than its timeout of {timeout:g} s and was stopped"
                self.stop_run(worker, entry[RUN], TaskTimeoutError(message, timeout_seconds=timeout))
                head.asked = now
            elif now >= _overdue_at(head):
                self.reclaim(worker)
                head.checked = now
            if not head.begun and now >= _unbegun_at(head):
                head.asked = now
                self.effects.append(events.RecallTail(worker.number))
            self._watch(worker)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        withdrawn = {run for worker in self._workers for run in worker.withdrawn}
        assert self._withdrawn_profiles.keys() <= withdrawn, "a profile of a run that is over"


def profile_until(worker: WorkerRecord, entry: Entry, now: float, peak_memory: int = 0) -> bytes:
    """What is known of the current run of a worker, which has not reported it; its CPU time is not."""
    seconds = max(0.0, now - worker.datagrams[0].since)
    return Profile(round(1e6 * seconds), 0, peak_memory, worker.pid, worker.number, entry[ATTEMPT]).packed()


def _profile_so_far(worker: WorkerRecord, entry: Entry, now: float) -> bytes:
    """Of a run that is withdrawn; how long one with children has occupied the worker is unknown."""
    if worker.children or entry is not worker.next_entry():
        return NO_PROFILE
    return profile_until(worker, entry, now)


def _unbegun_at(head: Datagram) -> float:
    """When to look whether the worker has begun its next run."""
    return max(head.since, head.seen, head.asked) + STILL_SECONDS


def _stop_at(head: Datagram, timeout: float) -> float:
    """When to stop the current run, or to try that again."""
    return max(head.since + timeout, head.asked + RETRY_SECONDS)


def _overdue_at(head: Datagram) -> float:
    return max(head.since, head.checked) + head.patience


def _is_long(entry: Entry) -> bool:
    return entry[GROUP].kind.estimate >= OVERDUE_SECONDS * 1e6


def _measure(entries: list[Entry], durations: list[int]) -> None:
    kinds = {entry[GROUP].kind for entry in entries}
    if len(kinds) == 1:
        kinds.pop().measured(_typical(durations))
        return
    for kind in kinds:
        found = [duration for entry, duration in zip(entries, durations, strict=True) if entry[GROUP].kind is kind]
        kind.measured(_typical(found))


def _typical(durations: list[int]) -> float:
    """The mean without the longest few, which other processes of the host delayed."""
    total = len(durations)
    count = total - total // OUTLIERS
    return sum(durations if count == total else sorted(durations)[:count]) / count


def _is_sound(batch: frames.RunsEnded) -> bool:
    """Whether a worker can have written these results."""
    return (
        max(batch.statuses) <= Status.FAILED
        and max(batch.durations) <= LONGEST_RUN_US
        and not (batch.stored and any(len(batch.payloads[at]) != REFERENCE_BYTES for at in batch.stored))
    )
