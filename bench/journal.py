"""What a journal costs: three clusters, without one, with one, and with one that flushes the disk, take turns.

`python bench/journal.py --turns 10 --folder DIRECTORY`. The disk of the folder matters. Printed for each kind of calls:
the median of the CPU time of all processes, the fastest run, and calls per second of the fastest run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
from pathlib import Path

from keys import CALLS, ROUND_TRIPS, cluster, measured, no_ops, round_trips

KINDS = {no_ops: CALLS, round_trips: ROUND_TRIPS}


def main() -> None:
    """Take turns, and print the figures."""
    parser = argparse.ArgumentParser(description="What a journal costs, in turns with a cluster without one.")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--folder", type=Path, help="where the journals are; a temporary directory if left out")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # workers import the calls
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        clusters = {"without": stack.enter_context(cluster())}
        for sync in ("normal", "full"):
            words = "--journal", str(folder / sync), "--journal-sync", sync
            clusters[sync] = stack.enter_context(cluster(None, *words))
        for calls, count in KINDS.items():
            taken: dict[str, list[tuple[float, float]]] = {name: [] for name in clusters}
            for _ in range(options.turns):
                for name, (client, processes) in clusters.items():
                    taken[name].append(measured(calls, client, processes))
            for name, figures in taken.items():
                cpu, wall = statistics.median(each[0] for each in figures), min(each[1] for each in figures)
                print(
                    f"{calls.__name__:<12} {name:<8} CPU {cpu / count * 1e6:6.1f} us per call, "
                    f"fastest {wall * 1e3:7.1f} ms, {count / wall:8,.0f} calls/s, {wall / count * 1e3:.3f} ms per call"
                )


if __name__ == "__main__":
    main()
