"""Tasks that submit tasks: relays messages of their clients and tracks blocked parents. A part of AgentCore.

A parent that waits for its children occupies no slot, so that other tasks, such as its children, can run. Most parents
report that they wait. Others are detected by their CPU time, which does not grow.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Final

from scaler_protocol.errors import NestingLimitError
from scaler_protocol.ids import session_of
from scaler_protocol.messages import (
    Blocked,
    Cancel,
    Done,
    NeedFunctions,
    NeedTasks,
    Release,
    Shutdown,
    ShutdownAnswer,
    Submit,
    WorkerState,
)
from scaler_protocol.plurals import counted
from scaler_protocol.storage import DeleteObjects
from scaler_worker.agent.core import events
from scaler_worker.agent.core.in_flight import InFlight
from scaler_worker.agent.core.records import RUN, WorkerRecord, run_ids
from scaler_worker.agent.core.split_by_session import ByTask, by_session
from scaler_worker.agent.core.workers import Workers
from scaler_worker.ipc import frames

PROBE_SECONDS: Final = 0.05
WAITING_NANOSECONDS: Final = 1_000_000
"""A parent that uses less CPU time than this in PROBE_SECONDS counts as waiting for its children."""
BLOCKED_LIMIT: Final = 512
SESSIONS_LIMIT: Final = 64
"""Sessions per worker, one for each client that its tasks have created; the oldest are forgotten."""


class Nesting:
    """Parent tasks, their children, and the clients through which they submit."""

    def __init__(self, workers: Workers, in_flight: InFlight) -> None:
        self.probe_at = math.inf
        """When the CPU time of parents is read next."""
        self._workers, self._in_flight = workers, in_flight
        self._sessions: dict[int, int] = {}
        self._memory_nearly_gone = False

    def memory_read(self, event: events.MemoryRead, now: float) -> None:
        """Record the memory state of the host."""
        self._memory_nearly_gone = event.nearly_gone

    def forget(self, worker: WorkerRecord) -> None:
        """Forget the clients of the tasks of a worker that has ended."""
        for session in worker.sessions:
            self._sessions.pop(session, None)

    def pass_on(self, worker: WorkerRecord, message: Any, now: float) -> None:
        """Forward a message of a client inside a task to the scheduler."""
        self._in_flight.effects.append(events.SendToScheduler(message, worker.number))

    def refuse_shutdown(self, worker: WorkerRecord, message: Shutdown, now: float) -> None:
        """Refuse a task that asks to shut the scheduler down."""
        answer = ShutdownAnswer(False, "a task cannot shut down the scheduler that runs it")
        self._in_flight.effects.append(events.Relay(worker.number, answer))

    def submitted(self, worker: WorkerRecord, message: Submit, now: float) -> None:
        """Forward a Submit and record the children of its run."""
        session = session_of(message.tasks[0]) if message.tasks else 0
        if session not in worker.sessions:
            worker.sessions[session] = None
            self._sessions[session] = worker.number
            if len(worker.sessions) > SESSIONS_LIMIT:
                oldest = next(iter(worker.sessions))
                del worker.sessions[oldest]
                self._sessions.pop(oldest, None)
        entry = worker.next_entry()
        if entry is not None and entry[RUN] == message.parent:
            self._add_children(worker, message.tasks, now)
        elif early := worker.early_reports(message.parent):
            early.children.update(message.tasks)
        self.pass_on(worker, message, now)

    def _add_children(self, worker: WorkerRecord, tasks: Collection[int], now: float) -> None:
        if not worker.children:
            worker.cpu = -1
        worker.children.update(tasks)
        self.probe_at = min(self.probe_at, now + PROBE_SECONDS)

    def ended(self, worker: WorkerRecord, event: frames.RunsEnded, now: float) -> None:
        """Runs of a worker have ended. The next one may have submitted tasks, and wait for them, already."""
        self._in_flight.ended(worker, event, now)
        if not worker.early:
            return
        left = run_ids(worker.entries())
        worker.early = {run: early for run, early in worker.early.items() if run in left}
        early = worker.early.pop(left[0], None) if left else None
        if early is None:
            return
        if early.children:
            self._add_children(worker, early.children, now)
        if early.blocked:
            self._set_blocked(worker, left[0], True, now)

    def _relay(self, session: int, message: Any) -> WorkerRecord | None:
        number = self._sessions.get(session)
        if number is None:
            return None
        self._in_flight.effects.append(events.Relay(number, message))
        return self._workers.by_number[number]

    def relay_by_task(self, message: ByTask, now: float) -> None:
        """Relay a message about tasks that tasks on this host have submitted."""
        for session, part in by_session(message):
            worker = self._relay(session, part)
            if worker is None and isinstance(part, Done | NeedTasks):
                # The process that submitted them has ended: after a scheduler restart only we report orphans.
                self._in_flight.send(Release(part.tasks) if isinstance(part, Done) else Cancel(part.tasks))
            elif worker is not None and isinstance(part, Done):
                worker.children.difference_update(part.tasks)
                for early in worker.early.values():
                    early.children.difference_update(part.tasks)

    def relay_to_session(self, message: NeedFunctions | DeleteObjects, now: float) -> None:
        """Relay a message for one client inside a task."""
        self._relay(message.session, message)

    def blocked_reported(self, worker: WorkerRecord, message: Blocked, now: float) -> None:
        """A task reports that it waits for other tasks, or resumes."""
        for run, blocked in zip(message.runs, message.blocked, strict=True):
            entry = worker.next_entry()
            if entry is not None and entry[RUN] == run:
                worker.inferred_blocked = False
                self._set_blocked(worker, run, blocked, now)
            elif early := worker.early_reports(run):
                early.blocked = blocked

    def _set_blocked(self, worker: WorkerRecord, run: int, blocked: bool, now: float) -> None:
        """Mark a run as blocked, which frees its slot, or as resumed."""
        if blocked == worker.blocked or worker.state == WorkerState.STOPPING:
            return
        if blocked and (self._memory_nearly_gone or len(self._workers.blocked) >= BLOCKED_LIMIT):
            what = "the host is nearly out of memory" if self._memory_nearly_gone else f"the limit is {BLOCKED_LIMIT}"
            self._refuse_blocking(worker, run, f"one more would be too many: {what}")
            return
        worker.blocked = blocked
        if blocked:
            self._in_flight.reclaim(worker)
        self._workers.reindex(worker, now)
        self._in_flight.send(Blocked((run,), (blocked,)))

    def _refuse_blocking(self, worker: WorkerRecord, run: int, why: str) -> None:
        count = len(self._workers.blocked)
        message = f"this host has {counted(count, 'task')} blocked by nested tasks, and {why}"
        self._in_flight.stop_run(worker, run, NestingLimitError(message, blocked=count))

    def resolve_deadlock(self, why: str, now: float) -> None:
        """Resolve a deadlock: if all workers are blocked and none can be started, stop the deepest blocked task."""
        if not (self._in_flight.waiting_count and self._workers.is_stuck(now)):
            return
        waiting = [(entry, worker) for worker in self._workers if worker.blocked and (entry := worker.next_entry())]
        if waiting:
            entry, deepest = min(waiting, key=lambda found: found[0][2].level[1])
            self._refuse_blocking(deepest, entry[RUN], f"no worker can be started to run these: {why}")

    def probe_parents(self, now: float) -> None:
        """Read the CPU time of parents that have unfinished children and occupy a slot."""
        parents = [
            worker.number
            for worker in self._workers
            if worker.children and worker.datagrams and (worker.inferred_blocked or not worker.blocked)
        ]
        self._in_flight.effects += map(events.ReadCpu, parents)
        self.probe_at = now + PROBE_SECONDS if parents else math.inf

    def cpu_read(self, worker: WorkerRecord, event: events.CpuRead, now: float) -> None:
        """Detect parents that wait without reporting it, by their CPU time."""
        entry = worker.next_entry()
        if entry is None or not worker.children:
            return
        if worker.cpu >= 0:
            rests = event.nanoseconds - worker.cpu < WAITING_NANOSECONDS
            if rests and not worker.blocked and len(self._workers.running) >= self._workers.slots:
                worker.inferred_blocked = True
                self._set_blocked(worker, entry[RUN], True, now)
            elif worker.inferred_blocked and not rests:
                worker.inferred_blocked = False
                self._set_blocked(worker, entry[RUN], False, now)
        worker.cpu = event.nanoseconds

    def check(self) -> None:
        """Assert that sessions and workers agree."""
        for worker in self._workers:
            assert all(self._sessions.get(session) in (worker.number, None) for session in worker.sessions)
        assert all(number in self._workers.by_number for number in self._sessions.values())
