"""A scheduler's core with peers of which it only hears: for what needs neither links nor time."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from cluster import BATCH, CALL, FUNCTION, RESULT

from scaler_io.links.effects import Send
from scaler_io.links.events import PeerJoined
from scaler_protocol.codec import decode, encode
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import first_task
from scaler_protocol.messages import Done, Group, Message, NeedTasks, Reconcile, Release, Resend, Run, Submit, pieces_of
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import Profile
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.core import SchedulerCore

CLIENT, SESSION, EARLIER = b"c".ljust(16), 5, 2
"""The client, its session, and the incarnation of the scheduler that peers have known before a restart."""
FIRST = first_task(SESSION) + 1


def agent(number: int) -> bytes:
    """The identity of an agent."""
    return b"a%015d" % number


class LoneCore(SchedulerCore):
    """`spent`: CPU seconds in `handle` and `settle` since the start."""

    def __init__(self, hosts: int, workers: int = 16, *, known: int = 0) -> None:
        """`known`: the incarnation that the hosts have been connected to before."""
        super().__init__(3, SchedulerConfig())
        self.spent = 0.0
        for number in range(hosts):
            self.join(Role.AGENT, agent(number), known=known, workers=workers, queue_size=1000)
        self.settle(0.0)

    def join(self, role: int, identity: bytes, *, known: int = 0, session: int = 0, **offered: int) -> None:
        """A peer connects."""
        name = identity.decode()
        hello = Hello(role, identity, 1, 1, known, session=session, name=name, host=name, **offered)
        self.handle(identity, PeerJoined(hello, False), 0.0)

    def hear(self, peer: bytes, message: Message, now: float) -> None:
        """Handle a message as the codec gives it."""
        decoded = decode([bytes(frame) for frame in encode(message)])
        began = time.thread_time()
        self.handle(peer, decoded, now)
        self.spent += time.thread_time() - began

    def sent(self, now: float) -> list[tuple[bytes, Message]]:
        """Settle; returns the messages to peers."""
        began = time.thread_time()
        effects = self.settle(now)
        self.spent += time.thread_time() - began
        return [(effect.to, effect.message) for effect in effects if isinstance(effect, Send)]

    def submit(self, tasks: Sequence[int], now: float, graph: Sequence[Sequence[int]] = ()) -> None:
        """The client submits tasks; `graph` has the positions that each needs."""
        for at in range(0, len(tasks), BATCH):
            part = tasks[at : at + BATCH]
            needs = graph[at : at + BATCH]
            columns = {}
            if graph:
                columns = {
                    "dependents": [place for place, found in enumerate(needs) for _ in found],
                    "needs": [FIRST + need for found in needs for need in found],
                    "consumers": [self._consumers[place] for place in range(at, at + len(part))],
                    "intermediate": [place for place in range(len(part)) if self._consumers[at + place]],
                    "graph": FIRST,
                    "graph_size": len(graph),
                }
            bodies = Payloads([b"body"] if not at else [])
            defined = {"functions": (FUNCTION,), "names": ("f",), "bodies": bodies} if not at else {}
            self.hear(CLIENT, Submit((Group(FUNCTION),), part, Payloads([CALL] * len(part)), **columns, **defined), now)

    def submit_graph(self, graph: Sequence[Sequence[int]], now: float) -> None:
        """The client submits a graph; results of nodes that others need are for these only."""
        self._consumers = [0] * len(graph)
        for needs in graph:
            for need in needs:
                self._consumers[need] += 1
        self.submit(range(FIRST, FIRST + len(graph)), now, graph)

    def end(self, peer: bytes, run: Run, now: float) -> None:
        """An agent reports that these runs have ended."""
        count = len(run.tasks)
        runs = range(run.first_run, run.first_run + count)
        profiles = Profile(1, 0, 0, 0, 0, 1).packed() * count
        done = Done(run.tasks, (0,) * count, Payloads([RESULT] * count), runs, profiles=profiles, agents=("host",))
        self.hear(peer, done, now)

    def finish(self, now: float) -> int:
        """Agents end whatever they are given, and the client releases what it gets; returns how many it got."""
        got = 0
        while found := self.sent(now):
            now += 0.01
            for to, message in found:
                if isinstance(message, Run):
                    self.end(to, message, now)
                elif isinstance(message, Done):
                    got += len(message.tasks)
                    self.hear(to, Release(message.tasks), now)
        return got


def layers(depth: int, width: int) -> list[tuple[int, ...]]:
    """A graph: each node needs three of the layer before."""
    draw = random.Random(7)
    needs: list[tuple[int, ...]] = [()] * width
    for layer in range(1, depth):
        needs += [tuple(draw.sample(range((layer - 1) * width, layer * width), 3)) for _ in range(width)]
    return needs


RUNNING, KEPT = 16, 20
"""Tasks that run on each host when the scheduler starts again, and outcomes that the host keeps."""


class Restart:
    """A scheduler that knows nothing meets its peers again; each host runs some tasks and keeps some outcomes."""

    def __init__(self, hosts: int, tasks: int) -> None:
        self.core, self.wanted = LoneCore(hosts, known=EARLIER), range(FIRST, FIRST + tasks)
        self.hosts = [agent(number) for number in range(hosts)]
        self.received = self.sent = 0
        self.given: set[bytes] = set()
        """Hosts with a task that waited."""

    def work_goes_on(self) -> tuple[float, float, int, int]:
        """Virtual and CPU seconds until every host has been given a task, and the messages of that time, in and out."""
        began = now = 0.1
        self.core.join(Role.CLIENT, CLIENT, known=EARLIER, session=SESSION)
        for some in pieces_of(self.wanted):
            self._say(CLIENT, Reconcile(wanted=some), now)
        for number, host in enumerate(self.hosts):
            run, kept = self._runs_of(number)
            self._say(host, Reconcile(run.tasks, range(run.first_run, run.first_run + RUNNING), finished=kept), now)
        while len(self.given) < len(self.hosts):
            self._answer(now)
            if self.core.due() is None:
                for number, host in enumerate(self.hosts):
                    self._end(host, self._runs_of(number)[0], now)
            now = max(now + 0.001, self.core.due() or now)
        return now - began, self.core.spent, self.received, self.sent

    def _runs_of(self, number: int) -> tuple[Run, range]:
        """What a host runs since before the restart, and the tasks of which it keeps outcomes."""
        first = number * (RUNNING + KEPT)
        tasks, kept = self.wanted[first : first + RUNNING], self.wanted[first + RUNNING : first + RUNNING + KEPT]
        return Run((EARLIER << 40) + first, (), tasks, Payloads([])), kept

    def _say(self, peer: bytes, message: Message, now: float) -> None:
        self.core.hear(peer, message, now)
        self.received += 1

    def _end(self, host: bytes, run: Run, now: float) -> None:
        self.core.end(host, run, now)
        self.received += 1

    def _answer(self, now: float) -> None:
        """Take a turn, and answer as peers do."""
        for to, message in self.core.sent(now):
            self.sent += 1
            if isinstance(message, NeedTasks):
                self.core.submit(message.tasks, now)
                self.received += -(-len(message.tasks) // BATCH)
            elif isinstance(message, Run):
                self.given.add(to)
            elif isinstance(message, Resend):
                self._end(to, Run((EARLIER << 40) + message.tasks[0] - FIRST, (), message.tasks, Payloads([])), now)
