"""Cases about what an engine costs before it works: start-up, memory, CPU while idle."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import probe
import tasks
from measures import Figures, cpu_between, read_cpu, ready

if TYPE_CHECKING:
    from peers import BenchPeer


def startup(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """From a peer that is imported to the first result; the runner adds the time of the import."""
    begin = time.perf_counter()
    peer.start(n_workers)
    started = time.perf_counter()
    answer = peer.result(peer.submit(tasks.noop, 1))
    assert answer == 1
    end = time.perf_counter()
    return {"start_seconds": started - begin, "first_result_seconds": end - started}


def memory_by_role(peer: BenchPeer) -> Figures:
    """Proportional memory of all processes, the client process and this harness in it included."""
    grouped = peer.processes()
    by_role = {
        role: sum(probe.proportional_bytes(pid) for pid in pids) / probe.MEGABYTE for role, pids in grouped.items()
    }
    return {
        "pss_megabytes": sum(by_role.values()),
        "pss_megabytes_by_role": by_role,
        "processes": {role: len(pids) for role, pids in grouped.items()},
    }


def idle_memory(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """Memory a while after every worker has run a task."""
    ready(peer, n_workers)
    time.sleep(1 if quick else 3)
    return memory_by_role(peer)


def many_workers(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """Memory with many workers, and the CPU all processes use while there is nothing to do."""
    ready(peer, n_workers, 120)
    time.sleep(3)
    figures = memory_by_role(peer)
    grouped = peer.processes()
    seconds = 5 if quick else 30
    begin = time.perf_counter()
    before = read_cpu(grouped, own_last=True)
    time.sleep(seconds)
    after = read_cpu(grouped, own_last=False)
    wall = time.perf_counter() - begin
    by_role = {role: 100 * used / wall for role, used in cpu_between(before, after).items()}
    return {**figures, "idle_cpu_percent": sum(by_role.values()), "idle_cpu_percent_by_role": by_role}
