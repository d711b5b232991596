"""A real scheduler service above real relays, and simulated hosts below these, in virtual time.

python bench/scheduling/relayed.py                        40 relays with 250 hosts each, 16 workers per host
python bench/scheduling/relayed.py 40 250 64 --tasks N    with 64 workers per host, until N tasks of 1 s have ended

CPU of the scheduler and of the relays is counted apart.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from typing import Any

from cluster import REPORT_SECONDS, Caller, Cluster, Host, Memory, Peer

from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.links.uplink import LinkState
from scaler_io.service.server_loop import ServiceTurn
from scaler_protocol.handshake import Hello, Role
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.relay.core import PERMITTED, RelayCore, SendUp

SESSION_TASKS = 300_000
"""Tasks with calls of 40 bytes that the credit of a session allows, at least."""


class RelayService:
    """A relay as its process has it, but for its link to the scheduler. `spent`: CPU seconds in turns."""

    def __init__(self, hello: Hello, wire: Memory, send: Any) -> None:
        config = SchedulerConfig()
        self.core = RelayCore(hello, "tcp://scheduler:1", config)
        timeouts = PeerTimeouts(config.agent_grace_seconds, config.worker_timeout_seconds)
        hub = Hub(hello.incarnation, admit=self.core.admit, timeouts=lambda hello: timeouts, permitted=PERMITTED)
        perform = {SendUp: lambda effect: send(effect.message)}
        self._turns = ServiceTurn("Relay", wire, hub, self.core, lambda: None, lambda: 0.0, perform)
        self.spent = 0.0

    def turn(self, now: float) -> float:
        """Take a turn; returns when the next one is due."""
        began = time.thread_time()
        due = self._turns.turn(now)
        self.spent += time.thread_time() - began
        return due


class Below(Cluster):
    """The hosts of a relay."""

    def __init__(self, service: RelayService, wire: Memory, now: float) -> None:
        self.all, self._due, self._at = {}, [], {}
        self.now, self.wire, self.service, self._turn_at = now, wire, service, now  # type: ignore[assignment]

    def due(self) -> float:
        """When something of a host or of the relay is due."""
        return min(self._turn_at, self._due[0][0]) if self._due else self._turn_at


class Relay(Peer):
    """A relay with its hosts, as a peer of the scheduler."""

    def __init__(self, number: int, hosts: Sequence[Host], now: float) -> None:
        name = f"relay{number}"
        hello = Hello(
            Role.AGENT, b"r%015d" % number, number + 1, name=name, host=name, queue_size=1000,
            capability_names=("linux",), capability_values=(-1,), relay=True,
        )  # fmt: skip
        super().__init__(hello, now)
        wire = Memory()
        self.service = RelayService(hello, wire, self.uplink.send)
        self.below = Below(self.service, wire, now)
        self.hosts, self._status_at = hosts, now
        self.workers = sum(host.workers for host in hosts)

    def handle(self, message: Any, now: float) -> None:
        is_new = not self.service.core.is_connected
        began = time.thread_time()
        self.service.core.hear(message, now)
        self.service.spent += time.thread_time() - began
        if is_new and self.service.core.is_connected:
            for host in self.hosts:
                self.below.connect(host)
        self.below._turn_at = now

    def look(self, now: float) -> float:
        below = self.below
        below.now = now
        below.look(now)
        below.turns()
        if now >= self._status_at:
            self._status_at = now + max(REPORT_SECONDS, self.uplink.heartbeat_seconds)
            if self.uplink.state is LinkState.UP:
                began = time.thread_time()
                self.uplink.send(self.service.core.status())
                self.service.spent += time.thread_time() - began
        return min(self._status_at, below.due(), super().look(now))


class RelayedCluster(Cluster):
    """A scheduler, relays, and hosts below them."""

    def __init__(self, relays: int, hosts: int, workers: int, seconds: tuple[float, float]) -> None:
        """`hosts` are those of each relay."""
        super().__init__(0, workers)
        self._callers: list[Caller] = []
        seed = random.Random(7)
        self.relays = [
            Relay(
                number,
                [Host(number * hosts + at, workers, seconds, seed, self.now) for at in range(hosts)],
                self.now,
            )
            for number in range(relays)
        ]
        for relay in self.relays:
            self.connect(relay)
        self.run(3.0)

    def keep_busy(self, tasks: int) -> float:
        """Keep as many tasks waiting as half of the workers, until `tasks` more have ended; returns the CPU seconds.

        A client may have 32 MiB of calls unfinished: there are as many clients as that takes.
        """
        workers = sum(relay.workers for relay in self.relays)
        while len(self._callers) * SESSION_TASKS < 2 * workers:
            self._callers.append(self.caller())
        before, until = self.service.spent, self.ended + tasks
        while self.ended < until:
            lack = workers // 2 - self.service.core.state.waiting.count
            for caller in self._callers:
                if lack > 0 and (share := min(lack, SESSION_TASKS - caller.submitted + caller.ended)) > 0:
                    caller.submit(share)
                    self.flush(caller, self.now)
                    lack -= share
            self._step()
        return self.service.spent - before

    @property
    def ended(self) -> int:
        """Tasks whose clients have their outcomes."""
        return sum(caller.ended for caller in self._callers)

    @property
    def relays_spent(self) -> float:
        """CPU seconds of all relays."""
        return sum(relay.service.spent for relay in self.relays)


def main() -> None:
    """Run tasks of 1 s on all workers, and print what that took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, text in (("relays", 40, ""), ("hosts", 250, " of each relay"), ("workers", 16, " of each host")):
        parser.add_argument(name, type=int, nargs="?", default=default, help=f"{name}{text}")
    parser.add_argument("--tasks", type=int, help="measured ones; as many as workers if left out")
    given = parser.parse_args()
    cluster = RelayedCluster(given.relays, given.hosts, given.workers, (0.9, 1.1))
    workers = sum(agent.workers for agent in cluster.service.core.state.agents.values())
    assert workers == given.relays * given.hosts * given.workers, f"{workers} workers are there"
    cluster.keep_busy(workers)
    tasks = given.tasks or workers
    hub, before, began = cluster.service.hub, cluster.relays_spent, cluster.now
    received, sent = sum(hub.received.values()), sum(hub.sent.values())
    spent = cluster.keep_busy(tasks)
    relays, seconds = cluster.relays_spent - before, cluster.now - began
    received, sent = sum(hub.received.values()) - received, sum(hub.sent.values()) - sent
    print(f"{workers:,} workers: {tasks / seconds:,.0f} tasks/s in virtual time")
    print(f"scheduler: {spent / tasks * 1e6:.1f} us of CPU per task, {spent / seconds:.1f} cores")
    print(f"each of {given.relays} relays: {relays / tasks * 1e6:.1f} us, {relays / seconds / given.relays:.2f} cores")
    print(f"messages of the scheduler per task: {received / tasks:.3f} in, {sent / tasks:.3f} out")


if __name__ == "__main__":
    main()
