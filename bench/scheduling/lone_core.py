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
from scaler_protocol.messages import Done, Group, Message, NeedTasks, Reconcile, Release, Resend, Run, Submit
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import PROFILE
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
        profiles = PROFILE.pack(1, 0, 0, 0, 0, 1) * count
        done = Done(run.tasks, (0,) * count, Payloads([RESULT] * count), runs, profiles=profiles, agent="host")
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


def restart(hosts: int, tasks: int) -> tuple[float, float, int, int]:
    """A scheduler that knows nothing meets its peers again, which have `tasks` tasks, of which 16 run on each host.

    Returns virtual and CPU seconds until every host has been given a task that waited, and the messages received and
    sent until then.
    """
    core = LoneCore(hosts, known=EARLIER)
    core.join(Role.CLIENT, CLIENT, known=EARLIER, session=SESSION)
    wanted = range(FIRST, FIRST + tasks)
    for number in range(hosts):
        mine = wanted[16 * number : 16 * number + 16]
        runs = range((EARLIER << 40) + 16 * number, (EARLIER << 40) + 16 * number + 16)
        core.hear(agent(number), Reconcile(mine, runs), 0.1)
    core.hear(CLIENT, Reconcile(wanted=wanted), 0.1)
    now, given, received, written, batch = 0.1, set[bytes](), hosts + 1, 0, BATCH
    while len(given) < hosts:
        for to, message in core.sent(now):
            written += 1
            if isinstance(message, NeedTasks):
                core.submit(message.tasks, now)
                received += -(-len(message.tasks) // batch)
            elif isinstance(message, Run):
                given.add(to)
            elif isinstance(message, Resend):
                raise AssertionError("no host keeps an outcome")
        if len(given) < hosts:
            for number in range(hosts):
                if now > 5.0 and not given:
                    first = (EARLIER << 40) + 16 * number
                    core.end(agent(number), Run(first, (), wanted[16 * number : 16 * number + 16], Payloads([])), now)
                    received += 1
            now = max(now + 0.001, core.due() or now)
    return now - 0.1, core.spent, received, written
