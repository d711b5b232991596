"""What a monitor costs the scheduler: CPU microseconds per task with 0, 1 and 2 subscribers, in turns, in one run.

`python bench/monitor.py --tasks 20000 --rounds 8`. Each subscriber is a process of its own, which reads.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import probe

from scaler import Client, SchedulerClusterCombo

SUBSCRIBER = """
import sys
import time
from scaler_io.security.keyring import SUBSCRIBER_KEYS
from scaler_io.transport.own_keys import credentials_for
from scaler_io.transport.publishing import Subscriber
from scaler_protocol.addresses import Address
from scaler_ui.model.feed import Feed

address = Address.parse(sys.argv[1])
subscriber = Subscriber(address, credentials_for(address, None, False, SUBSCRIBER_KEYS))
feed = Feed(subscriber)
said = False
while True:
    subscriber.wait(3600)
    if feed.take(time.monotonic()) and not said:
        print("hears", flush=True)
        said = True
"""
WAVE = 1000
"""Tasks that are submitted before the first result is waited for."""


def cpu_microseconds(pid: int) -> float:
    """CPU time of the main thread and all others, as precisely as the kernel knows."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        total += int(probe.read_text(f"/proc/{pid}/task/{thread}/schedstat").split()[0])
    return total / 1000


def by_map(client: Client, count: int) -> None:
    """One map of all."""
    client.map(math.sqrt, range(count))


def by_submit(client: Client, count: int) -> None:
    """Batches of single submits."""
    for _ in range(count // WAVE):
        for future in [client.submit(math.sqrt, number) for number in range(WAVE)]:
            future.result()


def one_by_one(client: Client, count: int) -> None:
    """Wait for each task before the next one is submitted."""
    for number in range(count // 10):
        client.submit(math.sqrt, number).result()


CASES: dict[str, tuple[Callable[[Client, int], None], int]] = {
    "map": (by_map, 1),
    "submit": (by_submit, 1),
    "one by one": (one_by_one, 10),
}


def measure(client: Client, scheduler: int, case: str, tasks: int) -> float:
    """CPU microseconds of the scheduler per task."""
    work, divisor = CASES[case]
    before = cpu_microseconds(scheduler)
    work(client, tasks)
    time.sleep(0.2)  # releases, and what is still to be published
    return (cpu_microseconds(scheduler) - before) / (tasks // divisor)


@contextlib.contextmanager
def subscribers(address: str, count: int) -> Iterator[None]:
    """So many processes that subscribe, and have heard something."""
    with contextlib.ExitStack() as started:
        for _ in range(count):
            command = [sys.executable, "-c", SUBSCRIBER, address]
            made = started.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            started.callback(made.kill)
            assert made.stdout is not None and made.stdout.readline() == b"hears\n"
        yield


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    with (
        SchedulerClusterCombo(n_workers=2, logging_paths=("/dev/null",)) as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        started = [seen.pid for seen in probe.descendants(os.getpid())]
        scheduler = next(pid for pid in started if "scaler_launch.local" in probe.read_text(f"/proc/{pid}/cmdline"))
        monitor = cluster.get_address().rpartition(":")
        address = f"{monitor[0]}:{int(monitor[2]) + 2}"
        for case in CASES:
            measure(client, scheduler, case, arguments.tasks)
        for case in CASES:
            figures: list[list[float]] = [[], [], []]
            for _ in range(arguments.rounds):
                for count, found in enumerate(figures):
                    with subscribers(address, count):
                        found.append(measure(client, scheduler, case, arguments.tasks))
                    time.sleep(0.3)
            without, with_one, with_two = map(statistics.median, figures)
            ratios = f"{with_one / without:.3f}, {with_two / without:.3f}"
            print(
                f"{case:>10}: {without:6.2f} us without, {with_one:6.2f} with one, {with_two:6.2f} with two: {ratios}"
            )


if __name__ == "__main__":
    main()
