"""What keys cost: two clusters over TCP, one with keys and one without, take turns with the same calls.

`python bench/keys.py --turns 10`. Printed for each kind of calls: the median of the CPU time of all
processes, and the minimum of the time on the wall, which other programs disturb. `--start` does that for
new local clusters up to their first result, the one with the user's own keys.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from scaler import Client
from scaler_io.ports import free_port
from scaler_io.security.key_files import INSECURE_VARIABLE, make_keys
from scaler_io.transport.curve import new_pair

START = """
import time
from scaler import Client, SchedulerClusterCombo
with SchedulerClusterCombo(n_workers=1, logging_level="ERROR") as cluster, Client(cluster.get_address()) as client:
    client.submit(abs, -1).result()
    print(time.perf_counter())
"""
"""A program that prints when it has its first result."""
CALLS, ROUND_TRIPS, BIG = 20_000, 100, 50_000_000
STARTED = 30.0


def nothing(value: int) -> int:
    """The smallest call."""
    return value


@contextlib.contextmanager
def cluster(keys: Path | None = None, *of_scheduler: str) -> Iterator[tuple[Client, list[psutil.Process]]]:
    """A client of a scheduler, with these options, and an agent with two workers, and all processes."""
    address = f"tcp://127.0.0.1:{free_port()}"
    words = ["--keys", str(keys)] if keys is not None else ["--insecure"]
    words += ["--logging-level", "ERROR", "--parent-pid", str(os.getpid())]
    started = [
        subprocess.Popen([sys.executable, "-m", "scaler_scheduler", address, *words, *of_scheduler]),
        subprocess.Popen([sys.executable, "-m", "scaler_worker", address, "-n", "2", *words]),
    ]
    try:
        with Client(address=address, keys=keys, insecure=keys is None, timeout_seconds=STARTED) as client:
            assert sum(client.map(nothing, range(100))) == 4950
            own = [psutil.Process(process.pid) for process in started]
            yield client, [psutil.Process(), *own, *(child for each in own for child in each.children(recursive=True))]
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def no_ops(client: Client) -> None:
    """Many calls at once."""
    client.map(nothing, range(CALLS))


def round_trips(client: Client) -> None:
    """Calls one after the other."""
    for number in range(ROUND_TRIPS):
        client.submit(nothing, number).result()


def big_results(client: Client) -> None:
    """A result of 50 MB."""
    client.submit(bytes, BIG).result()


def started(*, insecure: bool) -> tuple[float, float]:
    """CPU seconds of all processes, and seconds on the wall, of a program with a local cluster and one call."""
    before, began = os.times(), time.perf_counter()
    program = [sys.executable, "-c", START]
    printed = subprocess.run(
        program, check=True, capture_output=True, env={**os.environ, INSECURE_VARIABLE: str(insecure)}
    )
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return spent, float(printed.stdout) - began


def starts(turns: int) -> None:
    """Take turns with starts, and print the figures."""
    taken: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    started(insecure=False)  # it may make the keys
    for _ in range(turns):
        for name, figures in taken.items():
            figures.append(started(insecure=name == "without"))
    report("start", taken)


def measured(calls: Callable[[Client], None], client: Client, processes: list[psutil.Process]) -> tuple[float, float]:
    """CPU seconds of all processes, and seconds on the wall."""

    def spent() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    cpu, wall = spent(), time.perf_counter()
    calls(client)
    return spent() - cpu, time.perf_counter() - wall


def report(name: str, taken: dict[str, list[tuple[float, float]]]) -> None:
    """Print the figures of one kind of calls."""
    cpu = {name: statistics.median(each[0] for each in figures) for name, figures in taken.items()}
    wall = {name: min(each[1] for each in figures) for name, figures in taken.items()}
    print(
        f"{name:<12} CPU {cpu['without']:.3f} -> {cpu['with']:.3f} s "
        f"({cpu['with'] / cpu['without'] - 1:+.1%}), fastest {wall['without'] * 1e3:.1f} -> "
        f"{wall['with'] * 1e3:.1f} ms ({wall['with'] / wall['without'] - 1:+.1%})"
    )


def main() -> None:
    """Take turns, and print the figures."""
    parser = argparse.ArgumentParser(description="What keys cost, in turns with a cluster without keys.")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--start", action="store_true", help="measure starts of local clusters")
    words = parser.parse_args()
    turns: int = words.turns
    if words.start:
        starts(turns)
        return
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        make_keys(keys, new_pair)
        with cluster(None) as without, cluster(keys) as guarded:
            for calls in (no_ops, round_trips, big_results):
                taken: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
                for _ in range(turns):
                    for name, (client, processes) in (("without", without), ("with", guarded)):
                        taken[name].append(measured(calls, client, processes))
                report(calls.__name__, taken)


if __name__ == "__main__":
    main()
