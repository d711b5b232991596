"""ProxyCore: the decisions of the proxy agent. Pure: no clock, no socket, no thread.

Theory. A run is in exactly one state: waiting, parked until the bytes of its function arrive, or running, which means
that its call is being decoded, is a task of Symphony, or its result is being stored.

    Run --> waiting | parked --StartRun--> running --CallEnded--> Done, and kept until Release
    running --TaskFailed, session lost--> Done LOST: the scheduler repeats it; timeout --> Done FAILED
    any state --Withdraw--> Done CANCELLED at once; a running one is stopped
    waiting --Recall, drain, no session--> Returned

Base concurrency. A waiting run starts while fewer than `base_concurrency` runs are running. One that is nested more
deeply than all running ones starts nevertheless: a running task may wait for it. So there are never more running tasks
than the base concurrency plus the deepest nesting level, and the deepest ones can always go on.

Session. Without a session there are no workers: the scheduler is told so, and waiting runs are returned. A lost session
is opened again with back-off; if the first one cannot be opened, the agent ends. Within a session Symphony repeats a
task as its application profile says; a task that it has given up is LOST here.

Invariants, asserted by `check`: a run is in one state; slots of running runs are distinct.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from scaler_io.links.effects import Log
from scaler_io.links.events import LinkLost, LinkRefused, LinkUp
from scaler_protocol.capacity import ListProcesses, ProcessList
from scaler_protocol.errors import ProtocolError, ScalerError, TaskTimeoutError, WorkerDiedError, describe
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import DEFINED, last_deaths
from scaler_protocol.messages import (
    AgentStatus,
    Functions,
    Message,
    NeedFunctions,
    Recall,
    Release,
    Resend,
    Returned,
    Run,
    Shutdown,
    Status,
    Withdraw,
    WorkerState,
    pieces_of,
)
from scaler_protocol.operations import Drain, ProfilePart, Resized, TakeProfile
from scaler_protocol.profiles import NO_PROFILE
from scaler_worker.agent.core.draining import RELEASE_SECONDS
from scaler_worker.agent.core.events import DrainRequested, EndAgent, SendToScheduler
from scaler_worker.agent.core.functions import FunctionTable
from scaler_worker.agent.core.kept_outcomes import KeptOutcomes
from scaler_worker.agent.core.records import FLAGS, GROUP, RUN, TASK, Entry, reconciles, run_ids
from scaler_worker.agent.core.result_buffer import ResultBuffer
from scaler_worker.agent.core.snapshot import HostStats
from scaler_worker.ipc.frames import FOLLOWS
from scaler_worker.symphony.events import (
    CallEnded,
    OpenSession,
    ProxyEffect,
    SessionLost,
    SessionOpened,
    StartRun,
    StopRun,
    TaskFailed,
)
from scaler_worker.symphony.run_queue import RunQueue, depth_of

FIRST_RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 30.0
"""The pause before a session is opened again doubles between these."""
_NOT_SAMPLED: Final = "tasks of Symphony are not sampled"


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """The settings of ProxyCore."""

    base_concurrency: int
    name: str
    host: str
    pid: int
    task_timeout_seconds: float = 0.0
    object_retention_seconds: float = 3600.0
    drain_timeout_seconds: float = 25.0
    scheduler: str = ""
    """The address of the scheduler, for error messages."""


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A run that has begun; `slot` numbers it among the running ones."""

    entry: Entry
    slot: int
    deadline: float


class ProxyCore:
    """Starts runs as tasks of Symphony, and reports outcomes. `handle` is the only way in, `settle` the way out."""

    def __init__(self, config: ProxyConfig) -> None:
        self._config = config
        self.waiting = RunQueue()
        self.running: dict[int, RunningCall] = {}
        self.functions = FunctionTable(config.task_timeout_seconds)
        self.kept = KeptOutcomes()
        self._results = ResultBuffer(config.name)
        self._effects: list[ProxyEffect] = []
        self._needed: dict[bytes, None] = {}
        self._deaths: list[str] = []
        self._session = _SessionState()
        self._drain_by = self._leave_at = math.inf
        """When the agent exits although runs have not ended, and although outcomes have not been released."""
        self._announced = config.base_concurrency
        self._is_joined = self._is_over = False
        self._newest_run = 0
        """The newest run that it has received."""
        self._rotate_at = 0.0
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            Run: self._run,
            Withdraw: self._withdraw,
            Recall: self._recall,
            Release: lambda message, now: self.kept.release(message.tasks),
            Resend: self._resend,
            Functions: self._functions_came,
            ListProcesses: lambda message, now: self._send(ProcessList(message.request)),
            TakeProfile: lambda message, now: self._send(ProfilePart(message.request, problem=_NOT_SAMPLED)),
            Drain: lambda message, now: self._drain("the scheduler asks for it", now),
            DrainRequested: lambda event, now: self._drain(event.reason, now),
            LinkUp: self._link_up,
            LinkLost: self._link_lost,
            LinkRefused: self._refused,
            Shutdown: lambda message, now: self._end(0, "the scheduler shuts the cluster down"),
            SessionOpened: self._opened,
            SessionLost: self._session_lost,
            CallEnded: self._call_ended,
            TaskFailed: self._task_failed,
        }

    def handle(self, event: Any, now: float) -> None:
        """Handle a message of the scheduler or an event; an unknown or late one changes nothing."""
        if handler := self._handlers.get(type(event)):
            handler(event, now)

    def settle(self, now: float) -> list[ProxyEffect]:
        """Make every pending decision once; returns the effects in order."""
        if self._session.take_due(now):
            self._effects.append(OpenSession())
        self._stop_overdue(now)
        if now >= self._rotate_at:
            self._rotate_at = now + self._config.object_retention_seconds
            self.kept.rotate()
        if self._workers():
            self._start(now)
        else:
            self._return_waiting()
        self._announce()
        if self._needed:
            for functions in pieces_of(tuple(self._needed), DEFINED):
                self._send(NeedFunctions(functions))
            self._needed.clear()
        self._effects += map(SendToScheduler, self._results.take())
        self._settle_drain(now)
        effects, self._effects = self._effects, []
        return effects

    def due(self) -> float:
        """The time of the next `settle` if no event arrives before."""
        deadlines = (call.deadline for call in self.running.values())
        drain = math.inf if self._is_over else min(self._drain_by, self._leave_at)
        return min(self._session.retry_at, drain, self._rotate_at, min(deadlines, default=math.inf))

    @property
    def is_ready(self) -> bool:
        """Whether a session was open, so that the agent may join the scheduler."""
        return self._session.was_open

    def slot_of(self, run: int) -> int:
        """The slot of a running run; 0 if it is none."""
        return call.slot if (call := self.running.get(run)) is not None else 0

    def take_status(self, stats: HostStats) -> AgentStatus:
        """The status to report; one row for each running call and each free place. Its failures are those since the
        last call."""
        by_slot = {call.slot: run for run, call in self.running.items()}
        slots = sorted({*by_slot, *range(self._workers())})
        deaths, self._deaths = last_deaths(self._deaths), []
        return AgentStatus(
            cpu=stats.cpu,
            rss=stats.rss,
            free=stats.free,
            queued=len(self.waiting),
            names=[f"{self._config.name}:{slot}" for slot in slots],
            pids=[self._config.pid] * len(slots),
            states=[WorkerState.RUNNING if slot in by_slot else WorkerState.IDLE for slot in slots],
            runs=[by_slot.get(slot, 0) for slot in slots],
            cpus=[0.0] * len(slots),
            rsses=[0] * len(slots),
            queues=[0] * len(slots),
            deaths=deaths,
            load=stats.load,
            disk_free=stats.disk_free,
            shared_free=stats.shared_free,
            newest_run=self._newest_run,
        )

    def check(self) -> None:
        """Assert the invariants."""
        runs = [*run_ids(self.waiting), *run_ids(self.functions.parked_entries()), *self.running]
        assert len(runs) == len(set(runs))
        slots = [call.slot for call in self.running.values()]
        assert len(slots) == len(set(slots))
        self.kept.check()

    # --- runs -------------------------------------------------------------------------------------------------------

    def _run(self, message: Run, now: float) -> None:
        self._newest_run = message.first_run + len(message.tasks) - 1
        try:
            self._learn(message, now)
            entries = self.functions.entries(message)
        except Exception as error:  # a fault in these tasks must not affect others
            payload = describe(ScalerError(f"the agent could not queue the task: {type(error).__name__}: {error}"))
            for run, task in enumerate(message.tasks, message.first_run):
                self._fail(run, task, Status.FAILED, payload)
            return
        # Each run is a task of Symphony of its own, so no result is passed on within one: see docs/protocol.md, Run.
        if following := run_ids(entry for entry in entries if entry[FLAGS] & FOLLOWS):
            self._give_back(following)
        self.waiting.extend(entry for entry in entries if not entry[FLAGS] & FOLLOWS)

    def _learn(self, message: Run | Functions, now: float) -> None:
        if message.functions:
            self.functions.learn(message)
            self.waiting.extend(self.functions.unpark(message.functions))

    def _functions_came(self, message: Functions, now: float) -> None:
        try:
            self._learn(message, now)
        except ProtocolError as error:  # runs that wait for a function that is not the one they name
            for entry in self.functions.give_up(message.functions):
                self._fail(entry[RUN], entry[TASK], Status.FAILED, describe(error))

    def _withdraw(self, message: Withdraw, now: float) -> None:
        runs = set(message.runs)
        for entry in (*self.waiting.remove(runs), *self.functions.remove(runs)):
            self._fail(entry[RUN], entry[TASK], Status.CANCELLED, b"")
        for run in runs & self.running.keys():
            self._stop(run, Status.CANCELLED, b"")

    def _recall(self, message: Recall, now: float) -> None:
        self._give_back(run_ids(self.waiting.take_newest(message.count)))

    def _resend(self, message: Resend, now: float) -> None:
        for task in message.tasks:
            if row := self.kept.get(task):
                self._results.append(task, row)

    def _start(self, now: float) -> None:
        """Start waiting runs as the base concurrency allows."""
        while entry := self.waiting.take(self._depth_in_use()):
            kind = entry[GROUP].kind
            if missing := self.functions.missing(kind):
                self._needed.update(dict.fromkeys(missing))
                self.functions.park((entry,))
                continue
            timeout = entry[GROUP].timeout
            self.running[entry[RUN]] = RunningCall(entry, self._free_slot(), now + timeout if timeout else math.inf)
            self._effects.append(StartRun(entry, self.functions.definition(kind)))

    def _depth_in_use(self) -> int:
        """The depth that a run must exceed to start now; -1 while there are fewer runs than the base concurrency."""
        if len(self.running) < self._config.base_concurrency:
            return -1
        return max(depth_of(call.entry) for call in self.running.values())

    def _free_slot(self) -> int:
        taken = {call.slot for call in self.running.values()}
        return next(slot for slot in range(len(taken) + 1) if slot not in taken)

    def _stop_overdue(self, now: float) -> None:
        for run, call in list(self.running.items()):
            if now >= call.deadline:
                timeout = call.entry[GROUP].timeout
                message = f"the task ran longer than its timeout of {timeout:g} s and was stopped"
                error = TaskTimeoutError(message, timeout_seconds=timeout)
                self._stop(run, Status.FAILED, describe(error))

    def _stop(self, run: int, status: int, payload: bytes) -> None:
        """End a running run, whose Symphony task is killed."""
        call = self.running.pop(run)
        self._effects.append(StopRun(run))
        self._fail(run, call.entry[TASK], status, payload)

    def _call_ended(self, event: CallEnded, now: float) -> None:
        run, task, *_ = event.entry
        row = (run, event.status, event.payload, event.profile, event.stored)
        if self.running.pop(run, None) is not None:
            self._results.append(task, row)
            self.kept.keep((task,), (row,), len(event.payload))
        elif event.stored:  # of a run that was stopped meanwhile: reported so that the scheduler deletes it
            self._results.append(task, row)

    def _task_failed(self, event: TaskFailed, now: float) -> None:
        if (call := self.running.pop(event.run, None)) is not None:
            self._lose(call, event.reason)

    def _lose(self, call: RunningCall, reason: str) -> None:
        run, task, _, _, attempt, _ = call.entry
        text = f"Symphony failed while it ran task {task:x}, attempt {attempt}: {reason}"
        self._deaths.append(text)
        self._effects.append(Log(logging.WARNING, text))
        config = self._config
        error = WorkerDiedError(text, host=config.host, worker=config.name, pid=0, reason=reason, attempt=attempt)
        self._fail(run, task, Status.LOST, describe(error))

    def _fail(self, run: int, task: int, status: int, payload: bytes) -> None:
        """End a run without a result of its own."""
        row = (run, status, payload, NO_PROFILE, False)
        self._results.append(task, row)
        if status == Status.FAILED:
            self.kept.keep((task,), (row,), len(payload))

    # --- session ----------------------------------------------------------------------------------------------------

    def _opened(self, event: SessionOpened, now: float) -> None:
        self._session.opened()
        self._effects.append(Log(logging.INFO, "a session of Symphony is open"))

    def _session_lost(self, event: SessionLost, now: float) -> None:
        if not self._session.was_open:
            self._end(1, f"no session of Symphony can be opened: {event.reason}")
            return
        pause = self._session.lost(now)
        text = f"the session of Symphony is lost ({event.reason}); the next attempt is in {pause:g} s"
        self._effects.append(Log(logging.WARNING, text))
        calls, self.running = self.running, {}
        for run, call in calls.items():
            self._effects.append(StopRun(run))
            self._lose(call, f"the session was lost: {event.reason}")

    def _workers(self) -> int:
        """How many runs the scheduler may count on."""
        return self._config.base_concurrency if self._session.is_open and self._drain_by == math.inf else 0

    def _announce(self) -> None:
        """Tell the scheduler the number of workers if it has changed."""
        workers = self._workers()
        if self._session.was_open and workers != self._announced:
            self._announced = workers
            self._send(Resized(workers))

    def _return_waiting(self) -> None:
        parked = self.functions.remove(set(run_ids(self.functions.parked_entries())))
        if entries := [*self.waiting.take_newest(len(self.waiting)), *parked]:
            self._give_back(run_ids(entries))

    def _give_back(self, runs: Sequence[int]) -> None:
        for some in pieces_of(runs):
            self._send(Returned(some))

    # --- scheduler --------------------------------------------------------------------------------------------------

    def _link_up(self, event: LinkUp, now: float) -> None:
        is_first, self._is_joined = not self._is_joined, True
        if event.resumed or is_first:
            return
        # A new scheduler knows what Hello says.
        self._announced = self._config.base_concurrency
        entries = [*(call.entry for call in self.running.values()), *self.waiting, *self.functions.parked_entries()]
        for message in reconciles(entries, tuple(self.kept)):
            self._send(message)
        self._needed.update(dict.fromkeys(self.functions.missing_functions()))

    def _drain(self, reason: str, now: float) -> None:
        if self._drain_by < math.inf:
            return
        self._drain_by = now + self._config.drain_timeout_seconds
        text = f"draining, for {self._config.drain_timeout_seconds:g} s at most: {reason}"
        self._effects.append(Log(logging.INFO, text))

    def _settle_drain(self, now: float) -> None:
        if self._is_over or self._drain_by == math.inf:
            return
        if now >= self._drain_by:
            self._end(0, "runs have not ended in time; they run elsewhere")
        elif not self.running:
            self._leave_at = min(self._leave_at, now + RELEASE_SECONDS)
            if not len(self.kept) or now >= self._leave_at:
                self._end(0, "all runs have ended")

    def _link_lost(self, event: LinkLost, now: float) -> None:
        self._end(1, f"the scheduler at {self._config.scheduler} is lost: {event.reason}")

    def _refused(self, event: LinkRefused, now: float) -> None:
        where = self._config.scheduler
        self._end(1, f"the scheduler at {where} refuses this agent: {event.reason(where)}")

    def _end(self, code: int, *reasons: str) -> None:
        self._is_over = True
        self._effects.append(EndAgent(code, reasons))

    def _send(self, message: Message) -> None:
        self._effects.append(SendToScheduler(message))


class _SessionState:
    """Whether there is a session, and when to open one."""

    def __init__(self) -> None:
        self.is_open = self.was_open = False
        self.retry_at = -math.inf
        self._pause = FIRST_RETRY_SECONDS

    def take_due(self, now: float) -> bool:
        """Whether to open a session now; True once for each attempt."""
        if now < self.retry_at:
            return False
        self.retry_at = math.inf
        return True

    def opened(self) -> None:
        self.is_open = self.was_open = True
        self._pause = FIRST_RETRY_SECONDS

    def lost(self, now: float) -> float:
        """Seconds until the next attempt."""
        self.is_open = False
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_RETRY_SECONDS)
        self.retry_at = now + pause
        return pause
