"""One trial: a cluster, its clients, the strikes that a seed draws, and what must hold afterwards."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from support.chaos.cluster import Cluster, Flooder
from support.chaos.loads import PLANS, Load
from support.chaos.strikes import Strikes
from support.waiting import wait_until

DUMP_CHARACTERS = 20_000


@dataclass(frozen=True)
class Size:
    """How big a trial is."""

    agents: int
    workers: int
    """Of each agent."""
    tasks: dict[str, int]
    """How many each client has; without nested ones the flooding clients have none, either."""
    window: int
    strikes: int
    pause_seconds: float
    """The longest time between two strikes."""
    longest_seconds: float
    """The longest time for which something stands still."""
    end_seconds: float
    """How long a task may take."""


class Trial:
    """Runs one seed."""

    def __init__(self, folder: Path, seed: int, size: Size) -> None:
        self._folder, self._seed, self._size = folder, seed, size
        self._draw = random.Random(f"{seed}/strikes")
        self._loads: list[Load] = []

    def run(self) -> str:
        """Strike while tasks run; a line that says what happened. AssertionError names everything of a red seed."""
        keyed = self._draw.random() < 0.5
        with Cluster(self._folder, self._size.agents, self._size.workers, keyed=keyed) as cluster:
            nested = self._size.tasks["nested"] > 0
            strikes = Strikes(cluster, self._draw, self._size.longest_seconds, nested=nested)
            self._start_loads(cluster, strikes)
            try:
                strikes.log.append(strikes.add_flooder())
                self._strike(strikes)
                strikes.close()
                for flooder in cluster.flooders:
                    flooder.stop_flooding()
                for load in self._loads:
                    load.join()
                self._check_loads()
                self._end_flooders(cluster)
                self._read_sessions(cluster)
                self._check_runs(strikes)
            except AssertionError as problem:
                raise AssertionError(self._report(problem, cluster, strikes)) from None
            finally:
                for load in self._loads:
                    load.gives_up.set()
                strikes.close()
                for load in self._loads:
                    load.join()
        counts = sum((load.counts for load in self._loads), Counter())
        return f"seed {self._seed}: {dict(counts)}\n" + "\n".join(strikes.log)

    def _start_loads(self, cluster: Cluster, strikes: Strikes) -> None:
        for name in PLANS:
            self._loads.append(
                Load(
                    name,
                    partial(cluster.client, f"named-{self._seed}" if name == "named" else None),
                    random.Random(f"{self._seed}/{name}"),
                    self._folder / f"{name}.runs",
                    tasks=self._size.tasks[name],
                    window=self._size.window,
                    end_seconds=self._size.end_seconds,
                    allowance=strikes.allowance,
                    dump=cluster.dump,
                )
            )
            self._loads[-1].start()

    def _strike(self, strikes: Strikes) -> None:
        for _ in range(self._size.strikes):
            if any(load.problems for load in self._loads):
                return
            time.sleep(self._draw.random() * self._size.pause_seconds)  # any moment is a good one
            strikes.strike()

    def _check_loads(self) -> None:
        problems = [f"{load.name}: {problem}" for load in self._loads for problem in load.problems]
        assert problems == [], "\n".join(problems)

    def _end_flooders(self, cluster: Cluster) -> None:
        seconds = self._size.end_seconds
        for flooder in cluster.flooders:
            ended = partial(_has_ended, flooder)
            wait_until(ended, f"the end of flooder {flooder.process.pid}: {flooder.said()}", seconds)
            code = flooder.process.returncode
            assert code in {0, -signal.SIGKILL}, f"flooder {flooder.process.pid}: {code} {flooder.said()}"

    def _read_sessions(self, cluster: Cluster) -> None:
        """The results of killed clients are had by those that come after them."""
        for flooder in cluster.flooders:
            if flooder.session and flooder.process.returncode and "flooding" in flooder.said():
                with cluster.client(flooder.session) as client:
                    for future in client.session.futures():
                        future.exception(self._size.end_seconds)
                    client.session.end()

    def _check_runs(self, strikes: Strikes) -> None:
        """No attempt ran twice, unless the count of attempts was lost."""
        allowed = strikes.allowance()
        most = 1 + allowed.scheduler_losses + allowed.storage_losses
        for file in self._folder.glob("*.runs"):
            runs = Counter(file.read_text("ascii").splitlines())
            often = {run: count for run, count in runs.items() if count > most}
            assert not often, f"{file.name}: ran more often than {most} times (number, attempt): {often}"
            last = {int(run.split()[0]): int(run.split()[1]) for run in runs}
            attempts = {number: attempt for number, attempt in last.items() if attempt > 3 + allowed.deaths}
            assert not attempts, f"{file.name}: more attempts than strikes explain: {attempts}"

    def _report(self, problem: AssertionError, cluster: Cluster, strikes: Strikes) -> str:
        """Everything that explains a red seed."""
        dump = next((load.dumped for load in self._loads if load.dumped), "") or cluster.dump()
        (self._folder / "dump.json").write_text(dump, "utf-8")
        lines = "\n".join(strikes.log)
        logs = f"logs and dump.json are in {self._folder}"
        return f"seed {self._seed}: {problem}\n{lines}\n{logs}\n{dump[:DUMP_CHARACTERS]}"


def _has_ended(flooder: Flooder) -> bool:
    return flooder.process.poll() is not None
