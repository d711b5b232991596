"""A big cluster in one process: the real core, agents that are heaps of end times, a clock that jumps."""

from __future__ import annotations

import heapq
import random
import resource
import time
from collections import deque
from dataclasses import dataclass, field

import pytest

from scaler_io.links.effects import Send
from scaler_io.links.events import PeerJoined
from scaler_protocol import messages
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import first_task, function_id
from scaler_protocol.messages import Done, Group, Run, Submit
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import Profile
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.core import SchedulerCore

FUNCTION = function_id(b"body")
CLIENT = b"client".ljust(16)
LATENCY = 0.0002
BATCH = 1024
IN_FLIGHT = 200_000


@dataclass
class SimulatedAgent:
    """Workers that are busy until a time, and a queue in front of them."""

    peer: bytes
    workers: int
    busy: int = 0
    queue: deque[tuple[int, int]] = field(default_factory=deque)


class Simulation:
    """Counts what a cluster would have done; durations are drawn per task, in seconds."""

    def __init__(self, agents: int, workers: int, tasks: int, mean_seconds: float) -> None:
        self.core = SchedulerCore(3, SchedulerConfig())
        self.now, self.tasks, self.mean = 0.0, tasks, mean_seconds
        self.random = random.Random(7)
        self.agents = {b"a%015d" % i: SimulatedAgent(b"a%015d" % i, workers) for i in range(agents)}
        self.ends: list[tuple[float, int, bytes, list[tuple[int, int, float]]]] = []
        self.submitted = self.ended = self.serial = 0
        self.seen: set[int] = set()
        self.busy_seconds = 0.0
        hello = Hello(Role.CLIENT, CLIENT, 1, session=5)
        self.core.handle(CLIENT, PeerJoined(hello, False), self.now)
        for peer in self.agents:
            joined = Hello(Role.AGENT, peer, 1, name="a", workers=workers, queue_size=1000)
            self.core.handle(peer, PeerJoined(joined, False), self.now)

    def run(self) -> None:
        """Until every task has ended."""
        self.submit()
        while self.ended < self.tasks:
            for effect in self.core.settle(self.now):
                if isinstance(effect, Send):
                    self.deliver(effect)
            self.step()
            if self.submitted - self.ended < IN_FLIGHT // 2:
                self.submit()

    def submit(self) -> None:
        group = Group(FUNCTION)
        while self.submitted < self.tasks and self.submitted - self.ended < IN_FLIGHT:
            count = min(BATCH, self.tasks - self.submitted)
            ids = range(first_task(5) + self.submitted + 1, first_task(5) + self.submitted + 1 + count)
            first = not self.submitted
            self.core.handle(
                CLIENT,
                Submit(
                    (group,),
                    list(ids),
                    Payloads([b"x" * 40] * count),
                    functions=(FUNCTION,) if first else (),
                    names=("f",) if first else (),
                    bodies=Payloads([b"body"] if first else []),
                ),
                self.now,
            )
            self.submitted += count

    def deliver(self, effect: Send) -> None:
        message = effect.message
        if isinstance(message, Run):
            agent = self.agents[effect.to]
            agent.queue.extend((message.first_run + i, task) for i, task in enumerate(message.tasks))
            self.start(agent, self.now + LATENCY)
        elif isinstance(message, Done):
            assert not self.seen.intersection(message.tasks), "answered twice"
            self.seen.update(message.tasks)
            self.ended += len(message.tasks)
            self.core.handle(CLIENT, messages.Release(message.tasks), self.now)
        elif isinstance(message, messages.Recall):
            agent = self.agents[effect.to]
            back = [agent.queue.pop()[0] for _ in range(min(message.count, len(agent.queue)))]
            self.core.handle(effect.to, messages.Returned(back), self.now)

    def start(self, agent: SimulatedAgent, at: float) -> None:
        while agent.queue and agent.busy < agent.workers:
            run, task = agent.queue.popleft()
            seconds = self.random.expovariate(1 / self.mean)
            self.busy_seconds += seconds
            agent.busy += 1
            self.serial += 1
            heapq.heappush(self.ends, (at + seconds, self.serial, agent.peer, [(run, task, seconds)]))

    def step(self) -> None:
        """One millisecond, or until something happens."""
        if not self.ends:
            self.now += 0.001
            return
        self.now = max(self.now, self.ends[0][0]) + 0.001
        ended: dict[bytes, list[tuple[int, int, float]]] = {}
        while self.ends and self.ends[0][0] <= self.now:
            _, _, peer, runs = heapq.heappop(self.ends)
            ended.setdefault(peer, []).extend(runs)
        for peer, runs in ended.items():
            agent = self.agents[peer]
            agent.busy -= len(runs)
            self.start(agent, self.now)
            profiles = b"".join(Profile(int(seconds * 1e6), 0, 0, 0, 0, 1).packed() for _, _, seconds in runs)
            done = Done(
                [task for _, task, _ in runs],
                (0,) * len(runs),
                Payloads([b"r"] * len(runs)),
                runs=[run for run, _, _ in runs],
                profiles=profiles,
                agents=("a",),
            )
            self.core.handle(peer, done, self.now)


def report(agents: int, workers: int, tasks: int, mean_seconds: float) -> float:
    """Run one simulation; returns how long it took over the ideal, and prints what the core cost."""
    simulation = Simulation(agents, workers, tasks, mean_seconds)
    started = time.process_time()
    simulation.run()
    cost = (time.process_time() - started) / tasks * 1e6
    simulation.core.settle(simulation.now + 1)
    simulation.core.check()
    ideal = simulation.busy_seconds / (agents * workers)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{agents} agents, {tasks:,} tasks: {cost:.1f} us CPU per task with the simulation, peak {peak:.0f} MiB")
    assert len(simulation.seen) == tasks
    assert not any(session.tasks for session in simulation.core.state.sessions.values())
    return simulation.now / ideal


def test_a_hundred_hosts_are_kept_busy() -> None:
    assert report(agents=100, workers=16, tasks=60_000, mean_seconds=0.1) < 1.25


def test_two_hosts_with_tiny_tasks() -> None:
    assert report(agents=2, workers=2, tasks=20_000, mean_seconds=0.0001) < 25


@pytest.mark.soak
def test_a_thousand_hosts_and_two_million_tasks() -> None:
    assert report(agents=1000, workers=16, tasks=2_000_000, mean_seconds=0.1) < 1.25
