"""Assigning: which worker is sent which waiting runs. A part of AgentCore."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from scaler_protocol.errors import WorkerDiedError, describe
from scaler_protocol.ids import SESSION_BITS
from scaler_protocol.messages import Blocked, Status, WorkerState
from scaler_worker.agent.core import events
from scaler_worker.agent.core.in_flight import InFlight
from scaler_worker.agent.core.records import GROUP, RUN, SEPARATE_MICROSECONDS, TASK, WorkerRecord
from scaler_worker.agent.core.workers import Workers
from scaler_worker.ipc import frames

BATCH_MICROSECONDS: Final = 8_000.0
"""Work per datagram: each result that is read separately costs the host most of a millisecond."""


class Assigning:
    """Gives the waiting runs of one agent to its workers."""

    def __init__(self, workers: Workers, in_flight: InFlight) -> None:
        self._workers, self._in_flight = workers, in_flight
        self._waiting, self._pinned, self._limited = in_flight.waiting, in_flight.pinned, in_flight.limited
        self._kept_free: set[int] = set()
        """Workers that are sent nothing ahead, since limited runs wait for one."""

    def send_waiting(self, now: float) -> None:
        """Send waiting runs to workers, or let idle workers have what was sent to others."""
        if self._pinned.runs:
            self._send_pinned(now)
        self._workers.missing_gpus = self._send_limited(now) if self._limited.runs else 0
        if self._waiting.count:
            self._assign(now)
        elif self._workers.idle and self._workers.running:
            self._steal(now)

    def _assign(self, now: float) -> None:
        """Send waiting runs to workers that are idle or nearly idle."""
        waiting, workers = self._waiting, self._workers
        while workers.idle and (free := workers.slots - len(workers.running)) > 0:
            worker = workers.idle_worker()
            assert worker is not None
            self._send_batch(worker, self._share(min(free, len(workers.idle))), now)
            if not waiting.count:
                return
        refillable = sorted(workers.refillable.values(), key=_expected_end)
        if self._overtake(_expected_end(refillable[0]) if refillable else math.inf, now):
            return
        for worker in refillable:
            if not waiting.count:
                return
            head = worker.datagrams[0]
            if worker.pid in self._pinned or (self._limited.runs and worker.number in self._kept_free):
                continue
            if now < head.since + head.patience:  # otherwise its run may take long
                self._send_batch(worker, self._share(1), now)

    def _share(self, takers: int) -> int:
        """How many runs a worker is sent, one of several that can take some now.

        As many as are left for each worker: others end soon. But if that is not worth a datagram, it is up to as many
        as are left for each of those that can take some.
        """
        waiting, workers = self._waiting.count, self._workers
        if waiting <= takers:
            return 1
        share = -(-waiting // max(1, min(workers.slots, len(workers.idle) + len(workers.running))))
        worth = int(SEPARATE_MICROSECONDS / max(1.0, self._waiting.next_entry()[GROUP].kind.estimate))
        return min(max(share, min(-(-waiting // takers), worth)), frames.COUNT_LIMIT)

    def _overtake(self, before: float, now: float) -> bool:
        """Recall what was sent ahead to a worker that ends its run before that time, for a waiting run that goes first.

        A run goes first if its priority is higher, or if none of its client is at a worker of this agent and several of
        the other client are. So a single call waits for the first run that ends, and for no other one, whatever was
        prefetched.
        """
        entry = self._waiting.next_entry()
        client, group = entry[TASK] >> SESSION_BITS, entry[GROUP]
        if self._in_flight.last_sent == (client, group.level):
            return False
        running = [self._workers.by_number[number] for number in self._workers.running]
        sent = Counter(each.entries[-1][TASK] >> SESSION_BITS for worker in running for each in worker.datagrams)
        is_absent = not group.depth and not sent[client]

        def goes_later(worker: WorkerRecord) -> bool:
            tail, other = worker.datagrams[-1], worker.datagrams[-1].entries[-1]
            if len(worker.datagrams) < 2 or tail.checked:
                return False
            if other[GROUP].level == group.level:  # otherwise the recalled run might be the next one again
                return is_absent and sent[other[TASK] >> SESSION_BITS] > 1
            return other[GROUP].priority < group.priority

        worker = min(filter(goes_later, running), key=_expected_end, default=None)
        if worker is None or _expected_end(worker) > before:
            return False
        worker.datagrams[-1].checked = now
        self._in_flight.effects.append(events.RecallTail(worker.number))
        return True

    def _send_limited(self, now: float) -> int:
        """Start the limited runs that may start, on idle workers; where none is idle, keep the next ones free for them.

        Such a run is alone in its datagram, so that it begins at once. Returns how many need a worker that sees a GPU.
        """
        workers, missing_gpus = self._workers, 0
        self._kept_free.clear()
        nearly_idle = sorted(workers.refillable.values(), key=_expected_end)
        current = [entry for worker in workers if (entry := worker.next_entry()) is not None]
        for entry in self._limited.startable(current):
            needs_gpu, has_slot = workers.gpus.is_needed(entry), len(workers.running) < workers.slots
            if has_slot and (idle := workers.idle_worker(sees_gpu=needs_gpu)) is not None:
                self._limited.remove((entry[RUN],))
                self._in_flight.send_runs(idle, [entry], now)
                continue
            missing_gpus += needs_gpu and has_slot
            next_one = next((worker for worker in nearly_idle if worker.gpu or not needs_gpu), None)
            if next_one is not None:
                nearly_idle.remove(next_one)
                self._kept_free.add(next_one.number)
        return missing_gpus

    def _send_pinned(self, now: float) -> None:
        """Send pinned runs to their workers where these are idle; fail those whose worker ends or is gone."""
        for pid in self._pinned.pids:
            worker = self._workers.find(pid)
            if worker is None or worker.state in (WorkerState.STOPPING, WorkerState.DRAINING):
                error = WorkerDiedError(f"process {pid}, the only worker that may run the task, has ended", pid=pid)
                while pid in self._pinned:
                    run, task, *_ = self._pinned.take(pid)
                    self._in_flight.fail(run, task, Status.FAILED, describe(error))
            elif not worker.datagrams:
                if (run := self._pinned.next_run(pid)) in self._pinned.told_blocked:
                    self._in_flight.send(Blocked((run,), (False,)))
                self._in_flight.send_runs(worker, [self._pinned.take(pid)], now)
            elif worker.blocked and (runs := self._pinned.newly_blocked(pid)):
                self._in_flight.send(Blocked(runs, [True] * len(runs)))

    def _steal(self, now: float) -> None:
        """Work stealing: nothing waits and a worker is idle, so recall datagrams that other workers have not read."""
        wanted = min(len(self._workers.idle), self._workers.slots - len(self._workers.running))
        for number in self._workers.running:
            flight = self._workers.by_number[number].datagrams
            if wanted > 0 and len(flight) > 1 and not flight[1].checked:
                flight[1].checked = now
                self._in_flight.effects.append(events.RecallTail(number))
                wanted -= 1

    def _send_batch(self, worker: WorkerRecord, count: int, now: float) -> None:
        self._in_flight.send_runs(worker, self._waiting.take(count, BATCH_MICROSECONDS, frames.DATAGRAM_LIMIT), now)


def _expected_end(worker: WorkerRecord) -> float:
    """When the first datagram of a worker, which has one, will have ended."""
    head = worker.datagrams[0]
    return head.since + head.estimate / 1e6 * (1 - head.at / len(head.entries))
