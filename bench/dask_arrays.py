"""Dask arrays on two workers: this engine, distributed, and Dask's threads, in turns; seconds of each, and ratios.

python bench/dask_arrays.py [--turns 3] [--workers 2] [--case matmul …]

Each turn of each engine is a process of its own, which starts its cluster and runs every case twice: the second time
counts. A turn of all cases takes some minutes. A ratio is the median, over the turns, of the other engine's seconds
divided by this engine's: above 1 this one is faster. `distributed` has the environment of the benchmark's Dask, the
other two have the workspace's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a task has one core with each of the engines
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import dask
import dask.array as da
from environments import python_for

ENGINES = ("scaler", "distributed", "threads")


def matmul() -> Any:
    """Products of 12 x 12 blocks of 2 MB."""
    x = da.random.default_rng(1).random((6000, 6000), chunks=(500, 500))
    return (x @ x).sum()


def standardize() -> Any:
    """2,000 blocks of 80 KB less the mean of their columns, by their deviation."""
    x = da.random.default_rng(1).random((200_000, 100), chunks=(100, 100))
    return ((x - x.mean(axis=0)) / x.std(axis=0)).sum()


def small_chunks() -> Any:
    """4,000 chunks of 800 bytes."""
    return (da.ones(400_000, chunks=100) + 1).sum()


def rechunk() -> Any:
    """128 MB in blocks of rows, then of columns: each block of one has a part of each block of the other."""
    x = da.random.default_rng(1).random((4000, 4000), chunks=(200, 4000))
    return x.rechunk((4000, 200)).sum(axis=0).sum()


CASES: dict[str, Callable[[], Any]] = {case.__name__: case for case in (matmul, standardize, small_chunks, rechunk)}


@contextlib.contextmanager
def serving(engine: str, workers: int) -> Iterator[Any]:
    """What Dask is given as its scheduler, while it serves."""
    if engine == "threads":
        with dask.config.set(num_workers=workers):
            yield "threads"
    elif engine == "scaler":
        from scaler import Client, SchedulerClusterCombo
        from scaler_client.dask import dask_scheduler

        with (
            SchedulerClusterCombo(n_workers=workers, logging_level="ERROR") as cluster,
            Client(cluster.get_address()) as client,
        ):
            yield dask_scheduler(client)
    else:
        from distributed import Client as DaskClient
        from distributed import LocalCluster

        with (
            LocalCluster(
                n_workers=workers, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
            ) as local,
            DaskClient(local) as remote,
        ):
            yield remote.get


def measure(engine: str, workers: int, cases: list[str]) -> dict[str, float]:
    """Seconds of each case."""
    taken: dict[str, float] = {}
    with serving(engine, workers) as scheduler:
        for name in cases:
            for _ in range(2):
                began = time.perf_counter()
                CASES[name]().compute(scheduler=scheduler)
                taken[name] = time.perf_counter() - began
    return taken


def in_turns(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """What each engine takes in each turn."""
    found: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
    for _ in range(options.turns):
        for engine in random.sample(ENGINES, len(ENGINES)):
            python = python_for("dask" if engine == "distributed" else "scaler", None)
            command = [str(python), __file__, "--engine", engine, "--workers", str(options.workers), "--case"]
            done = subprocess.run([*command, *options.case], stdout=subprocess.PIPE, check=True)
            found[engine].append(json.loads(done.stdout))
    return found


def main() -> None:
    """Print a table, or the figures of one engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        print(json.dumps(measure(options.engine, options.workers, options.case)))
        return
    found = in_turns(options)
    titles = ["case", *(f"{engine} s" for engine in ENGINES), *(f"{other} / scaler" for other in ENGINES[1:])]
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    for case in options.case:
        taken = {engine: [turn[case] for turn in found[engine]] for engine in ENGINES}
        cells = [f"{statistics.median(taken[engine]):.3f}" for engine in ENGINES]
        for other in ENGINES[1:]:
            ratios = [their / our for their, our in zip(taken[other], taken["scaler"], strict=True)]
            cells.append(f"{statistics.median(ratios):.2f}")
        print(f"| {case} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
