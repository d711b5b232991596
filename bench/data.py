"""Cases about big arguments and results: how fast bytes reach tasks or come back, and what memory that takes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import probe
import tasks
from measures import Figures, ready

if TYPE_CHECKING:
    from peers import BenchPeer

COUNT = 20
ARGUMENT_BYTES = 100_000_000
RESULT_BYTES = 20_000_000
MEDIUM_COUNT = 2_000
MEDIUM_BYTES = 50_000
_SAMPLE_SECONDS = 0.02


def array_arguments(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """One NumPy array for all tasks."""
    import numpy  # late: `startup` must not find it imported

    size = ARGUMENT_BYTES // (10 if quick else 1)
    return _given(peer, n_workers, size, lambda data: numpy.frombuffer(data, numpy.float64).copy())


def bytes_arguments(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """The same bytes for all tasks."""
    return _given(peer, n_workers, ARGUMENT_BYTES // (10 if quick else 1), bytes)


def big_results(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """Each task returns bytes, and all of them are kept."""
    size = RESULT_BYTES // (10 if quick else 1)

    def run() -> None:
        results = peer.gather([peer.submit(tasks.give, size, i) for i in range(COUNT)])
        if [(len(result), result[0], result[-1]) for result in results] != [(size, i, i) for i in range(COUNT)]:
            raise AssertionError("the results are wrong")

    ready(peer, n_workers)
    figures = _measured(peer, run, run, COUNT * size)
    begin = time.perf_counter()
    run()  # in memory that has been used before, here and on the host of a virtual machine
    return {**figures, "again_megabytes_per_second": COUNT * size / 1e6 / (time.perf_counter() - begin)}


def medium_results(peer: BenchPeer, n_workers: int, quick: bool) -> Figures:
    """Each task returns bytes that travel by object storage where there is one, and all of them are kept."""
    count = MEDIUM_COUNT // (10 if quick else 1)
    ready(peer, n_workers)
    peer.gather([peer.submit(tasks.give, MEDIUM_BYTES, 0) for _ in range(2 * n_workers)])
    begin = time.perf_counter()
    results = peer.gather([peer.submit(tasks.give, MEDIUM_BYTES, number % 256) for number in range(count)])
    seconds = time.perf_counter() - begin
    if [(len(each), each[0], each[-1]) for each in results] != [(MEDIUM_BYTES, n % 256, n % 256) for n in range(count)]:
        raise AssertionError("the results are wrong")
    return {"tasks": count, "rate": count / seconds}


def _given(peer: BenchPeer, n_workers: int, size: int, make: Callable[[bytes], Any]) -> Figures:
    """Each pass has data of its own, so that nothing is there already."""

    def run(data: Any) -> None:
        if peer.gather([peer.submit(tasks.weigh, data) for _ in range(COUNT)]) != [size] * COUNT:
            raise AssertionError("the results are wrong")

    ready(peer, n_workers)
    peer.gather([peer.submit(tasks.weigh, make(bytes(80_000))) for _ in range(2 * n_workers)])  # NumPy is imported
    first, second = (make(os.urandom(size)) for _ in range(2))
    return _measured(peer, lambda: run(first), lambda: run(second), COUNT * size)


def _measured(peer: BenchPeer, timed: Callable[[], None], watched: Callable[[], None], moved: int) -> Figures:
    """Megabytes per second of one pass; the memory is looked at in another one, as looking costs time."""
    begin = time.perf_counter()
    timed()
    seconds = time.perf_counter() - begin
    with _peak(peer) as figures:
        watched()
    return {"megabytes_per_second": moved / 1e6 / seconds, "seconds": seconds, **figures}


@contextmanager
def _peak(peer: BenchPeer) -> Iterator[Figures]:
    """Fills the figures, when the block ends, with the proportional memory of all processes: before, and at most."""
    figures: Figures = {}
    pids = [pid for group in peer.processes().values() for pid in group]
    ended = threading.Event()

    def memory() -> float:
        return sum(probe.proportional_bytes(pid) for pid in pids) / probe.MEGABYTE

    def watch() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            figures["pss_peak_megabytes"] = max(figures["pss_peak_megabytes"], memory())

    figures["pss_before_megabytes"] = figures["pss_peak_megabytes"] = memory()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield figures
    finally:
        ended.set()
        watcher.join()
    figures["pss_added_megabytes"] = figures["pss_peak_megabytes"] - figures["pss_before_megabytes"]
