"""What scheduling costs: CPU of a real scheduler service, with simulated hosts and clients in virtual time.

python bench/scheduling/cost.py                          all cases
python bench/scheduling/cost.py idle "tasks of 1 s"      those whose names contain one of the words
python bench/scheduling/cost.py idle --against DIR       this checkout and the one in DIR, in turns

Core, hub, links and codec are real, and sockets where the case says so. Only CPU time of the service is counted, so
other programs disturb little. Each figure is the median of `--turns` runs, each in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster import FUNCTION, Cluster
from lone_core import CLIENT, FIRST, SESSION, LoneCore, Restart, agent, layers
from relayed import RelayedCluster
from sockets import SocketCluster

from scaler_io.links.events import PeerLost
from scaler_protocol import monitoring
from scaler_protocol.codec import encode
from scaler_protocol.handshake import Role
from scaler_protocol.messages import Group, Run
from scaler_scheduler.core.snapshot import ProcessStats
from scaler_scheduler.monitoring.publisher import EVENT_SECONDS, STATUS_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SECOND, SHORT, NOTHING = (0.9, 1.1), (0.009, 0.011), (0.0, 0.0)
"""Durations of tasks: from, to."""
COLLECTOR_THRESHOLDS = (100_000, 20, 100)
"""Those that `scaler_io.service.event_loops` sets in every service."""
Figures = list[float]
_STATS = ProcessStats("", 1.0, 1.0, 0.1, 1)


def idle(hosts: int) -> Figures:
    """Share of a core in % for heartbeats, reports and whatever else happens without tasks."""
    cluster = Cluster(hosts, 16)
    return [cluster.run(10.0) / 10 * 100]


def idle_over_sockets(hosts: int) -> Figures:
    """The same with ZeroMQ: the service's thread, ZeroMQ's threads."""
    cluster = SocketCluster(hosts, 16, NOTHING)
    spent = cluster.run(5.0)
    cluster.close()
    return [spent["turns"] / 5 * 100, spent["threads"] / 5 * 100]


def per_task(hosts: int, seconds: tuple[float, float], tasks: int) -> Figures:
    """CPU microseconds per task. Hosts are told that the scheduler is busy, as it is with so many."""
    cluster = Cluster(hosts, 16, seconds)
    cluster.service.saturate()
    cluster.run(cluster.service.hub.heartbeat_seconds)
    caller = cluster.caller()
    waiting = 20 * hosts
    cluster.work(caller, tasks, waiting)
    return [cluster.work(caller, tasks, waiting) / tasks * 1e6]


def relayed(relays: int, hosts: int, workers: int, tasks: int) -> Figures:
    """CPU microseconds per task of 1 s: of the scheduler, and of all relays."""
    cluster = RelayedCluster(relays, hosts, workers, SECOND)
    cluster.keep_busy(relays * hosts * workers)
    before = cluster.relays_spent
    spent = cluster.keep_busy(tasks)
    return [spent / tasks * 1e6, (cluster.relays_spent - before) / tasks * 1e6]


class HeardCluster(Cluster):
    """A cluster whose service publishes what it does while `is_heard`, as to one monitor, but into no socket."""

    is_heard = False
    published = 0
    """Bytes."""
    _events_at = _status_at = _left_at = 0.0

    def hear(self) -> None:
        """A monitor subscribes. What is due once a second is due after a second of being heard."""
        self._events_at += self.now - self._left_at
        self._status_at += self.now - self._left_at
        self._status = self.service.core.snapshot(_STATS, self.now, first=True)
        self.service.core.start_events(self.now)
        self.service.core.take_events(0.0)
        self.is_heard = True

    def leave(self) -> None:
        """It leaves."""
        self.service.core.stop_events()
        self.is_heard = False
        self._left_at = self.now

    def _step(self) -> None:
        super()._step()
        if self.is_heard and self.now >= self._events_at:
            began = time.thread_time()
            self._publish()
            self.service.spent += time.thread_time() - began

    def _publish(self) -> None:
        self._events_at = self.now + EVENT_SECONDS
        if (events := self.service.core.take_events(0.0)) is not None:
            self.published += sum(map(len, encode(events)))
        if self.now >= self._status_at:
            self._status_at = self.now + STATUS_SECONDS
            before, self._status = self._status, self.service.core.snapshot(_STATS, self.now)
            self.published += sum(map(len, encode(monitoring.changes(self._status, before))))


def listener(hosts: int, seconds: tuple[float, float], tasks: int, turns: int = 12) -> Figures:
    """CPU microseconds per task without a monitor; percent more with one; its bytes per task.

    Tasks without and with a monitor take turns, in random order, since hosts report every other second, many of them
    at once; what counts is the median of what one turn takes more than the other.
    """
    cluster = HeardCluster(hosts, 16, seconds)
    caller = cluster.caller()
    waiting = 20 * hosts
    cluster.work(caller, 4 * tasks, waiting)
    spent: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(turns):
        for is_heard in random.sample((False, True), 2):
            if is_heard:
                cluster.hear()
            spent[is_heard].append(cluster.work(caller, tasks, waiting))
            if is_heard:
                cluster.leave()
    without, heard = spent[False], spent[True]
    shares = [more / less - 1 for more, less in zip(heard, without, strict=True)]
    return [
        statistics.median(without) / tasks * 1e6, 100 * statistics.median(shares), cluster.published / turns / tasks,
    ]  # fmt: skip


def rate(hosts: int, seconds: tuple[float, float], tasks: int) -> Figures:
    """Tasks per CPU second of the service's thread with ZeroMQ; CPU microseconds per task of ZeroMQ's threads.

    Hosts are told that the scheduler is busy, as it is at this rate.
    """
    cluster = SocketCluster(hosts, 16, seconds)
    cluster.service.saturate()
    cluster.run(cluster.service.hub.heartbeat_seconds)
    cluster.work(tasks, 20_000)
    spent = cluster.work(tasks, 20_000)
    cluster.close()
    return [tasks / spent["turns"], spent["threads"] / tasks * 1e6]


def settled(hosts: int, seconds: tuple[float, float]) -> Figures:
    """The load, in % of its time, at which a scheduler settles that measures it; outcomes per message; workers in %.

    All in the last 10 of 40 virtual seconds; of the workers those that are at work.
    """
    cluster = Cluster(hosts, 16, seconds, is_timed=True)
    caller, received = cluster.caller(), cluster.service.hub.received
    for until in (cluster.now + 30, cluster.now + 40):
        spent, ended, messages, began = cluster.service.spent, caller.ended, received["Done"], cluster.now
        while cluster.now < until:
            cluster.work(caller, hosts, 20 * hosts)
    ended, took = caller.ended - ended, cluster.now - began
    at_work = ended * sum(seconds) / 2 / (16 * hosts * took)
    return [(cluster.service.spent - spent) / took * 100, ended / (received["Done"] - messages), at_work * 100]


def kinds(groups: Sequence[Group], tasks: int = 20_000) -> Figures:
    """CPU microseconds per task of 10 ms on 100 hosts: all of one kind, and more than that if of many kinds."""
    spent = []
    for each in (groups[:1], groups):
        cluster = Cluster(100, 16, SHORT)
        caller = cluster.caller(each)
        cluster.work(caller, tasks, tasks)
        spent.append(cluster.work(caller, tasks, tasks) / tasks * 1e6)
    return [spent[0], spent[1] - spent[0]]


def priorities(count: int) -> list[Group]:
    """Groups of so many priorities."""
    return [Group(FUNCTION, priority=number) for number in range(count)]


def requirements(count: int) -> list[Group]:
    """Groups with so many requirements, all of which every host meets."""
    return [Group(FUNCTION, ("linux",), (1 + number,)) for number in range(count)]


def leaving(role: int, others: int = 10_000, count: int = 100) -> Figures:
    """CPU milliseconds for a host or a session that leaves."""
    core = LoneCore(others + count if role == Role.AGENT else 100)
    identities = [agent(number) for number in range(count)]
    if role == Role.CLIENT:
        for number in range(1, others + count + 1):
            core.join(role, b"c%015d" % number, session=number)
        identities = [b"c%015d" % number for number in range(1, count + 1)]
    core.settle(1.0)
    began = time.thread_time()
    for number, identity in enumerate(identities):
        core.handle(identity, PeerLost("it said goodbye", farewell=True), 2.0 + number / 50)
        core.settle(2.0 + number / 50)
    return [(time.thread_time() - began) / count * 1000]


def monitor(hosts: int, workers: int) -> Figures:
    """CPU milliseconds and megabytes of a status for monitors, after the first one."""
    cluster = Cluster(hosts, workers)
    cluster.service.core.start_events(cluster.now)
    cluster.run(10.0)
    changes = getattr(monitoring, "changes", lambda status, before: status)
    core, stats = cluster.service.core, ProcessStats("", 1.0, 1.0, 0.1, 1)
    before, size = core.snapshot(stats, cluster.now), 0
    began = time.thread_time()
    for number in range(5):
        status = core.snapshot(stats, cluster.now + number)
        size += sum(map(len, encode(changes(status, before))))
        before = status
    return [(time.thread_time() - began) / 5 * 1000, size / 5e6]


def memory(tasks: int = 200_000) -> Figures:
    """Bytes that a waiting, an assigned and an ended task take in the scheduler."""
    figures = []
    for steps in range(1, 4):
        core = LoneCore(100 if steps > 1 else 0, 2000)
        core.join(Role.CLIENT, CLIENT, session=SESSION)
        tracemalloc.start()
        core.submit(range(FIRST, FIRST + tasks), 1.0)
        found = core.sent(1.0)
        if steps == 3:
            for to, message in found:
                if isinstance(message, Run):
                    core.end(to, message, 1.1)
            core.settle(1.1)
        found.clear()
        gc.collect()
        figures.append(tracemalloc.get_traced_memory()[0] / tasks)
        tracemalloc.stop()
    return figures


def graph(depth: int, width: int) -> Figures:
    """CPU microseconds per node in the core, and bytes per node that waits, of a graph in which each needs three."""
    needs = layers(depth, width)
    figures = []
    for is_traced in (False, True):
        core = LoneCore(0 if is_traced else 100)
        core.join(Role.CLIENT, CLIENT, session=SESSION)
        if is_traced:
            tracemalloc.start()
        core.submit_graph(needs, 1.0)
        if is_traced:
            core.settle(1.0)
            gc.collect()
            figures.append(tracemalloc.get_traced_memory()[0] / len(needs))
            tracemalloc.stop()
        else:
            assert core.finish(1.0) >= width
            figures.append(core.spent / len(needs) * 1e6)
    return figures


CASES: dict[str, tuple[str, str, Callable[[], Figures]]] = {
    "idle, 10,000 hosts": ("10 %", "{:.1f} %", lambda: idle(10_000)),
    "idle, 1,000 hosts, ZeroMQ: service, ZeroMQ": ("1 %", "{:.1f} %, {:.1f} %", lambda: idle_over_sockets(1_000)),
    "1,000 hosts x 16, tasks of 1 s, ZeroMQ: per CPU second, ZeroMQ": (
        "60,000", "{:,.0f}, {:.0f} us", lambda: rate(1_000, SECOND, 30_000),
    ),
    "1,000 hosts x 16, tasks of 10 ms, ZeroMQ: per CPU second, ZeroMQ": (
        "250,000", "{:,.0f}, {:.0f} us", lambda: rate(1_000, SHORT, 100_000),
    ),
    "1,000 hosts x 16, tasks of 0 s, ZeroMQ: per CPU second, ZeroMQ": (
        "300,000", "{:,.0f}, {:.0f} us", lambda: rate(1_000, NOTHING, 200_000),
    ),
    "1,000 hosts x 16, tasks of 1 s: load at which it settles": (
        "-", "{:.0f} %, {:.1f} outcomes per message, {:.0f} % of workers", lambda: settled(1_000, SECOND),
    ),
    "10,000 hosts x 16, tasks of 0 s": ("2.5 us", "{:.1f} us", lambda: per_task(10_000, NOTHING, 400_000)),
    "10,000 hosts x 16, tasks of 1 s": ("8 us", "{:.1f} us", lambda: per_task(10_000, SECOND, 320_000)),
    "10,000 hosts x 16 behind 40 relays, tasks of 1 s: scheduler, relays": (
        "8 us", "{:.1f} us, {:.1f} us", lambda: relayed(40, 250, 16, 320_000),
    ),
    "10,000 hosts x 64 behind 40 relays, tasks of 1 s: scheduler, relays": (
        "-", "{:.1f} us, {:.1f} us", lambda: relayed(40, 250, 64, 1_280_000),
    ),
    "100 priorities": ("+ 0.5 us", "{:.1f} + {:.1f} us", lambda: kinds(priorities(100))),
    "2,000 priorities": ("+ 0.5 us", "{:.1f} + {:.1f} us", lambda: kinds(priorities(2_000))),
    "100 requirements": ("3 us", "{:.1f} + {:.1f} us", lambda: kinds(requirements(100))),
    "2,000 requirements": ("4 us", "{:.1f} + {:.1f} us", lambda: kinds(requirements(2_000))),
    "a host leaves, 10,000 others": ("0.2 ms", "{:.2f} ms", lambda: leaving(Role.AGENT)),
    "a session leaves, 10,000 others": ("0.2 ms", "{:.2f} ms", lambda: leaving(Role.CLIENT)),
    "1,000 hosts x 16, tasks of 1 s: a monitor": (
        "5 %", "{:.1f} us, {:+.1f} %, {:.0f} bytes", lambda: listener(1_000, SECOND, 32_000),
    ),
    "monitor, 3,000 hosts x 64": ("20 ms, 1 MB", "{:.0f} ms, {:.1f} MB", lambda: monitor(3_000, 64)),
    "bytes per waiting, assigned, ended task": ("200, 300, 150", "{:.0f}, {:.0f}, {:.0f}", memory),
    "graph of 200,000 nodes, per node": ("7 us, 400 bytes", "{:.1f} us, {:.0f} bytes", lambda: graph(200, 1_000)),
    "restart, 1,000 hosts, 1,000,000 tasks": (
        "5 s", "{:.1f} s + {:.1f} s CPU, {:,.0f} messages in, {:,.0f} out",
        lambda: list(Restart(1_000, 1_000_000).work_goes_on()),
    ),
}  # fmt: skip
"""Name, what is needed, how figures are shown, and the case."""


def run(name: str, checkout: Path) -> Figures:
    """The figures of one case with the packages of a checkout, in a new process."""
    packages = os.pathsep.join(str(path) for path in sorted(checkout.glob("packages/*/src")))
    command = [sys.executable, __file__, "--case", name]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": packages}, stdout=subprocess.PIPE, check=False)
    figures: Figures = json.loads(done.stdout) if not done.returncode else []
    return figures


def median(runs: Sequence[Figures], shown: str) -> str:
    """The medians of the figures of some runs, as text; runs that failed are left out."""
    if not (runs := [figures for figures in runs if figures]):
        return "failed"
    return shown.format(*map(statistics.median, zip(*runs, strict=True)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout, measured in turns with this one")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        gc.set_threshold(*COLLECTOR_THRESHOLDS)
        print(json.dumps(CASES[arguments.case][2]()))
        return
    checkouts = [*([arguments.against] if arguments.against else []), ROOT]
    titles = ["before", "now"][-len(checkouts) :]
    print(f"| case | needed | {' | '.join(titles)} |\n|---|---|{'---|' * len(titles)}")
    for name, (needed, shown, _) in CASES.items():
        if not arguments.words or any(word in name for word in arguments.words):
            runs = [[run(name, checkout) for checkout in checkouts] for _ in range(arguments.turns)]
            cells = [median(figures, shown) for figures in zip(*runs, strict=True)]
            print(f"| {name} | {needed} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
