"""The cases: the same code for every peer, through the interface of `peers.BenchPeer`.

Each function returns figures; what a figure means stands in docs/benchmarks.md. Nothing here imports an engine, and
next to nothing else, because `startup` measures imports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import data
import endurance
import footprint
import graphs
import tasks
from measures import Figures, cpu_spent, ready

if TYPE_CHECKING:
    from peers import BenchPeer

RATE = "tasks/s"
MICROSECONDS = "us"


@dataclass(frozen=True)
class BenchCase:
    """One case: how it runs and how its figures are read."""

    run: Callable[[BenchPeer, int, bool], Figures]
    """Takes the started peer, the number of workers, and whether to be quick."""

    main: dict[str, str]
    """The figures that the table shows, each with its unit."""

    limit_seconds: float = 180
    n_workers: int | None = None
    """A number of workers of its own, whatever --workers says."""

    needs: str | None = None
    """The ability a peer must have."""

    capabilities: tuple[str, ...] = ()
    """What all workers must offer."""

    starts_itself: bool = False
    """The case calls `start`, the runner does not."""


def _check(results: Sequence[Any], expected: Sequence[Any]) -> None:
    """Raise AssertionError for a wrong result: a fast wrong answer does not count."""
    if list(results) != list(expected):
        raise AssertionError("the results are wrong")


def _rate(peer: BenchPeer, fns: Sequence[Callable[[int], int]], count: int) -> float:
    """Tasks per second when each is submitted, the functions taking turns, and then all are gathered."""
    turns = [fns[i % len(fns)] for i in range(count)]
    begin = time.perf_counter()
    futures = [peer.submit(fn, i) for i, fn in enumerate(turns)]
    results = peer.gather(futures)
    wall = time.perf_counter() - begin
    _check(results, range(count))
    return count / wall


def noop_submit(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """Many submits, then gather."""
    ready(peer, n_workers)
    count = 2_000 if quick else 20_000
    with cpu_spent(peer, count) as spent:
        rate = _rate(peer, [tasks.noop], count)
    return {"tasks": count, "rate": rate, **spent}


def noop_map(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """One map of many, every item a task; and where an engine's own map sends many items as one task, that too."""
    ready(peer, n_workers)
    count = 5_000 if quick else 10_000 if peer.slow else 100_000
    items = list(range(count))
    with cpu_spent(peer, count) as spent:
        rate = _map_rate(peer.map_singly, items)
    return {
        "tasks": count,
        "rate": rate,
        "rate_as_called": _map_rate(peer.map, items) if peer.chunks else rate,
        **spent,
    }


def _map_rate(map_items: Callable[..., list[Any]], items: list[int]) -> float:
    """Items per second of one map."""
    begin = time.perf_counter()
    results = map_items(tasks.noop, items)
    wall = time.perf_counter() - begin
    _check(results, items)
    return len(items) / wall


def two_functions(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """Plain submits and submits of two functions in turn, in one process, so that they can be compared."""
    ready(peer, n_workers)
    peer.gather([peer.submit(tasks.noop_too, i) for i in range(10)])
    count, rounds = (500, 2) if quick else (5_000, 2)
    plain, mixed = [], []
    for _ in range(rounds):
        plain.append(_rate(peer, [tasks.noop], count))
        mixed.append(_rate(peer, [tasks.noop, tasks.noop_too], count))
    # The mean of rates over equal counts is the harmonic one.
    plain_rate, rate = (rounds / sum(1 / each for each in rates) for rates in (plain, mixed))
    return {"tasks": count * rounds, "rate": rate, "plain_rate": plain_rate, "of_plain": rate / plain_rate}


CAPABILITIES = tuple(f"c{i}" for i in range(100))


def capability_sets(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """Plain submits, and submits that need one of a hundred capability sets in turn, in one process."""
    ready(peer, n_workers)
    count = 2_000 if quick else 20_000
    needs = [{name: -1} for name in CAPABILITIES]
    peer.gather([peer.submit_with(need, tasks.noop, 0) for need in needs])
    plain = _rate(peer, [tasks.noop], count)
    begin = time.perf_counter()
    futures = [peer.submit_with(needs[i % len(needs)], tasks.noop, i) for i in range(count)]
    results = peer.gather(futures)
    rate = count / (time.perf_counter() - begin)
    _check(results, range(count))
    return {"tasks": count, "rate": rate, "plain_rate": plain, "of_plain": rate / plain}


def latency(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """One task at a time."""
    ready(peer, n_workers)
    count = 300 if quick else 3_000
    times = []
    for i in range(count):
        begin = time.perf_counter()
        peer.result(peer.submit(tasks.noop, i))
        times.append((time.perf_counter() - begin) * 1e6)
    times.sort()
    return {"tasks": count, "p50": times[count // 2], "p99": times[count * 99 // 100], "worst": times[-1]}


def cpu_tasks(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """Tasks of one millisecond of CPU: what share of the workers' time did work."""
    ready(peer, n_workers)
    count = 500 if quick else 2_000
    begin = time.perf_counter()
    used = peer.gather([peer.submit(tasks.spin, 1.0) for _ in range(count)])
    wall = time.perf_counter() - begin
    ideal = sum(used) / 1e9 / n_workers
    return {"tasks": count, "wall_seconds": wall, "ideal_seconds": ideal, "efficiency": ideal / wall}


def sleep_balance(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """Short and long tasks in a fixed random order."""
    import random  # late: `startup` must not find it imported

    ready(peer, n_workers)
    count = 100 if quick else 400
    durations = [(0.001, 0.005, 0.050)[i % 3] for i in range(count)]
    random.Random(20_261).shuffle(durations)
    begin = time.perf_counter()
    peer.gather([peer.submit(tasks.pause, seconds) for seconds in durations])
    makespan = time.perf_counter() - begin
    ideal = sum(durations) / n_workers
    return {"tasks": count, "makespan_seconds": makespan, "ideal_seconds": ideal, "of_ideal": makespan / ideal}


def nested(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """fibonacci(10) by tasks that submit tasks; 6 when quick."""
    ready(peer, n_workers)
    peer.nested(1)
    n, expected = (6, 8) if quick else (10, 55)
    begin = time.perf_counter()
    answer = peer.nested(n)
    seconds = time.perf_counter() - begin
    _check([answer], [expected])
    return {"n": n, "seconds": seconds}


def graph_layers(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """100 layers of 100 nodes that take 2 or 3 of the layer before; a tenth of it when quick."""
    return _graph_rate(peer, n_workers, *graphs.layers(*((20, 50) if quick else (100, 100))))


def graph_reduction(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """4,096 leaves summed up by pairs; 256 when quick."""
    return _graph_rate(peer, n_workers, *graphs.reduction(256 if quick else 4096))


def _graph_rate(peer: BenchPeer, n_workers: int, graph: graphs.Graph, keys: list[str], calls: int) -> Figures:
    """Calls per second of one graph, after a small one."""
    ready(peer, n_workers)
    warm, top, _ = graphs.reduction(16)
    peer.graph(warm, top)
    begin = time.perf_counter()
    results = peer.graph(graph, keys)
    rate = calls / (time.perf_counter() - begin)
    expected = graphs.one_by_one(graph, lambda fn, values: fn(*values))
    _check(results, [expected[key] for key in keys])
    return {"tasks": calls, "rate": rate}


CASES: dict[str, BenchCase] = {
    "noop_submit": BenchCase(noop_submit, {"rate": RATE, "cpu_us_per_task": MICROSECONDS}),
    "noop_map": BenchCase(noop_map, {"rate": RATE, "rate_as_called": RATE, "cpu_us_per_task": MICROSECONDS}, 300),
    "two_functions": BenchCase(two_functions, {"rate": RATE, "of_plain": "ratio"}),
    "capability_sets": BenchCase(
        capability_sets, {"rate": RATE, "of_plain": "ratio"}, needs="capabilities", capabilities=CAPABILITIES
    ),
    "latency": BenchCase(latency, {"p50": MICROSECONDS, "p99": MICROSECONDS}),
    "cpu_tasks": BenchCase(cpu_tasks, {"efficiency": "ratio"}),
    "sleep_balance": BenchCase(sleep_balance, {"of_ideal": "ratio"}, n_workers=4),
    "nested": BenchCase(nested, {"seconds": "s"}, needs="nested"),
    "array_arguments": BenchCase(data.array_arguments, {"megabytes_per_second": "MB/s", "pss_added_megabytes": "MB"}),
    "bytes_arguments": BenchCase(data.bytes_arguments, {"megabytes_per_second": "MB/s", "pss_added_megabytes": "MB"}),
    "big_results": BenchCase(
        data.big_results,
        {"megabytes_per_second": "MB/s", "again_megabytes_per_second": "MB/s", "pss_added_megabytes": "MB"},
    ),
    "medium_results": BenchCase(data.medium_results, {"rate": RATE}),
    "graph_layers": BenchCase(graph_layers, {"rate": "nodes/s"}, needs="graphs"),
    "graph_reduction": BenchCase(graph_reduction, {"rate": "nodes/s"}, needs="graphs"),
    "startup": BenchCase(footprint.startup, {"seconds": "s"}, 60, starts_itself=True),
    "idle_memory": BenchCase(footprint.idle_memory, {"pss_megabytes": "MB"}, 60),
    "workers32": BenchCase(
        footprint.many_workers, {"pss_megabytes": "MB", "idle_cpu_percent": "% of a core"}, n_workers=32
    ),
    "backlog_noop": BenchCase(
        endurance.backlog_of_noops, {"queued": "tasks", "scheduler_peak_megabytes": "MB", "peak_megabytes": "MB"}, 240
    ),
    "backlog_bytes": BenchCase(
        endurance.backlog_of_bytes, {"queued": "tasks", "scheduler_peak_megabytes": "MB", "peak_megabytes": "MB"}, 240
    ),
    "sigkill": BenchCase(endurance.sigkill, {"right": "results", "last_seconds": "s"}, 90, n_workers=4),
}

ALIASES = {
    "data": ("array_arguments", "bytes_arguments", "big_results", "medium_results"),
    "backlog": ("backlog_noop", "backlog_bytes"),
    "cpu_per_task": ("noop_submit", "noop_map"),
}
