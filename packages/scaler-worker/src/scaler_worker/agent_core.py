"""AgentCore: what the agent of one host decides. Pure: no clock, no socket, no process.

Theory. A *run* (one dispatch of a task) is in exactly one place: waiting, parked until the bytes of its function
come, or in the flight of one worker.

    Run --> waiting | parked --GiveTasks--> in flight --RunsEnded--> Done, and kept until Release
    in flight --recalled, revoked, its worker died under another run--> waiting, in front
    in flight --its worker died under it--> Done LOST; stopped for its timeout --> Done FAILED
    anywhere --Withdraw--> Done CANCELLED at once; a worker that is in it is killed
    waiting --Recall--> Returned; in flight --its input was not made right before it--> Returned

A flight is at most two datagrams, each one task or a chunk of tiny ones that take a few milliseconds together.
Nothing is given to a worker behind a task that is long or of unknown length, and what stands unread behind a run is
had back for a worker that is idle. Nothing stays behind a task that turns out to be long: unread datagrams are read
back (the kernel decides who got each one), and what the worker has read is *revoked*: it looks at the revoked
sequence before each run, and we look at its current run well after having written that, so one of us sees the other.

    worker: STARTING --ready--> IDLE <--> RUNNING <--Blocked--> BLOCKED; STOPPING when killed or let go --died--> gone

A worker is RUNNING while it has a flight and its task does not wait for other tasks. Nothing is given to an idle worker
unless fewer than `places` are RUNNING; resuming needs no permission, so there may be more for a while.

Invariants, asserted by `check`: every run in one place; flights of at most two datagrams, in the order of their
sequences; a blocked or stopping worker is given nothing; the indexes (idle, refillable, running) agree with the
workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import repeat
from typing import Any, Final

from scaler_io.links import LinkLost, LinkRefused, LinkUp
from scaler_protocol.errors import NestingLimitError
from scaler_protocol.handshake import Welcome
from scaler_protocol.ids import session_of
from scaler_protocol.messages import (
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
    Release,
    Resend,
    Resume,
    Returned,
    Run,
    Shutdown,
    ShutdownAnswer,
    Submit,
    Withdraw,
    WorkerState,
)
from scaler_protocol.operations import Drain
from scaler_protocol.storage import DeleteObjects
from scaler_worker import channel, events
from scaler_worker.draining import Draining
from scaler_worker.events import AgentEffect
from scaler_worker.fleet import Fleet
from scaler_worker.flights import Flights
from scaler_worker.functions import FunctionTable
from scaler_worker.inputs import with_inputs
from scaler_worker.outcomes import Outbox
from scaler_worker.outliers import Outliers
from scaler_worker.records import AgentConfig, Entry, WorkerRecord
from scaler_worker.relays import ByTask, by_session

SUSPECT_SECONDS: Final = 0.05
SUSPECT_NANOSECONDS: Final = 1_000_000
"""A parent that used less CPU than this in SUSPECT_SECONDS waits for its children, whether or not it said so."""
BLOCKED_LIMIT: Final = 512
SESSIONS_LIMIT: Final = 64
"""Sessions remembered per worker: clients that its tasks made."""


class AgentCore:
    """Which run goes to which worker, and what becomes of it. `handle` is the way in, `settle` the way out."""

    def __init__(self, config: AgentConfig) -> None:
        self.fleet = Fleet(config.workers, config.names)
        self.functions = FunctionTable(config.task_timeout_seconds)
        self._outbox = Outbox(config.name)
        self.flights = Flights(self.fleet, self.functions, self._outbox, config.host, config.secret)
        self._outliers = Outliers(self.fleet, self.flights)
        self._draining = Draining(self.fleet, self.flights, self.functions)
        self._retention = config.object_retention_seconds
        self._effects = self.flights.effects
        self._sessions: dict[int, int] = {}
        self._suspect_at = math.inf
        self._rotate_at = 0.0
        self._memory_nearly_gone = False
        self._welcome: Welcome | None = None
        self._from_scheduler = self._scheduler_handlers()
        self._from_worker = self._worker_handlers()

    def _scheduler_handlers(self) -> dict[type, Callable[[Any, float], None]]:
        return {
            Run: self._run,
            Withdraw: lambda message, now: self.flights.withdraw(set(message.runs), now),
            Recall: self._recall,
            Release: lambda message, now: self.flights.kept.release(message.tasks),
            Resend: self._resend,
            Drain: lambda message, now: self._draining.drain(message, now),
            Functions: self._functions,
            Done: self._relay_by_task,
            Ended: self._relay_by_task,
            Output: self._relay_by_task,
            NeedInputs: self._relay_by_task,
            NeedTasks: self._relay_by_task,
            NeedFunctions: self._relay_to_session,
            DeleteObjects: self._relay_to_session,
            LinkUp: self._link_up,
            LinkLost: lambda event, now: self._stop(1, f"the scheduler is lost: {event.reason}"),
            LinkRefused: lambda event, now: self._stop(1, *event.reasons),
            Shutdown: lambda message, now: self._stop(0, "the scheduler shuts the cluster down"),
            events.MemoryRead: self._memory_read,
        }

    def _worker_handlers(self) -> dict[type, Callable[[WorkerRecord, Any, float], None]]:
        flights = self.flights
        return {
            channel.RunsEnded: self._outliers.ended,
            channel.OutputWritten: self._written,
            channel.RunUnfed: lambda worker, event, now: flights.unfed(worker, event.run, now),
            channel.FunctionMissed: lambda worker, event, now: flights.missed(worker, event.run, now),
            channel.DatagramReturned: lambda worker, event, now: flights.returned(worker, event.run, now),
            channel.WorkerReady: self._ready,
            channel.WorkerRetired: lambda worker, event, now: setattr(worker, "parting", event.text),
            channel.PreloadFailed: lambda worker, event, now: self._stop(1, event.text),
            events.WorkerDied: self._died,
            events.TailRecalled: flights.tail_recalled,
            events.RunRead: flights.run_read,
            events.CpuRead: self._cpu_read,
            Submit: self._submitted,
            Blocked: self._told_blocked,
            Release: self._pass_on,
            Cancel: self._pass_on,
            Resume: self._pass_on,
            Inputs: self._pass_on,
            Functions: self._pass_on,
            Shutdown: self._refuse_shutdown,
        }

    def handle(self, peer: int, event: Any, now: float) -> None:
        """Take in one event; one that is nobody's, or comes too late, changes nothing."""
        if peer >= 0:
            worker = self.fleet.workers.get(peer)
            from_worker = self._from_worker.get(type(event))
            if worker is not None and from_worker is not None:
                from_worker(worker, event, now)
        elif handler := self._from_scheduler.get(type(event)):
            handler(event, now)

    def settle(self, now: float) -> list[AgentEffect]:
        """Make every pending decision once; returns what to do, in order."""
        flights = self.flights
        if now >= flights.check_at:
            flights.check(now)
        if now >= self._suspect_at:
            self._suspect(now)
        if now >= self._rotate_at:
            self._rotate_at = now + self._retention
            flights.kept.rotate()
        if flights.waiting:
            flights.assign(now)
        elif self.fleet.idle and self.fleet.running:
            flights.share(now)
        self._effects += self.fleet.balance(len(flights.waiting), now)
        if flights.unfed_runs:
            self._send(Returned(flights.unfed_runs))
            flights.unfed_runs = []
        if self.fleet.draining or not self.fleet.places:
            self._draining.settle()
        if flights.needed:
            self._effects.append(events.SendToScheduler(NeedFunctions(tuple(flights.needed))))
            flights.needed.clear()
        if self._outbox:
            self._effects += map(events.SendToScheduler, self._outbox.take())
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def due(self) -> float:
        """When `settle` has something to do although nothing happened."""
        return min(self.flights.check_at, self._suspect_at, self._rotate_at, self.fleet.spare_due())

    # --- what the scheduler says ------------------------------------------------------------------------------------

    def _run(self, message: Run, now: float) -> None:
        self.functions.learn(message)
        lanes = self.functions.lanes(message.groups)
        calls: Iterable[bytes] = message.calls.parts
        flags: Iterable[int] = repeat(channel.PLAIN)
        if message.stored or message.needs:
            calls, flags = with_inputs(message)
        self.flights.waiting.extend(
            list(
                zip(
                    range(message.first_run, message.first_run + len(message.tasks)),
                    message.tasks,
                    map(lanes.__getitem__, message.task_groups) if message.task_groups else repeat(lanes[0]),
                    calls,
                    message.attempts or repeat(1),
                    flags,
                    strict=False,
                )
            )
        )

    def _recall(self, message: Recall, now: float) -> None:
        entries = self.flights.waiting.take_newest(message.count)
        self._send(Returned([entry[0] for entry in entries]))

    def _resend(self, message: Resend, now: float) -> None:
        for task in message.tasks:
            if outcome := self.flights.kept.get(task):
                self._outbox.append(task, outcome)

    def _functions(self, message: Functions, now: float) -> None:
        self.functions.learn(message)
        self.flights.waiting.give_back(self.functions.unpark())

    def _link_up(self, event: LinkUp, now: float) -> None:
        first, self._welcome = self._welcome is None, event.welcome
        if event.resumed:
            return
        self._effects += (events.Relay(worker.number, event.welcome) for worker in self.fleet if worker.pid)
        if not first:
            self._resume()
            self._draining.tell()

    def _resume(self) -> None:
        """Tell a scheduler that knows nothing of us what we run and keep, and ask it what another one was asked."""
        held = self._held()
        self._send(Resume([entry[1] for entry in held], [entry[0] for entry in held], (), tuple(self.flights.kept)))
        blocked = [entry[0] for worker in self.fleet if worker.blocked and (entry := worker.next_entry())]
        if blocked:
            self._send(Blocked(blocked, [True] * len(blocked)))
        for kind in self.functions.parked:
            self.flights.needed.update(dict.fromkeys(self.functions.missing(kind)))

    def _held(self) -> list[Entry]:
        """Every run that has not ended and is still wanted."""
        flying = (e for worker in self.fleet for e in worker.entries() if e[0] not in worker.dropped)
        return [*flying, *self.flights.waiting, *self.functions.parked_entries()]

    def _memory_read(self, event: events.MemoryRead, now: float) -> None:
        self._memory_nearly_gone = event.nearly_gone

    def _stop(self, code: int, *reasons: str) -> None:
        self._effects.append(events.EndAgent(code, reasons))

    def _send(self, message: Any) -> None:
        self._effects.append(events.SendToScheduler(message))

    # --- workers ----------------------------------------------------------------------------------------------------

    def _ready(self, worker: WorkerRecord, event: channel.WorkerReady, now: float) -> None:
        if line := self.fleet.ready(worker, event.pid, now):
            self._effects.append(line)
        if self._welcome is not None:
            self._effects.append(events.Relay(worker.number, self._welcome))

    def _died(self, worker: WorkerRecord, event: events.WorkerDied, now: float) -> None:
        # What it was still to be asked can not be asked any more, and its number is another's soon.
        self._effects[:] = [effect for effect in self._effects if getattr(effect, "worker", None) != worker.number]
        if worker.parting:
            event = replace(event, reason=f"ended itself ({worker.parting})")
        self.flights.died(worker, event, now)
        self._outliers.gone(worker.number)
        for session in worker.sessions:
            self._sessions.pop(session, None)
        if stop := self.fleet.gone(worker, event.reason):
            self._effects.append(stop)

    def _written(self, worker: WorkerRecord, event: channel.OutputWritten, now: float) -> None:
        entry = worker.next_entry()
        if entry is not None and entry[0] == event.run and event.run not in worker.dropped:
            self._outbox.write(entry[1], event.stream, event.text)

    # --- tasks that submit tasks ------------------------------------------------------------------------------------

    def _pass_on(self, worker: WorkerRecord, message: Any, now: float) -> None:
        self._send(message)

    def _refuse_shutdown(self, worker: WorkerRecord, message: Shutdown, now: float) -> None:
        answer = ShutdownAnswer(False, "a task cannot shut down the scheduler that runs it")
        self._effects.append(events.Relay(worker.number, answer))

    def _submitted(self, worker: WorkerRecord, message: Submit, now: float) -> None:
        session = session_of(message.tasks[0]) if message.tasks else 0
        if session not in worker.sessions:
            worker.sessions[session] = None
            self._sessions[session] = worker.number
            if len(worker.sessions) > SESSIONS_LIMIT:
                oldest = next(iter(worker.sessions))
                del worker.sessions[oldest]
                self._sessions.pop(oldest, None)
        entry = worker.next_entry()
        if entry is not None and entry[0] == message.parent:
            if not worker.children:
                worker.cpu = -1
            worker.children.update(message.tasks)
            self._suspect_at = min(self._suspect_at, now + SUSPECT_SECONDS)
        self._send(message)

    def _relay(self, session: int, message: Any) -> WorkerRecord | None:
        number = self._sessions.get(session)
        if number is None:
            return None
        self._effects.append(events.Relay(number, message))
        return self.fleet.workers[number]

    def _relay_by_task(self, message: ByTask, now: float) -> None:
        for session, part in by_session(message):
            worker = self._relay(session, part)
            if worker is None and isinstance(part, Done | NeedTasks):
                # The process that wanted them is gone: nobody else will say so of tasks that a restart made orphans.
                self._send(Release(part.tasks) if isinstance(part, Done) else Cancel(part.tasks))
            elif worker is not None and isinstance(part, Done):
                worker.children.difference_update(part.tasks)

    def _relay_to_session(self, message: NeedFunctions | DeleteObjects, now: float) -> None:
        self._relay(message.session, message)

    def _told_blocked(self, worker: WorkerRecord, message: Blocked, now: float) -> None:
        for run, blocked in zip(message.runs, message.blocked, strict=True):
            entry = worker.next_entry()
            if entry is not None and entry[0] == run:
                worker.guessed = False
                self._set_blocked(worker, run, blocked, now)

    def _set_blocked(self, worker: WorkerRecord, run: int, blocked: bool, now: float) -> None:
        """A run waits for other tasks, and gives its place to them; or does not any more."""
        if blocked == worker.blocked or worker.state == WorkerState.STOPPING:
            return
        if blocked and (self._memory_nearly_gone or len(self.fleet.blocked) >= BLOCKED_LIMIT):
            what = "the host's memory is nearly gone" if self._memory_nearly_gone else f"the limit is {BLOCKED_LIMIT}"
            count = len(self.fleet.blocked)
            message = f"{count} tasks of this host wait for tasks of their own, and one more would be too many: {what}"
            self.flights.stop_run(worker, run, NestingLimitError(message, blocked=count))
            return
        worker.blocked = blocked
        if blocked:
            self.flights.take_back(worker)
        self.fleet.place(worker, now)
        self._send(Blocked((run,), (blocked,)))

    def _suspect(self, now: float) -> None:
        """Look at parents with unfinished children that hold their places."""
        suspects = [
            worker.number
            for worker in self.fleet
            if worker.children and worker.flight and (worker.guessed or not worker.blocked)
        ]
        self._effects += map(events.ReadCpu, suspects)
        self._suspect_at = now + SUSPECT_SECONDS if suspects else math.inf

    def _cpu_read(self, worker: WorkerRecord, event: events.CpuRead, now: float) -> None:
        entry = worker.next_entry()
        if entry is None or not worker.children:
            return
        if worker.cpu >= 0:
            rests = event.nanoseconds - worker.cpu < SUSPECT_NANOSECONDS
            if rests and not worker.blocked and len(self.fleet.running) >= self.fleet.places:
                worker.guessed = True
                self._set_blocked(worker, entry[0], True, now)
            elif worker.guessed and not rests:
                worker.guessed = False
                self._set_blocked(worker, entry[0], False, now)
        worker.cpu = event.nanoseconds

    # --- the truth --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """The invariants of the module's docstring."""
        self.fleet.check()
        self.flights.kept.check()
        flying = [entry[0] for worker in self.fleet for entry in worker.entries()]
        runs = [*flying, *(e[0] for e in self.flights.waiting), *(e[0] for e in self.functions.parked_entries())]
        assert len(runs) == len(set(runs)), "a run is in two places"
        assert len(self.flights.waiting) == sum(1 for _ in self.flights.waiting)
        for worker in self.fleet:
            assert worker.dropped <= {entry[0] for entry in worker.entries()}
            assert not (worker.blocked and worker.state == WorkerState.RUNNING)
            assert all(self._sessions.get(session) in (worker.number, None) for session in worker.sessions)
        assert all(number in self.fleet.workers for number in self._sessions.values())
