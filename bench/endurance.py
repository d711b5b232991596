"""Cases under stress: a long queue before blocked workers, and a worker that is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import probe
import tasks
from measures import Figures, ready

if TYPE_CHECKING:
    from peers import BenchPeer

SUBMIT_SECONDS = 60.0
DRAIN_SECONDS = 60.0
KILL_AFTER_SECONDS = 0.67
KILL_LIMIT_SECONDS = 20.0


def _peaks(peer: BenchPeer) -> Figures:
    """Highest resident size of each role's processes since they began, and of those that keep the queue."""
    by_role = {
        role: sum(probe.peak_resident_bytes(pid) for pid in pids) / probe.MEGABYTE
        for role, pids in peer.processes().items()
    }
    scheduler = sum(megabytes for role, megabytes in by_role.items() if role in peer.scheduler_roles)
    return {
        "scheduler_peak_megabytes": scheduler,
        "peak_megabytes": sum(by_role.values()),
        "peak_megabytes_by_role": by_role,
    }


def _wait_for_files(folder: Path, pattern: str, count: int, limit_seconds: float) -> None:
    """Wait until this many files exist."""
    deadline = time.monotonic() + limit_seconds
    while len(list(folder.glob(pattern))) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"fewer than {count} workers took a task within {limit_seconds} s")
        time.sleep(0.01)


def _backlog(
    peer: BenchPeer, n_workers: int, count: int, submit: Callable[[int], Any], right: Callable[[int], Any]
) -> Figures:
    """Queue tasks while all workers are blocked, then release them. Time is limited: slow peers queue fewer."""
    import tempfile  # late: `startup` must not find it imported

    ready(peer, n_workers)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        held = [peer.submit(tasks.hold, name) for _ in range(n_workers)]
        _wait_for_files(folder, "held-*", n_workers, 30)
        # A peer may make `submit` wait until the queue shrinks; then letting go is what ends the wait.
        release = threading.Timer(SUBMIT_SECONDS + 5, (folder / "release").touch)
        release.daemon = True
        release.start()
        begin = time.perf_counter()
        futures: list[Any] = []
        while len(futures) < count and time.perf_counter() - begin < SUBMIT_SECONDS:
            futures.append(submit(len(futures)))
        submitted = time.perf_counter()
        time.sleep(1)
        queued = {
            **_peaks(peer),
            "queued": len(futures),
            "submit_seconds": submitted - begin,
            "let_go_early": (folder / "release").exists(),
        }
        release.cancel()
        (folder / "release").touch()
        drained = _drain(peer, futures, right)
        peer.gather(held)
    return {**queued, **drained, "peaks_after": _peaks(peer)}


def _drain(peer: BenchPeer, futures: list[Any], right: Callable[[int], Any]) -> Figures:
    """Fetch results in order for a limited time, and check each."""
    begin = time.perf_counter()
    taken = 0
    for i, future in enumerate(futures):
        left = DRAIN_SECONDS - (time.perf_counter() - begin)
        if left <= 0:
            break
        try:
            value = peer.result(future, left)
        except Exception:  # each engine has its own way to say that the time is over
            if time.perf_counter() - begin < DRAIN_SECONDS:
                raise
            break
        if value != right(i):
            raise AssertionError(f"result {i} is wrong")
        taken += 1
    return {"drained": taken, "drain_seconds": time.perf_counter() - begin}


def backlog_of_noops(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """The backlog with small tasks."""
    count = 5_000 if quick else 200_000
    return _backlog(peer, n_workers, count, lambda i: peer.submit(tasks.noop, i), lambda i: i)


def backlog_of_bytes(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """The backlog with arguments of 60 KB, which all differ: a peer could share equal ones."""
    count = 1_000 if quick else 20_000
    rest = os.urandom(60_000 - 8)
    return _backlog(
        peer, n_workers, count, lambda i: peer.submit(tasks.length, i.to_bytes(8, "big") + rest), lambda i: 60_000
    )


def _kill_one(peer: BenchPeer, futures: list[Any]) -> None:
    """SIGKILL the process that computed the latest result so far."""
    finished = peer.done(futures)
    if not finished:
        raise RuntimeError("nothing had finished when a worker was to be killed")
    pid = peer.result(finished[-1])[1]
    if pid not in {process.pid for process in probe.descendants(os.getpid())}:
        raise RuntimeError("the worker is no descendant of this process")
    os.kill(pid, signal.SIGKILL)


def sigkill(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """Kill a worker while many tasks run: how many results are right, and the time from the kill to the last one."""
    ready(peer, n_workers)
    count = 400
    begin = time.perf_counter()
    futures = [peer.submit(tasks.square_slowly, i, 0.02) for i in range(count)]
    time.sleep(max(0.0, KILL_AFTER_SECONDS - (time.perf_counter() - begin)))
    _kill_one(peer, futures)
    killed = time.perf_counter()
    ended: dict[Any, float] = {}
    while len(ended) < count and time.perf_counter() - killed < KILL_LIMIT_SECONDS:
        for future in peer.done([future for future in futures if future not in ended]):
            ended[future] = time.perf_counter() - killed
        time.sleep(0.005)
    return {"tasks": count, **_judge(peer, futures, ended)}


def _judge(peer: BenchPeer, futures: list[Any], ended: dict[Any, float]) -> Figures:
    """Count right and wrong results."""
    last = 0.0
    right = 0
    errors: dict[str, int] = {}
    for i, future in enumerate(futures):
        if future not in ended:
            continue
        try:
            value = peer.result(future, 5)[0]
        except Exception as error:  # whatever an engine reports is a figure here
            errors[type(error).__name__] = errors.get(type(error).__name__, 0) + 1
            continue
        if value != i * i:
            errors["wrong value"] = errors.get("wrong value", 0) + 1
            continue
        right += 1
        last = max(last, ended[future])
    return {"right": right, "last_seconds": last, "errors": errors, "never_ended": len(futures) - len(ended)}
