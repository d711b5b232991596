"""AgentCore: the decisions of one host's agent. Pure: no clock, no socket, no process.

Theory. A *run* (one dispatch of a task) is in exactly one state: waiting, parked until the bytes of its function
arrive, or in flight at one worker.

    Run --> waiting | parked --SendTasks--> in flight --RunsEnded--> Done, and kept until Release or another Run of it
    in flight --recalled, revoked, or its worker died before it began--> waiting, at the front
    in flight --its worker died in it or after it--> Done LOST; stopped for its timeout --> Done FAILED
    any state --Withdraw--> Done CANCELLED at once; a worker that executes it is killed, and only then it is reported if
    it takes consumables
    waiting --Recall--> Returned; in flight --InputMissing--> Returned

A worker has at most two datagrams in flight, each with one task, or with short ones that take a few milliseconds
together. No second datagram is sent after a task that is long or of unknown duration, and unread datagrams are
reclaimed for an idle worker (work stealing). If a task turns out to be long, the runs behind it are reclaimed, too:
unread datagrams are read back from the socket, and the datagram that the worker has read is *revoked*. Agent and worker
read the same socket, so the worker may read a later datagram while the agent takes an earlier one back: the answer
names the datagrams. The worker reads the revoked sequence before each run, and the agent reads the worker's current run
well after writing that sequence, so one of them sees the other.

    worker: STARTING --ready--> IDLE <--> RUNNING <--Blocked--> BLOCKED; any of these --Drain--> DRAINING
            any of these --killed or told to exit--> STOPPING --died--> gone

A worker is RUNNING while it has datagrams in flight and its task does not wait for other tasks. An idle worker gets
tasks only while fewer than `slots` workers are RUNNING. A blocked worker resumes without permission, so more may run
for a while.

Invariants, asserted by `check`: every run is in one state; a worker has at most two datagrams, ordered by sequence; a
blocked or stopping worker gets no tasks; the indexes (idle, refillable, running) agree with the workers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from scaler_io.links.events import LinkLost, LinkRefused, LinkUp
from scaler_protocol.capacity import ListProcesses, ProcessList
from scaler_protocol.errors import ProtocolError, ScalerError, describe
from scaler_protocol.handshake import Welcome
from scaler_protocol.ids import pid_of
from scaler_protocol.limits import DEFINED
from scaler_protocol.messages import (
    AgentStatus,
    Blocked,
    Cancel,
    Done,
    Ended,
    Functions,
    Inputs,
    NeedFunctions,
    NeedInputs,
    NeedTasks,
    Output,
    Recall,
    Reconcile,
    Release,
    Resend,
    Run,
    Shutdown,
    Status,
    Submit,
    Withdraw,
    WorkerState,
    pieces_of,
)
from scaler_protocol.operations import Drain, TakeProfile
from scaler_protocol.outputs import TRACEBACK
from scaler_protocol.storage import DeleteObjects
from scaler_worker.agent.core import events
from scaler_worker.agent.core.assigning import Assigning
from scaler_worker.agent.core.deaths import Deaths
from scaler_worker.agent.core.draining import Draining
from scaler_worker.agent.core.events import AgentEffect
from scaler_worker.agent.core.failed_effects import FailedEffects
from scaler_worker.agent.core.functions import FunctionTable
from scaler_worker.agent.core.in_flight import InFlight
from scaler_worker.agent.core.memory_limit import MemoryLimit
from scaler_worker.agent.core.nesting import Nesting
from scaler_worker.agent.core.profiling import HostProfile
from scaler_worker.agent.core.records import RUN, TASK, AgentConfig, Entry, WorkerRecord, reconciles, run_ids
from scaler_worker.agent.core.result_buffer import ResultBuffer
from scaler_worker.agent.core.snapshot import HostStats, agent_status
from scaler_worker.agent.core.workers import Workers
from scaler_worker.ipc import frames

LISTED_TOGETHER: Final = 1024
"""Requests for the processes that may wait."""


class AgentCore:
    """Assigns runs to workers and reports their results. Events come in through `handle`; `settle` returns effects."""

    def __init__(self, config: AgentConfig) -> None:
        self.workers = Workers(config.workers, config.names, config.preload, config.gpus, config.name)
        self.functions = FunctionTable(config.task_timeout_seconds)
        self._results = ResultBuffer(config.name)
        self.in_flight = InFlight(self.workers, self.functions, self._results, dict(config.consumables))
        self._assigning = Assigning(self.workers, self.in_flight)
        self._deaths = Deaths(self.workers, self.in_flight, config.host, config.secret)
        self._nesting = Nesting(self.workers, self.in_flight)
        self._memory = MemoryLimit(self.workers, self.in_flight, config.memory_limit_per_worker, config.host)
        self._failed = FailedEffects(self.workers, self.in_flight)
        self._draining = Draining(self.workers, self.in_flight, self.functions, config.drain_timeout_seconds)
        self._profiling = HostProfile(self.workers)
        self._retention = config.object_retention_seconds
        self._scheduler = config.scheduler
        self._effects = self.in_flight.effects
        self._rotate_at, self._results_at = 0.0, math.inf
        self._listing: deque[tuple[int, list[WorkerRecord]]] = deque(maxlen=LISTED_TOGETHER)
        """Requests for the processes, which are answered when each slot has one and those that are to end have ended.

        Nobody may wait for the oldest ones any more."""
        self._welcome: Welcome | None = None
        self._newest_run = 0
        """The newest run that it has received."""
        self._from_scheduler = self._scheduler_handlers()
        self._from_worker = self._worker_handlers()

    def _scheduler_handlers(self) -> dict[type, Callable[[Any, float], None]]:
        nesting = self._nesting
        return {
            Run: self._run,
            Withdraw: self.in_flight.withdraw,
            Recall: self._recall,
            Release: self._release,
            Resend: self._resend,
            Drain: self._draining.drain,
            ListProcesses: self._processes_asked,
            TakeProfile: self._profile_asked,
            events.DrainRequested: self._draining.drain_all,
            events.ResizeRequested: self._draining.resize,
            events.SchedulerBusy: lambda event, now: self._results.wait(event.share),
            Functions: self._functions_came,
            Done: nesting.relay_by_task,
            Ended: nesting.relay_by_task,
            Output: nesting.relay_by_task,
            NeedInputs: nesting.relay_by_task,
            NeedTasks: nesting.relay_by_task,
            NeedFunctions: nesting.relay_to_session,
            DeleteObjects: nesting.relay_to_session,
            LinkUp: self._link_up,
            LinkLost: self._link_lost,
            LinkRefused: self._link_refused,
            Shutdown: self._shut_down,
            events.MemoryRead: nesting.memory_read,
            events.EffectFailed: self._effect_failed,
        }

    def _worker_handlers(self) -> dict[type, Callable[[WorkerRecord, Any, float], None]]:
        in_flight, nesting = self.in_flight, self._nesting
        return {
            frames.RunsEnded: nesting.ended,
            frames.OutputWritten: self._written,
            frames.InputMissing: in_flight.input_missing,
            frames.FunctionMissing: in_flight.function_missing,
            frames.DatagramReturned: in_flight.returned,
            frames.WorkerReady: self._ready,
            frames.WorkerRetired: self._retired,
            frames.PreloadFailed: self._preload_failed,
            events.WorkerDied: self._died,
            events.WorkerNotStarted: self._not_started,
            events.TailRecalled: in_flight.tail_recalled,
            events.RunSeen: in_flight.run_seen,
            events.RunRead: in_flight.run_read,
            events.CpuRead: nesting.cpu_read,
            events.MemoryUsed: self._memory.measured,
            frames.SamplesTaken: self._profiling.sampled,
            Submit: nesting.submitted,
            Blocked: nesting.blocked_reported,
            Release: nesting.pass_on,
            Cancel: nesting.pass_on,
            Reconcile: nesting.pass_on,
            Inputs: nesting.pass_on,
            Functions: nesting.pass_on,
            Shutdown: nesting.refuse_shutdown,
        }

    def handle(self, peer: int, event: Any, now: float) -> None:
        """Handle one event of the scheduler (SCHEDULER) or of a worker; an unknown or late event changes nothing."""
        if peer >= 0:
            worker = self.workers.by_number.get(peer)
            from_worker = self._from_worker.get(type(event))
            if worker is not None and from_worker is not None:
                from_worker(worker, event, now)
        elif handler := self._from_scheduler.get(type(event)):
            handler(event, now)

    def settle(self, now: float) -> list[AgentEffect]:
        """Make every pending decision once; returns the effects in order."""
        in_flight = self.in_flight
        self._do_what_is_due(now)
        self._assigning.send_waiting(now)
        waiting = in_flight.waiting_count
        self._effects += self.workers.balance(waiting, now)
        if self._listing and self.workers.is_complete:
            self._list_processes()
        if self._profiling.due < math.inf:
            self._effects += self._profiling.settle(now)
        self._effects += self._failed.settle(now)
        if in_flight.input_missing_runs:
            in_flight.give_back(in_flight.input_missing_runs)
            in_flight.input_missing_runs = []
        if self.workers.draining or not self.workers.slots or (self._draining.is_resizing and self._welcome):
            self._draining.settle(now)
        if in_flight.needed:
            for functions in pieces_of(tuple(in_flight.needed), DEFINED):
                in_flight.send(NeedFunctions(functions))
            in_flight.needed.clear()
        self._results_at = math.inf
        if self._results:
            due = self._results.due(now, in_flight.will_join)
            if now >= due or any(isinstance(effect, events.EndAgent) for effect in self._effects):
                self._effects += map(events.SendToScheduler, self._results.take())
            else:
                self._results_at = due
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def _do_what_is_due(self, now: float) -> None:
        if now >= self.in_flight.check_at:
            self.in_flight.check_times(now)
        if now >= self._nesting.probe_at:
            self._nesting.probe_parents(now)
        if now >= self._memory.due():
            self._memory.settle(now)
        if now >= self._rotate_at:
            self._rotate_at = now + self._retention
            self.in_flight.kept.rotate()

    def due(self) -> float:
        """The time of the next `settle` if no event arrives before."""
        return min(
            self._results_at,
            self.in_flight.check_at,
            self._nesting.probe_at,
            self._memory.due(),
            self._rotate_at,
            self.workers.balance_at,
            self._profiling.due,
            self._failed.due,
            math.inf if self.workers.slots else self._draining.due,
        )

    # --- queries of the shell ---------------------------------------------------------------------------------------

    @property
    def is_draining(self) -> bool:
        """Whether the agent drains, or has drained, all of its workers to leave."""
        return self._draining.is_leaving

    @property
    def drain_deadline(self) -> float:
        """When draining ends although runs have not ended; infinity unless the agent drains as a whole."""
        return self._draining.deadline

    @property
    def has_running(self) -> bool:
        """Whether a worker executes tasks and does not wait for other tasks."""
        return bool(self.workers.running)

    def is_swept(self, number: int) -> bool:
        """Whether the results of this worker are read at intervals, many per wake-up, instead of each at once."""
        if worker := self.workers.by_number.get(number):
            for datagram in worker.datagrams:
                if datagram.is_swept:
                    return True
        return False

    def sweep_seconds(self, numbers: Iterable[int]) -> float:
        """How long the results of these workers may stay unread before one of them could run out of work."""
        return self.in_flight.sweep_seconds(numbers)

    def take_status(self, stats: HostStats) -> AgentStatus:
        """The status to report to the scheduler; its deaths are those since the last call."""
        queued, lone_task_bytes = self.in_flight.waiting_count, self._memory.lone_task_bytes
        status = agent_status(self.workers, queued, stats, lone_task_bytes, self._newest_run)
        self.workers.deaths.clear()
        return status

    # --- messages of the scheduler ----------------------------------------------------------------------------------

    def _run(self, message: Run, now: float) -> None:
        self._newest_run = message.first_run + len(message.tasks) - 1
        try:
            # The scheduler does not want the outcome of an earlier run; a stored one may be deleted already.
            self.in_flight.kept.release(message.tasks)
            self._learn(message, now)
            entries = self.functions.entries(message)
            if any(group.worker or group.capability_names for group in message.groups):
                self.in_flight.queue(entries, now)
            else:
                self.in_flight.waiting.extend(entries)
        except Exception as error:  # a fault in these tasks must not affect others
            payload = describe(ScalerError(f"the agent could not queue the task: {type(error).__name__}: {error}"))
            for run, task in enumerate(message.tasks, message.first_run):
                self.in_flight.fail(run, task, Status.FAILED, payload)

    def _recall(self, message: Recall, now: float) -> None:
        limited = self.in_flight.limited.take_newest(message.count)
        entries = self.in_flight.waiting.take_newest(message.count - len(limited))
        self.in_flight.give_back(run_ids((*limited, *entries)))

    def _resend(self, message: Resend, now: float) -> None:
        unsent = self._results.unsent_runs()
        for task in message.tasks:
            if (row := self.in_flight.kept.get(task)) and row[0] not in unsent:
                self._results.append(task, row)

    def _release(self, message: Release, now: float) -> None:
        self.in_flight.kept.release(message.tasks)

    def _learn(self, message: Run | Functions, now: float) -> None:
        if message.functions:
            self.functions.learn(message)
            self.in_flight.requeue(self.functions.unpark(message.functions))

    def _functions_came(self, message: Functions, now: float) -> None:
        try:
            self._learn(message, now)
        except ProtocolError as error:  # runs that wait for a function that is not the one they name
            for entry in self.functions.give_up(message.functions):
                self.in_flight.fail(entry[RUN], entry[TASK], Status.FAILED, describe(error))

    def _link_up(self, event: LinkUp, now: float) -> None:
        first, self._welcome = self._welcome is None, event.welcome
        if event.resumed:
            return
        self._effects += (events.Relay(worker.number, event.welcome) for worker in self.workers if worker.pid)
        if not first:
            self._profiling.drop()
            self._resume()
            self._draining.resume()

    def _resume(self) -> None:
        """Report runs and kept results to a new scheduler, and repeat the requests to the previous one."""
        unfinished, kept = self._unfinished(), tuple(self.in_flight.kept)
        withdrawn = [e for worker in self.workers for e in worker.entries() if e[RUN] in worker.withdrawn]
        for message in reconciles(unfinished, kept, withdrawn):
            self.in_flight.send(message)
        blocked = [entry[RUN] for worker in self.workers if worker.blocked and (entry := worker.next_entry())]
        if blocked:
            self.in_flight.send(Blocked(blocked, [True] * len(blocked)))
        self.in_flight.pinned.told_blocked.clear()
        self.in_flight.needed.update(dict.fromkeys(self.functions.missing_functions()))

    def _unfinished(self) -> list[Entry]:
        """Every run that has not ended and is not withdrawn."""
        in_flight = (e for worker in self.workers for e in worker.entries() if e[0] not in worker.withdrawn)
        return [*in_flight, *self._queued()]

    def _queued(self) -> list[Entry]:
        """Every run that is at no worker."""
        in_flight = self.in_flight
        return [*in_flight.waiting, *in_flight.limited, *in_flight.pinned, *self.functions.parked_entries()]

    def _link_lost(self, event: LinkLost, now: float) -> None:
        self._stop(1, f"the scheduler at {self._scheduler} is lost: {event.reason}")

    def _link_refused(self, event: LinkRefused, now: float) -> None:
        self._stop(1, f"the scheduler at {self._scheduler} refuses this agent: {event.reason(self._scheduler)}")

    def _shut_down(self, message: Shutdown, now: float) -> None:
        self._stop(0, "the scheduler shuts the cluster down")

    def _stop(self, code: int, *reasons: str) -> None:
        self._effects.append(events.EndAgent(code, reasons))

    def _effect_failed(self, event: events.EffectFailed, now: float) -> None:
        if not isinstance(event.effect, events.StartWorker):
            self._failed.take(event, now)
        elif worker := self.workers.by_number.get(event.effect.worker):
            self._not_started(worker, events.WorkerNotStarted(event.reason), now)

    def _processes_asked(self, message: ListProcesses, now: float) -> None:
        ending = [self.workers.find(pid_of(worker)) for worker in message.gone]
        self._listing.append((message.request, [worker for worker in ending if worker is not None]))

    def _profile_asked(self, message: TakeProfile, now: float) -> None:
        self._effects += self._profiling.take(message, now)

    def _list_processes(self) -> None:
        ready = self.workers.ready_workers
        pids, names = [worker.pid for worker in ready], [worker.name for worker in ready]
        for listing in list(self._listing):
            request, ending = listing
            if all(self.workers.by_number.get(worker.number) is not worker for worker in ending):
                self._listing.remove(listing)
                self.in_flight.send(ProcessList(request, pids, names))

    # --- workers ----------------------------------------------------------------------------------------------------

    def _ready(self, worker: WorkerRecord, event: frames.WorkerReady, now: float) -> None:
        if line := self.workers.ready(worker, event.pid, now):
            self._effects.append(line)
        if self._welcome is not None:
            self._effects.append(events.Relay(worker.number, self._welcome))

    def _preload_failed(self, worker: WorkerRecord, event: frames.PreloadFailed, now: float) -> None:
        if worker.state == WorkerState.STARTING:  # a later one was written by a task
            self._stop(1, event.text)

    def _forget(self, worker: WorkerRecord) -> None:
        # Effects for this worker cannot be performed any more, and its number will be reused.
        self._effects[:] = [effect for effect in self._effects if getattr(effect, "worker", None) != worker.number]
        self._nesting.forget(worker)
        self._profiling.forget(worker)

    def _died(self, worker: WorkerRecord, event: events.WorkerDied, now: float) -> None:
        self._forget(worker)
        if worker.retire_reason:
            event = replace(event, reason=f"ended itself ({worker.retire_reason})")
        self._deaths.died(worker, event, now)
        if effect := self.workers.gone(worker, event.reason, now):
            self._effects.append(effect)

    def _not_started(self, worker: WorkerRecord, event: events.WorkerNotStarted, now: float) -> None:
        self._forget(worker)
        if line := self.workers.not_started(worker, event.reason, now):
            self._effects.append(line)
        self._nesting.resolve_deadlock(event.reason, now)

    def _retired(self, worker: WorkerRecord, event: frames.WorkerRetired, now: float) -> None:
        worker.retire_reason, worker.was_asked_to_end = event.text, event.was_asked

    def _written(self, worker: WorkerRecord, event: frames.OutputWritten, now: float) -> None:
        entry = worker.next_entry()
        if not 1 <= event.stream <= TRACEBACK:
            self.in_flight.corrupted(worker, event.run, now)
        elif entry is not None and entry[RUN] == event.run and event.run not in worker.withdrawn:
            self._results.write(entry[TASK], event.stream, event.text)

    # --- invariants -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert the invariants of the module's docstring."""
        self.workers.check()
        self.in_flight.kept.check()
        in_flight = [(worker, worker.entries()) for worker in self.workers]
        queued = self._queued()
        runs = run_ids([*(entry for _, entries in in_flight for entry in entries), *queued])
        assert len(runs) == len(set(runs)), "a run is in two states"
        kept = self.in_flight.kept
        assert all(kept.get(entry[TASK]) is None for entry in queued), "kept, and waits"
        for worker, entries in in_flight:
            unfinished = (entry[TASK] for entry in entries if entry[RUN] not in worker.withdrawn)
            assert all(kept.get(task) is None for task in unfinished), "kept, and runs"
            assert worker.withdrawn <= set(run_ids(entries))
            assert not (worker.blocked and worker.state == WorkerState.RUNNING)
        self.in_flight.check()
        assert self.in_flight.waiting.count == sum(1 for _ in self.in_flight.waiting)
        self._nesting.check()
