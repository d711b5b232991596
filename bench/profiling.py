"""What a profile costs while it is taken: CPU of the workers per task without and with it, in turns, in one run.

On a machine with other work the ratio is noisy, so the CPU of the threads beside the main ones is printed, too: the
sampler is the only one that is busy. `python bench/profiling.py --rounds 8`. Tasks are pure Python, deep stacks, and
sorting, which holds the interpreter.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable

import probe

from scaler import Client, SchedulerClusterCombo
from scaler_io.security.keyring import OPERATOR_KEYS
from scaler_io.service.operator_link import OperatorLink
from scaler_io.transport.own_keys import credentials_for
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import ServiceKind
from scaler_protocol.operations import ProfilePart, TakeProfile

WORKERS = 2


def loop(count: int) -> int:
    """Pure Python."""
    total = 0
    for number in range(count):
        total += number * number
    return total


def deep(depth: int) -> int:
    """Pure Python below many frames."""
    return deep(depth - 1) if depth else loop(300_000)


def sort(count: int) -> int:
    """Calls of C code that hold the interpreter for some milliseconds."""
    return sum(len(sorted(range(count, 0, -1))) for _ in range(20))


LOADS: dict[str, tuple[Callable[[int], int], int]] = {
    "loop": (loop, 300_000), "deep": (deep, 90), "sort": (sort, 50_000),
}  # fmt: skip


def cpu_seconds(pids: list[int], *, main: bool = False) -> float:
    """CPU time of all threads of these processes, also of those that have ended, or of their main threads."""
    ticks = 0
    for pid in pids:
        place = f"/proc/{pid}/task/{pid}/stat" if main else f"/proc/{pid}/stat"
        ticks += sum(map(int, probe.read_text(place).rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Asker:
    """Takes profiles in a thread, one at a time."""

    def __init__(self, address: str) -> None:
        place = Address.parse(address)
        credentials = credentials_for(place, None, False, OPERATOR_KEYS)
        self._link = OperatorLink(place, "bench", ServiceKind.SCHEDULER, credentials=credentials)
        self.samples = 0

    def take(self, seconds: float) -> threading.Thread:
        """Begin; the thread ends with the profile."""
        self._link.send(TakeProfile(1, "", seconds))
        thread = threading.Thread(target=self._receive)
        thread.start()
        return thread

    def _receive(self) -> None:
        while True:
            for message in self._link.turn():
                if isinstance(message, ProfilePart):
                    assert not message.problem, message.problem
                    self.samples += sum(message.counts)
                    if not message.left:
                        return
            time.sleep(0.05)

    def close(self) -> None:
        """Leave."""
        self._link.close()


def measured(client: Client, load: str, seconds: float, pids: list[int], asker: Asker | None) -> tuple[float, float]:
    """CPU milliseconds of the workers for each task, while they have tasks for so long; of it the share of threads."""
    function, argument = LOADS[load]
    thread = asker.take(seconds) if asker is not None else None
    before, main = cpu_seconds(pids), cpu_seconds(pids, main=True)
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        client.map(function, [argument] * 4 * WORKERS)
        count += 4 * WORKERS
    used, main = cpu_seconds(pids) - before, cpu_seconds(pids, main=True) - main
    if thread is not None:
        thread.join()
    return 1000 * used / count, 1 - main / used


def main() -> None:
    """Print the ratio of each round, and their median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    with SchedulerClusterCombo(n_workers=WORKERS) as cluster, Client(address=cluster.get_address()) as client:
        pids = [pid for pid in client.run(os.getpid).values() if isinstance(pid, int)]
        asker = Asker(cluster.get_address())
        for load in LOADS:
            ratios, shares = [], []
            for each in range(options.rounds):
                turns: list[Asker | None] = [None, asker] if each % 2 else [asker, None]
                cost = {turn: measured(client, load, options.seconds, pids, turn) for turn in turns}
                (without, _), (profiled, share) = cost[None], cost[asker]
                ratios.append(profiled / without)
                shares.append(share)
                print(f"{load}: {without:.2f} ms without, {profiled:.2f} ms with it, {100 * share:.2f} % in threads")
            ratio, share = statistics.median(ratios), statistics.median(shares)
            print(f"{load}: medians {ratio:.3f}, {100 * share:.2f} % in threads; {asker.samples:,} samples so far")
        asker.close()


if __name__ == "__main__":
    main()
