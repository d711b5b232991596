"""Time the growth of a fleet with real processes: 15 tasks of 6 s on at most 10 workers, from none.

python bench/elastic.py [--tasks 15] [--seconds 6] [--workers 10]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from scaler import Client
from support.processes import free_ports
from support.waiting import wait_until

BOUND_SECONDS = 14.0
"""The work may take this long, beside the start-up of one unit."""


def _start(folder: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as log:
        command = [sys.executable, "-m", name, *words]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def _measure(folder: Path, tasks: int, seconds: float, workers: int) -> tuple[float, float, int]:
    """Seconds until the first worker is there, and until all tasks are done; the most workers."""
    address = f"tcp://127.0.0.1:{free_ports()}"
    words = ("baremetal_native", address, "--worker-manager-id", "local", "-mtc", str(workers))
    running = [_start(folder, "scaler_scheduler", address), _start(folder, "scaler_worker.managers.main", *words)]
    try:
        manager = folder / "scaler_worker.managers.main.log"
        wait_until(lambda: "connected to the scheduler" in manager.read_text("utf-8"), "the manager")
        with Client(address) as client:
            begun = time.monotonic()
            futures = [client.submit(time.sleep, seconds) for _ in range(tasks)]
            client.wait_for_workers(1)
            first, most = time.monotonic() - begun, 1
            while not all(future.done() for future in futures):
                most = max(most, client.workers().count)
                time.sleep(0.1)
            return first, time.monotonic() - begun, most
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()


def main() -> None:
    """Print seconds, start-up time and ideal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each task")
    parser.add_argument("--workers", type=int, default=10, help="the most")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        first, done, most = _measure(Path(folder), arguments.tasks, arguments.seconds, arguments.workers)
    ideal = -(-arguments.tasks // arguments.workers) * arguments.seconds
    print(f"{arguments.tasks} tasks of {arguments.seconds:g} s, at most {arguments.workers} workers: {done:.1f} s")
    print(f"  start-up of the first unit: {first:.1f} s, the rest: {done - first:.1f} s (bound: {BOUND_SECONDS:g} s)")
    print(f"  ideal: {ideal:g} s; most workers: {most}")


if __name__ == "__main__":
    main()
