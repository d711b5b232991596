"""How good schedules are: the makespan of real cores, in virtual time, divided by that of an ideal list schedule.

python bench/scheduling/quality.py                  all cases
python bench/scheduling/quality.py bimodal flood    those whose names contain one of the words

Scheduler, agents and clients are real; workers are simulated, and messages take the time that they take on a host.
The ideal schedule is greedy and has no overhead: an idle worker takes the oldest task whose inputs are there.
"""

import argparse
import heapq
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from scaler_client.core.core import ClientCore
from scaler_io.service.server_loop import ServiceTurn
from scaler_protocol.messages import Group
from scaler_scheduler.core.core import SchedulerCore
from scaler_worker.agent.core.core import AgentCore
from world.callers import WorldFuture
from world.cluster import World
from world.plans import FUNCTION, Plan

HOSTS, WORKERS = 100, 16
LONGEST_SECONDS = 100_000.0
"""Virtual seconds after which a case has failed."""
Needs = Sequence[Sequence[int]]


def list_schedule(durations: Sequence[float], workers: Sequence[float], needs: Needs = ()) -> float:
    """The makespan of the ideal schedule, in seconds. `workers`: how many times longer a task takes on each."""
    missing = [len(needs[at]) if needs else 0 for at in range(len(durations))]
    consumers: list[list[int]] = [[] for _ in durations]
    for at, taken in enumerate(needs):
        for need in taken:
            consumers[need].append(at)
    ready = deque(at for at in range(len(durations)) if not missing[at])
    idle = [(slowness, number) for number, slowness in enumerate(workers)]
    heapq.heapify(idle)  # the fastest idle worker first
    running: list[tuple[float, int, tuple[float, int]]] = []
    now = 0.0
    while ready or running:
        while ready and idle:
            worker, at = heapq.heappop(idle), ready.popleft()
            heapq.heappush(running, (now + durations[at] * worker[0], at, worker))
        now, at, worker = heapq.heappop(running)
        heapq.heappush(idle, worker)
        for consumer in consumers[at]:
            missing[consumer] -= 1
            if not missing[consumer]:
                ready.append(consumer)
    return now


def cluster(hosts: int = HOSTS, workers: int = WORKERS, *, clients: int = 1, slowness: Sequence[float] = ()) -> World:
    """A cluster that is idle. `slowness`: how many times longer tasks take on each host, 1 if left out."""
    world = World(seed=1, hosts=[workers] * hosts, clients=clients)
    for host, factor in zip(world.hosts, slowness, strict=False):
        host.slowness = factor
    return world


def makespan(world: World, submitted: float) -> float:
    """Let all tasks end; seconds from this moment of the submission to the end of the last run."""
    world.finish(LONGEST_SECONDS)
    return max(execution.ended or 0.0 for execution in world.history) - submitted


def batch(durations: Sequence[float], slowness: Sequence[float] = ()) -> str:
    """One client submits tasks of these durations."""
    world = cluster(slowness=slowness)
    submitted = world.now
    world.client.submit(*map(Plan, durations))
    workers = [factor for factor in (slowness or [1.0] * HOSTS) for _ in range(WORKERS)]
    return f"{makespan(world, submitted) / list_schedule(durations, workers):.2f}"


def saturated(durations: Sequence[float]) -> str:
    """The same while the scheduler is busy all the time, as far as it knows: a turn takes no virtual time."""
    with mock.patch.object(ServiceTurn, "_measure"):
        world = cluster()
        world.scheduler.hub.busy = 1.0
        world.scheduler.core.note_busy(1.0)
        world.run(world.scheduler.hub.heartbeat_seconds)
        submitted = world.now
        world.client.submit(*map(Plan, durations))
        return f"{makespan(world, submitted) / list_schedule(durations, [1.0] * HOSTS * WORKERS):.2f}"


def graph(needs: Needs, seconds: float = 0.0005) -> str:
    """One client gets the nodes of a graph that nobody needs."""
    world = cluster()
    wanted = set(range(len(needs))).difference(*needs)
    submitted = world.now
    world.client.graph([Plan(seconds)] * len(needs), needs, sorted(wanted), 1000)
    return f"{makespan(world, submitted) / list_schedule([seconds] * len(needs), [1.0] * HOSTS * WORKERS, needs):.2f}"


def log_normal(count: int, longest: float = 1e9) -> list[float]:
    """Durations with a median of 100 ms and a sigma of 1.5."""
    draw = random.Random(7)
    return [min(longest, draw.lognormvariate(-2.302585, 1.5)) for _ in range(count)]


def bimodal(count: int, long: float) -> list[float]:
    """1 ms, and 1 s for this share."""
    draw = random.Random(7)
    return [1.0 if draw.random() < long else 0.001 for _ in range(count)]


def chains(count: int = 1600, length: int = 10) -> Needs:
    """Nodes that each need the one before, in many chains side by side."""
    return [() if at % length == 0 else (at - 1,) for at in range(count * length)]


def reduction(leaves: int = 8192) -> Needs:
    """A binary tree: each node needs two."""
    needs: list[tuple[int, ...]] = [()] * leaves
    level = list(range(leaves))
    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=True))
        level = list(range(len(needs), len(needs) + len(pairs)))
        needs += pairs
    return needs


def shuffle(width: int = 64) -> Needs:
    """`width` sources, width² parts, each of one source, and `width` nodes that need a part of each source."""
    parts = [(source,) for source in range(width) for _ in range(width)]
    joined = [tuple(width + source * width + at for source in range(width)) for at in range(width)]
    return [*[()] * width, *parts, *joined]


def layers(depth: int = 10, width: int = 800) -> Needs:
    """Each node needs three of the layer before."""
    draw = random.Random(7)
    needs: list[tuple[int, ...]] = [()] * width
    for layer in range(1, depth):
        needs += [tuple(draw.sample(range((layer - 1) * width, layer * width), 3)) for _ in range(width)]
    return needs


def hosts_that_join() -> str:
    """Seconds for 64 tasks of 1 s on two hosts of 4 workers, when two more join after 0.2 s; ideal are 4.2 s."""
    world = cluster(2, 4)
    submitted = world.now
    world.client.submit(*[Plan(1.0)] * 64)
    world.run(0.2)
    for _ in range(2):
        world.add_host(4)
    return f"{makespan(world, submitted):.1f} s"


def single_tasks(priority: int) -> str:
    """Median latency of a second client's tasks of 1 ms beside a flood of tasks of about 10 ms, on 10 hosts.

    If all tasks of the flood took the same time, all workers would end at the same moments, once in 10 ms.
    """
    world, draw = cluster(10, clients=2), random.Random(7)
    flood = world.clients[0].submit(*[Plan(draw.uniform(0.008, 0.012)) for _ in range(160_000)])
    world.run(1.0)
    latencies = []
    for _ in range(21):
        began = world.now
        (future,) = world.clients[1].submit(Plan(0.001), group=Group(FUNCTION, priority=priority))
        wait_for(world, future)
        latencies.append(world.now - began)
        world.run(0.0137)
    assert not flood[-1].outcome()
    return f"{statistics.median(latencies) * 1000:.1f} ms"


def wait_for(world: World, future: WorldFuture) -> None:
    """Let this one end."""
    assert world.network.run_until(lambda: future.outcome() is not None, LONGEST_SECONDS)


def share_of_time() -> str:
    """Share of worker time of a client with tasks of 10 ms beside one with tasks of 1 s, on 10 hosts, in 20 s."""
    world = cluster(10, clients=2)
    world.clients[1].submit(*[Plan(1.0)] * 10_000)
    world.clients[0].submit(*[Plan(0.01)] * 400_000)
    world.run(20.0)
    worked = {0.01: 0.0, 1.0: 0.0}
    for execution in world.history:
        worked[execution.plan.seconds] += (execution.ended or world.now) - execution.began
    return f"{worked[0.01] / sum(worked.values()):.1%}"


def old_tasks() -> str:
    """Tasks of priority 0 that run within 90 s while 4 workers have more tasks of priority 1 than they can run."""
    world = cluster(1, 4, clients=2)
    old = {future.task_id for future in world.clients[1].submit(*[Plan(0.01)] * 100)}
    for _ in range(900):
        world.clients[0].submit(*[Plan(0.01)] * 45, group=Group(FUNCTION, priority=1))
        world.run(0.1)
    return str(sum(execution.task in old and execution.ended is not None for execution in world.history))


def slow_half(seconds: float, count: int) -> str:
    """Half of the hosts take four times as long."""
    return batch([seconds] * count, [1.0, 4.0] * (HOSTS // 2))


def slow_host(*, speculate: bool) -> str:
    """Seconds for 5,000 tasks of 1 s that take 10 s on one of the hosts; without that host ideal are 4 s."""
    world = cluster(slowness=[10.0])
    submitted = world.now
    world.client.submit(*[Plan(1.0)] * 5_000, group=Group(FUNCTION, speculate=speculate))
    return f"{makespan(world, submitted):.1f} s"


CASES: dict[str, tuple[str, Callable[[], str]]] = {
    "log-normal, 10,000 tasks": ("1.03", lambda: batch(log_normal(10_000))),
    "log-normal up to 2 s, 10,000 tasks": ("1.05", lambda: batch(log_normal(10_000, 2.0))),
    "log-normal up to 2 s, 5,000 tasks": ("1.10", lambda: batch(log_normal(5_000, 2.0))),
    "bimodal, 5 % of 20,000 tasks are long": ("1.10", lambda: batch(bimodal(20_000, 0.05))),
    "bimodal, 50 % of 5,000 tasks are long": ("1.10", lambda: batch(bimodal(5_000, 0.5))),
    "log-normal up to 2 s, 10,000 tasks, a busy scheduler": ("1.05", lambda: saturated(log_normal(10_000, 2.0))),
    "constant 1 ms, 100,000 tasks, a busy scheduler": ("1.10", lambda: saturated([0.001] * 100_000)),
    "bimodal, 50 % of 5,000 tasks are long, a busy scheduler": ("1.10", lambda: saturated(bimodal(5_000, 0.5))),
    "constant 1 ms, 100,000 tasks": ("1.10", lambda: batch([0.001] * 100_000)),
    "constant 10 ms, 100,000 tasks": ("1.02", lambda: batch([0.01] * 100_000)),
    "chains": ("1.30", lambda: graph(chains())),
    "reduction": ("1.30", lambda: graph(reduction())),
    "shuffle": ("1.30", lambda: graph(shuffle())),
    "layers": ("1.30", lambda: graph(layers())),
    "half of the hosts slow, 1 ms, 100,000 tasks": ("1.15", lambda: slow_half(0.001, 100_000)),
    "half of the hosts slow, 10 ms, 50,000 tasks": ("1.05", lambda: slow_half(0.01, 50_000)),
    "half of the hosts slow, 100 ms, 20,000 tasks": ("1.02", lambda: slow_half(0.1, 20_000)),
    "one host ten times slower, 5,000 tasks of 1 s": ("10.5 s", lambda: slow_host(speculate=False)),
    "one host ten times slower, 5,000 tasks of 1 s, speculate": ("4.5 s", lambda: slow_host(speculate=True)),
    "two hosts join": ("5.3 s", hosts_that_join),
    "one task beside a flood": ("12 ms", lambda: single_tasks(0)),
    "one task beside a flood, priority 5": ("5 ms", lambda: single_tasks(5)),
    "share of time of short tasks beside long ones": ("45 %", share_of_time),
    "priority 0 beside priority 1, tasks in 90 s": ("all 100", old_tasks),
}
"""Name, what is needed, and the case."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    words = parser.parse_args().words
    for core in (SchedulerCore, AgentCore, ClientCore):
        core.check = lambda self: None  # type: ignore[attr-defined]  # these take most of the time, and tests make them
    print("| case | needed | measured | CPU seconds |\n|---|---|---|---|")
    for name, (needed, case) in CASES.items():
        if not words or any(word in name for word in words):
            began = time.process_time()
            print(f"| {name} | {needed} | {case()} | {time.process_time() - began:.0f} |", flush=True)


if __name__ == "__main__":
    main()
