"""A real scheduler service, and simulated hosts and clients that speak to it over real links, in virtual time.

Only the service's CPU is counted: the time of its thread in `turn`.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

from scaler_io.links.events import UplinkEvent
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.links.streams import Frames
from scaler_io.links.uplink import Uplink
from scaler_io.service.server_loop import ServiceTurn
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import first_task, function_id
from scaler_protocol.messages import (
    AgentStatus,
    Done,
    Group,
    Recall,
    Release,
    Returned,
    Run,
    Submit,
    WorkerState,
    pieces_of,
)
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import Profile
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.core import SchedulerCore
from scaler_scheduler.core.permissions import PERMITTED
from scaler_worker.agent.core.result_buffer import ResultBuffer

FUNCTION = function_id(b"body")
CALL = b"x" * 40
RESULT = b"r" * 8
BATCH, GROUPS = 1024, 256
"""Most tasks and groups of one Submit."""
REPORT_SECONDS = 2.0
"""How often a host reports, unless heartbeats are rarer than that: the default of agents."""
STEP_SECONDS = 0.005
"""Virtual seconds from one look at the hosts to the next one."""


class CountedUplink(Uplink):
    """Counts the messages that it has received and given out."""

    def __init__(self, hello: Hello, now: float) -> None:
        super().__init__(hello, now, timeout_seconds=60.0)
        self.messages_received = self.messages_sent = 0

    def receive(self, frames: list[bytes], now: float) -> list[UplinkEvent]:
        self.messages_received += 1
        return super().receive(frames, now)

    def outgoing(self) -> list[Frames]:
        out = super().outgoing()
        self.messages_sent += len(out)
        return out


class Peer:
    """A host or a client: its end of the link, and what it has to say."""

    def __init__(self, hello: Hello, now: float) -> None:
        self.route = hello.identity
        self.uplink = CountedUplink(hello, now)

    def handle(self, message: Any, now: float) -> None:
        """Handle a message of the scheduler."""

    def look(self, now: float) -> float:
        """Do what is due; returns when something is due next."""
        self.uplink.tick(now)
        return self.uplink.due()


class Host(Peer):
    """Workers that are busy until a time, and a queue in front of them. `seconds` draws durations."""

    def __init__(self, number: int, workers: int, seconds: Sequence[float], seed: random.Random, now: float) -> None:
        hello = Hello(
            Role.AGENT, b"a%015d" % number, 1, name=f"host{number}", host=f"host{number}", workers=workers,
            queue_size=1000, capability_names=("linux",), capability_values=(-1,),
        )  # fmt: skip
        super().__init__(hello, now)
        self.name, self.workers, self.seconds, self.random = hello.name, workers, seconds, seed
        self.results = ResultBuffer(hello.name)
        self.queue: deque[tuple[int, int]] = deque()
        self.ends: list[tuple[float, int, int, float]] = []
        self.returned: list[int] = []
        self.newest_run = 0
        self.status_at = now + REPORT_SECONDS * seed.random()

    def handle(self, message: Any, now: float) -> None:
        if isinstance(message, Run):
            runs = range(message.first_run, message.first_run + len(message.tasks))
            self.queue.extend(zip(runs, message.tasks, strict=True))
            self.newest_run = runs[-1]
            self._start(now)
        elif isinstance(message, Recall):
            self.returned += [self.queue.pop()[0] for _ in range(min(message.count, len(self.queue)))]

    def _start(self, now: float) -> None:
        while self.queue and len(self.ends) < self.workers:
            run, task = self.queue.popleft()
            low, high = self.seconds
            seconds = low + (high - low) * self.random.random()
            heapq.heappush(self.ends, (now + seconds, run, task, seconds))

    def look(self, now: float) -> float:
        ended: list[tuple[float, int, int, float]] = []
        while self.ends and self.ends[0][0] <= now:
            at = self.ends[0][0]
            ended.append(heapq.heappop(self.ends))
            self._start(at)
        for _, run, task, seconds in ended:
            self.results.append(task, (run, 0, RESULT, _profile(run % self.workers, seconds), False))
        self.results.wait(self.uplink.busy)
        send_at = self.results.due(now, lambda session: bool(self.queue)) if self.results else math.inf
        if self.results and now >= send_at:
            send_at = math.inf
            for message in self.results.take():
                self.uplink.send(message)
        if self.returned:
            self.uplink.send(Returned(self.returned))
            self.returned = []
        if now >= self.status_at:
            self.status_at = now + max(REPORT_SECONDS, getattr(self.uplink, "heartbeat_seconds", 0.0))
            self.uplink.send(self._status())
        due = min(self.status_at, send_at, super().look(now))
        return min(due, self.ends[0][0]) if self.ends else due

    def _status(self) -> AgentStatus:
        runs = [run for _, run, _, _ in self.ends] + [0] * (self.workers - len(self.ends))
        return AgentStatus(
            0.01, 40 << 20, 8 << 30, len(self.queue), [f"Worker[{at}]" for at in range(self.workers)],
            range(10_000, 10_000 + self.workers), [WorkerState.RUNNING if run else WorkerState.IDLE for run in runs],
            runs, [self.random.random() for _ in runs], [_memory(worker) for worker in range(self.workers)],
            [0] * self.workers, newest_run=self.newest_run,
        )  # fmt: skip


def _profile(worker: int, seconds: float) -> bytes:
    """What a worker reports of a run."""
    return Profile(int(seconds * 1e6), int(seconds * 9e5), _memory(worker), 10_000 + worker, worker, 1).packed()


def _memory(worker: int) -> int:
    return (50 << 20) + 4096 * (worker * 997 % 1000)


class Caller(Peer):
    """A client with tasks in groups, which releases outcomes as they come."""

    def __init__(self, session: int, now: float, groups: Sequence[Group] = (Group(FUNCTION),)) -> None:
        super().__init__(Hello(Role.CLIENT, b"c%015d" % session, 1, session=session, name="client"), now)
        self.groups, self.session = groups, session
        self.submitted = self.ended = 0
        self.released: list[int] = []

    def submit(self, count: int) -> None:
        """Submit tasks, each of the next group."""
        while count > 0:
            size = min(BATCH if len(self.groups) == 1 else GROUPS, count)
            start = first_task(self.session) + self.submitted + 1
            numbers = [at % len(self.groups) for at in range(self.submitted, self.submitted + size)]
            places = {number: place for place, number in enumerate(dict.fromkeys(numbers))}
            groups = [self.groups[number] for number in places]
            which = [places[number] for number in numbers] if len(groups) > 1 else ()
            first = not self.submitted
            self.uplink.send(
                Submit(
                    groups,
                    range(start, start + size),
                    Payloads([CALL] * size),
                    which,
                    functions=(FUNCTION,) if first else (),
                    names=("f",) if first else (),
                    bodies=Payloads([b"body"] if first else []),
                )
            )
            self.submitted += size
            count -= size

    def handle(self, message: Any, now: float) -> None:
        if isinstance(message, Done):
            self.ended += len(message.tasks)
            self.released += message.tasks

    def look(self, now: float) -> float:
        if self.released:
            for some in pieces_of(self.released):
                self.uplink.send(Release(some))
            self.released = []
        return super().look(now)


class Peers(ABC):
    """Hosts and callers, each of which is looked at when something of it is due."""

    def __init__(self) -> None:
        self.all: dict[bytes, Peer] = {}
        self._due: list[tuple[float, bytes]] = []
        self._at: dict[bytes, float] = {}

    def wake(self, peer: Peer, now: float) -> None:
        """Look at a peer at this time, at the latest."""
        self._at[peer.route] = now
        heapq.heappush(self._due, (now, peer.route))

    def look(self, now: float) -> None:
        """Let every peer do what is due."""
        while self._due and self._due[0][0] <= now:
            at, route = heapq.heappop(self._due)
            if self._at.get(route) == at:
                self.flush(self.all[route], now)

    def flush(self, peer: Peer, now: float) -> None:
        """Let a peer do what is due, and write what it has to say."""
        due = peer.look(now)
        self.write(peer, now)
        self.wake(peer, due)

    @abstractmethod
    def write(self, peer: Peer, now: float) -> None:
        """Write what a peer has to say."""


class Memory:
    """A listener without sockets."""

    def __init__(self) -> None:
        self.arrived: deque[tuple[bytes, list[bytes]]] = deque()
        self.sent: list[tuple[bytes, Frames]] = []

    def receive(self, limit: int) -> list[tuple[bytes, list[bytes]]]:
        return [self.arrived.popleft() for _ in range(min(limit, len(self.arrived)))]

    def send(self, route: bytes, frames: Frames) -> bool:
        self.sent.append((route, frames))
        return True

    def cut(self, route: bytes) -> None:
        """Nothing is to be closed."""

    def readable(self) -> bool:
        return bool(self.arrived)

    def close(self) -> None:
        """Nothing is to be closed."""


class Service:
    """A scheduler as its process has it: core, hub and turns, behind any listener. `spent`: CPU seconds in turns."""

    def __init__(self, listener: Any, *, is_timed: bool = False) -> None:
        """`is_timed`: its CPU time in turns counts as virtual time when it measures how busy it is."""
        config = SchedulerConfig()
        self.core = SchedulerCore(3, config)

        def timeouts(hello: Hello) -> PeerTimeouts:
            if hello.role in (Role.AGENT, Role.MANAGER):
                return PeerTimeouts(config.agent_grace_seconds, config.worker_timeout_seconds)
            return PeerTimeouts(config.client_timeout_seconds, config.client_timeout_seconds)

        principal = getattr(listener, "principal", None)
        self.hub = Hub(
            3,
            admit=self.core.admit,
            timeouts=timeouts,
            permitted=PERMITTED,
            left=self.core.left_by,
            **({"principal": principal} if principal else {}),
        )
        self._now = self._began = self.spent = 0.0
        clock = (lambda: self._now + time.thread_time() - self._began) if is_timed else (lambda: 0.0)
        tell: Any = {"tell_busy": self.core.note_busy} if is_timed else {}
        self._turns = ServiceTurn("Scheduler", listener, self.hub, self.core, lambda: None, clock, **tell)

    def saturate(self) -> None:
        """Be as busy as a scheduler that does not keep up: time in turns is not part of virtual time."""
        self.hub.busy = 1.0
        self.core.note_busy(1.0)

    def turn(self, now: float) -> float:
        """Take a turn; returns when the next one is due."""
        self._now, self._began = now, time.thread_time()
        due = self._turns.turn(now)
        self.spent += time.thread_time() - self._began
        return due


class Cluster(Peers):
    """A scheduler and its peers in one process, without sockets."""

    def __init__(
        self, hosts: int, workers: int, seconds: tuple[float, float] = (0.0, 0.0), *, is_timed: bool = False
    ) -> None:
        super().__init__()
        self.now, self.wire, seed = 100.0, Memory(), random.Random(7)
        self.service = Service(self.wire, is_timed=is_timed)
        self._turn_at = self.now
        for number in range(hosts):
            self.connect(Host(number, workers, seconds, seed, self.now))
            if number % 128 == 0:
                self.now += 128 / hosts  # their heartbeats are spread over a second
                self.turns()
        self.run(2.0)

    def connect(self, peer: Peer) -> None:
        """Connect a peer."""
        self.all[peer.route] = peer
        peer.uplink.opened(self.now)
        self.flush(peer, self.now)

    def caller(self, groups: Sequence[Group] = (Group(FUNCTION),)) -> Caller:
        """A new client, which is connected."""
        caller = Caller(sum(isinstance(peer, Caller) for peer in self.all.values()) + 1, self.now, groups)
        self.connect(caller)
        self.turns()
        return caller

    def write(self, peer: Peer, now: float) -> None:
        for frames in peer.uplink.outgoing():
            self.wire.arrived.append((peer.route, [bytes(frame) for frame in frames]))

    def turns(self) -> None:
        """Let the service handle what has arrived and what is due, and its peers receive the answers."""
        while self.wire.arrived or self._turn_at <= self.now:
            self._turn_at = max(self.service.turn(self.now), self.now + 1e-6)
            sent, self.wire.sent = self.wire.sent, []
            for route, frames in sent:
                peer = self.all[route]
                for event in peer.uplink.receive(list(frames), self.now):
                    peer.handle(event, self.now)
                self.wake(peer, self.now)

    def run(self, seconds: float) -> float:
        """So much virtual time; returns the CPU seconds that the service took."""
        before, until = self.service.spent, self.now + seconds
        while self.now < until:
            self._step()
        return self.service.spent - before

    def work(self, caller: Caller, tasks: int, waiting: int) -> float:
        """Keep so many tasks waiting until `tasks` more have ended; returns the CPU seconds that the service took."""
        before, until = self.service.spent, caller.ended + tasks
        while caller.ended < until:
            if (lack := waiting - self.service.core.state.waiting.count) > 0:
                caller.submit(lack)
                self.flush(caller, self.now)
            self._step()
        return self.service.spent - before

    def _step(self) -> None:
        self.now += STEP_SECONDS
        self.look(self.now)
        self.turns()
