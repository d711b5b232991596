"""Simulated worker processes: they read datagrams, run plans, write replies, and die, as real ones do."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

from scaler_client.core.events import BlockingChanged
from scaler_io.links.events import LinkUp
from scaler_io.simulation.network import MemoryNetwork
from scaler_protocol.errors import ObjectNotFoundError, describe, of_run
from scaler_protocol.handshake import Welcome
from scaler_protocol.messages import Message, Status
from scaler_protocol.profiles import NO_PROFILE, Profile
from scaler_worker.agent.core.events import Define, SendTasks, TailRecalled
from scaler_worker.agent.core.in_flight import LONGEST_SWEEP_SECONDS
from scaler_worker.agent.core.records import NO_RUN, SEPARATE, Entry
from scaler_worker.ipc import frames
from scaler_worker.ipc.inputs import split_inputs
from world.callers import Caller, WorldFuture
from world.plans import Execution, Plan, Values, plan_of

START_SECONDS = 0.005
PIPE_SECONDS = 0.0002


class WorkersHost(Protocol):
    """What a worker has around it."""

    name: str
    network: MemoryNetwork
    history: list[Execution]
    values: Values
    slowness: float

    def wake(self) -> None:
        """Something of a worker is there to be read."""

    def kill(self) -> None:
        """The host is gone."""


class SimulatedWorker:
    """One process. `pipe` and `said` are its unread output, which survives it."""

    def __init__(self, host: WorkersHost, number: int) -> None:
        self.number = number
        self.unread: deque[Define | SendTasks] = deque()
        self.pipe: deque[frames.ReplyEvent] = deque()
        self.said: deque[Message] = deque()
        self.word, self.revoked = NO_RUN, 0
        self.alive, self.ready = True, False
        self.reason = ""
        self.now: Execution | None = None
        """The run that it is in."""
        self.nested: Caller | None = None
        self._host, self._network = host, host.network
        self._knows: set[int] = set()
        self._datagram: SendTasks | None = None
        self._at = 0
        self._ended = False
        self._welcome: Welcome | None = None
        self._children: list[WorldFuture] = []
        self._inputs: list[bytes] = []
        self._made: dict[int, bytes] = {}
        """What the run before has made, by its task."""
        self._cpu = 0.0
        self._worked_since = math.inf
        self._stopped_until = -math.inf
        self._nested_due = math.inf
        self._read_at = -math.inf
        """When what is in the pipe will be read."""
        self._later(START_SECONDS, self._become_ready)

    # --- what its host does to it -----------------------------------------------------------------------------------

    def give(self, datagram: Define | SendTasks) -> None:
        """A datagram is written to it."""
        if isinstance(datagram, SendTasks):
            datagram = SendTasks(datagram.worker, datagram.sequence, list(datagram.entries))
        self.unread.append(datagram)
        self._later(0.0, self._go_on)

    def recall(self) -> TailRecalled:
        """What it has not read is read back."""
        unread = list(self.unread)
        self.unread.clear()
        return TailRecalled(
            tuple(datagram.sequence for datagram in unread if isinstance(datagram, SendTasks)),
            tuple(datagram.definition.handle for datagram in unread if isinstance(datagram, Define)),
        )

    def end(self) -> None:
        """Its channel is closed: it ends when it has read it."""
        self._ended = True
        self._later(0.0, self._go_on)

    def die(self, reason: str) -> None:
        """Its process is gone."""
        if self.alive:
            self.alive, self.reason = False, reason
            if self.now is not None:
                self.now.ended, self.now.how = self._network.now, reason
                self.now = None
            self._network.at(self._network.now + PIPE_SECONDS, self._host.wake)

    def stop(self, seconds: float) -> None:
        """SIGSTOP for so long."""
        self._stopped_until = self._network.now + seconds

    def hear(self, message: Message) -> None:
        """The agent relays a message to the client in its task."""
        if not self.alive:
            return
        if isinstance(message, Welcome):
            self._welcome = message
        if self.nested is not None:
            event = LinkUp(message, False) if isinstance(message, Welcome) else message
            self.nested.core.handle(event, self._network.now)
            self._later(0.0, self._turn_nested)

    def cpu_nanoseconds(self) -> int:
        """CPU time used."""
        working = max(0.0, self._network.now - self._worked_since)
        return round((self._cpu + working) * 1e9)

    def read(self) -> list[frames.ReplyEvent]:
        """What it wrote; results that stand together come together."""
        events: list[frames.ReplyEvent] = []
        while self.pipe:
            event = self.pipe.popleft()
            last = events[-1] if events else None
            if isinstance(event, frames.RunsEnded) and isinstance(last, frames.RunsEnded):
                last.runs.extend(event.runs)
                last.statuses.extend(event.statuses)
                last.durations.extend(event.durations)
                last.profiles.extend(event.profiles)
                last.payloads.extend(event.payloads)
            else:
                events.append(event)
        return events

    # --- what it does -----------------------------------------------------------------------------------------------

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something then, unless it is dead, and not before it is continued."""

        def when_possible() -> None:
            if self.alive and self._network.now < self._stopped_until:
                self._network.at(self._stopped_until, when_possible)
            elif self.alive:
                act()

        self._network.at(self._network.now + seconds, when_possible)

    def _write(self, event: frames.ReplyEvent) -> None:
        self.pipe.append(event)
        # Pipes of workers with chunks are swept, others are read at once.
        now = self._network.now
        swept = self._datagram is not None and len(self._datagram.entries) > SEPARATE
        delay = LONGEST_SWEEP_SECONDS if swept else PIPE_SECONDS
        if self._read_at < now or now + delay < self._read_at:
            self._read_at = now + delay
            self._network.at(self._read_at, self._host.wake)

    def _become_ready(self) -> None:
        self.ready = True
        self._write(frames.WorkerReady(1000 + self.number))

    def _go_on(self) -> None:
        """Start the next run, unless one is under way."""
        while self.alive and self.ready and self.now is None:
            if self._datagram is None:
                if not self.unread:
                    if self._ended:
                        self.die("exited with code 0")
                    return
                datagram = self.unread.popleft()
                if isinstance(datagram, Define):
                    self._knows.add(datagram.definition.handle)
                    continue
                self._datagram, self._at = datagram, 0
            self._start(self._datagram.entries[self._at])

    def _start(self, entry: Entry) -> None:
        datagram = self._datagram
        assert datagram is not None
        self.word = entry[0]
        if self.revoked >= datagram.sequence:
            self._datagram = None
            self._write(frames.DatagramReturned(entry[0], datagram.sequence))
            return
        self._at += 1
        if self._at == len(datagram.entries):
            self._datagram = None
        if entry[2].kind.handle not in self._knows:
            self._write(frames.FunctionMissing(entry[0]))
            return
        call, inputs, made = entry[3], [], self._made
        self._made = {}
        if entry[5] & frames.WITH_INPUTS:
            call, found = split_inputs(call)
            if any(given.kind == frames.FOLLOWS and given.task not in made for given in found):
                self._write(frames.InputMissing(entry[0]))
                return
            values = self._host.values
            found = [
                given._replace(kind=frames.PLAIN, result=values.find(given.result))
                if given.kind & frames.STORED
                else given
                for given in found
            ]
            if not all(given.kind == frames.FOLLOWS or values.has(given.result) for given in found):
                lost = of_run(describe(ObjectNotFoundError("an input is not there")), entry[0])
                self._write(frames.RunsEnded([entry[0]], [Status.FAILED], [0], [NO_PROFILE], [lost], []))
                self._go_on()
                return
            inputs = [made[given.task] if given.kind == frames.FOLLOWS else given.result for given in found]
        plan = plan_of(call)
        now = self._network.now
        self.now = Execution(entry[1], entry[0], entry[4], self._host.name, self.number, now, plan)
        self._host.history.append(self.now)
        if plan.children:
            self._submit(plan, entry[0])
        if plan.children and plan.waits:
            self._inputs = inputs
        else:
            self._work(inputs)

    def _work(self, inputs: list[bytes]) -> None:
        execution = self.now
        assert execution is not None
        self._worked_since = self._network.now

        def finish() -> None:
            if self.now is execution:
                self._finish(execution, inputs)

        self._later(execution.plan.seconds * self._host.slowness, finish)

    def _finish(self, execution: Execution, inputs: list[bytes]) -> None:
        plan, now = execution.plan, self._network.now
        self._cpu += now - self._worked_since
        self._worked_since = math.inf
        if execution.attempt <= plan.kills_worker:
            self.die("was killed by SIGSEGV")
            return
        if execution.attempt <= plan.kills_host:
            self._host.kill()
            return
        failed = any(child.status != Status.VALUE for child in self._children if plan.waits)
        raised = failed or execution.attempt <= plan.raises
        execution.ended, execution.how = now, "raised" if raised else "value"
        status, payload = (Status.RAISED, b"raised") if raised else (Status.VALUE, plan.result(inputs))
        if not raised and plan.misses and self._runs_of(execution.task) <= plan.misses:
            raised, status = True, Status.FAILED
            payload = of_run(describe(ObjectNotFoundError("object ab is not there")), execution.run)
        micros = round(plan.seconds * self._host.slowness * 1e6)
        profile = Profile(micros, micros, 2**20, 1000 + self.number, self.number, execution.attempt).packed()
        self.now, self._children = None, []
        if not raised:
            self._made = {execution.task: payload}
            self._host.values.add(payload)
        self._write(frames.RunsEnded([execution.run], [status], [micros], [profile], [payload], []))
        self._go_on()

    def _runs_of(self, task: int) -> int:
        """How often the task has run."""
        return sum(each.task == task for each in self._host.history)

    # --- the client inside its task ---------------------------------------------------------------------------------

    def _submit(self, plan: Plan, run: int) -> None:
        if self.nested is None:
            session = self._network.random.randrange(2**31, 2**32)
            self.nested = Caller(f"{self._host.name}/{self.number}", session, self._host.values)
            if self._welcome is not None:
                self.nested.core.handle(LinkUp(self._welcome, False), self._network.now)
        nested = self.nested
        self._children = nested.submit(*plan.children, parent=run)
        if plan.waits and plan.tells:
            nested.ask(BlockingChanged(run, True))
        self._later(0.0, self._turn_nested)

    def _turn_nested(self) -> None:
        nested, now = self.nested, self._network.now
        assert nested is not None
        self._say(nested.decide(now))
        execution = self.now
        if (
            execution is not None
            and self._worked_since == math.inf
            and self._children
            and all(child.outcome() is not None for child in self._children)
        ):
            if execution.plan.tells:
                nested.core.handle(BlockingChanged(execution.run, False), now)
                self._say(nested.decide(now))
            self._work(self._inputs)
        due = nested.core.due()
        if due is not None and due != self._nested_due:
            self._nested_due = due
            self._later(max(0.0, due - now), self._turn_nested)

    def _say(self, messages: list[Message]) -> None:
        if messages:
            self.said.extend(messages)
            self._network.at(self._network.now + PIPE_SECONDS, self._host.wake)
