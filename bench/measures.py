"""What several cases share: a warm peer, and the CPU time of its processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import probe
import tasks

if TYPE_CHECKING:
    from peers import BenchPeer

Figures = dict[str, Any]


def ready(peer: BenchPeer, n_workers: int, limit_seconds: float = 60) -> int:
    """Run tasks until every worker has run one, as engines start workers late; returns how many answered."""
    assert peer.result(peer.submit(tasks.noop, 1)) == 1
    deadline = time.monotonic() + limit_seconds
    seconds = 0.02
    pids: set[int] = set()
    while len(pids) < n_workers and time.monotonic() < deadline:
        pids |= set(peer.gather([peer.submit(tasks.pause, seconds) for _ in range(2 * n_workers)]))
        seconds = min(0.5, seconds * 2)
    if len(pids) < n_workers:
        raise RuntimeError(f"only {len(pids)} of {n_workers} workers answered within {limit_seconds} s")
    peer.gather([peer.submit(tasks.noop, i) for i in range(10)])
    return len(pids)


def read_cpu(grouped: dict[str, list[int]], own_last: bool) -> dict[str, dict[int, float]]:
    """CPU seconds by role and pid; this process is read last or first, so that reading the others is not counted."""
    order = sorted(grouped.items(), key=lambda entry: (os.getpid() in entry[1]) == own_last)
    return {role: probe.cpu_by_pid(pids) for role, pids in order}


def cpu_between(before: dict[str, dict[int, float]], after: dict[str, dict[int, float]]) -> dict[str, float]:
    """CPU seconds by role. A process that was not there before counts from its birth, one that is gone not at all."""
    earlier = {pid: seconds for by_pid in before.values() for pid, seconds in by_pid.items()}
    return {
        role: sum(seconds - earlier.get(pid, 0.0) for pid, seconds in by_pid.items()) for role, by_pid in after.items()
    }


@contextmanager
def cpu_spent(peer: BenchPeer, count: int) -> Iterator[Figures]:
    """Fills the figures, when the block ends, with CPU microseconds per task: of all processes, and by role."""
    figures: Figures = {}
    before = read_cpu(peer.processes(), own_last=True)
    yield figures
    # This process is read before it looks for the others: looking costs milliseconds.
    own = probe.cpu_seconds(os.getpid())
    after = read_cpu(peer.processes(), own_last=False)
    if own is not None:
        after["client"][os.getpid()] = own
    by_role = {role: seconds * 1e6 / count for role, seconds in cpu_between(before, after).items()}
    figures["cpu_us_per_task"] = sum(by_role.values())
    figures["cpu_us_per_task_by_role"] = by_role
