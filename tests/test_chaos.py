"""Under load, whatever can die dies at random: workers, templates, hosts, the scheduler, connections."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from scaler import Client, ScalerFuture
from support.endings import sleep_a_moment
from support.fault_tasks import step
from support.faults import Service, Services
from support.processes import command_line, descendants
from support.relays import Relay
from support.waiting import wait_until

AGENTS = 3
WORKERS = 2
TASK_SECONDS = 0.004
UNDER_WAY = 600
END_SECONDS = 60


class Chaos:
    """What can go wrong, one thing at a time, at random."""

    def __init__(self, services: Services, relay: Relay, moments: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self._services, self._relay, self._moments = services, relay, moments
        self._agents = [services.add_agent(WORKERS) for _ in range(AGENTS)]
        self._faults: list[Callable[[], None]] = [
            self._kill_worker,
            self._kill_worker,
            self._kill_worker,
            self._kill_template,
            self._kill_agent,
            self._stop_agent,
            self._kill_scheduler,
            self._drop_connections,
        ]

    def strike(self) -> None:
        """Do one of it."""
        fault = self._moments.choice(self._faults)
        self.counts[fault.__name__.strip("_")] += 1
        fault()

    def _agent(self) -> Service:
        return self._moments.choice(self._agents)

    def _kill_worker(self) -> None:
        agent = self._agent()
        workers = [pid for pid in descendants(agent.pid) if descendants(pid) == []]
        if workers:
            self._kill(self._moments.choice(workers))

    def _kill_template(self) -> None:
        agent = self._agent()
        templates = [pid for pid in descendants(agent.pid) if descendants(pid) or "template" in command_line(pid)]
        for pid in templates:
            self._kill(pid)

    def _kill(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _kill_agent(self) -> None:
        agent = self._agent()
        agent.kill()
        self._agents.remove(agent)
        self._agents.append(self._services.add_agent(WORKERS))

    def _stop_agent(self) -> None:
        agent = self._agent()
        os.kill(agent.pid, signal.SIGSTOP)
        sleep_a_moment(self._moments.random() * 4)
        os.kill(agent.pid, signal.SIGCONT)

    def _kill_scheduler(self) -> None:
        self._services.scheduler.kill()
        sleep_a_moment(self._moments.random())
        self._services.start_scheduler()

    def _drop_connections(self) -> None:
        self._relay.cut()


class Load:
    """Tasks that are submitted all the time, and how each ended."""

    def __init__(self, client: Client, file: Path) -> None:
        self._client, self._file = client, file
        self.futures: list[ScalerFuture[tuple[int, int]]] = []
        self._checked = 0

    def top_up(self) -> None:
        """Have UNDER_WAY tasks under way; those in front that have ended must have ended right."""
        while self._checked < len(self.futures) and self.futures[self._checked].done():
            assert self.futures[self._checked].result()[0] == self._checked
            self._checked += 1
        while len(self.futures) - self._checked < UNDER_WAY:
            self.futures.append(self._client.submit(step, str(self._file), len(self.futures), TASK_SECONDS))

    def land(self) -> Counter[int]:
        """All of them end right; how often each ran."""
        wait_until(lambda: all(future.done() for future in self.futures[self._checked :]), "the end", END_SECONDS)
        for number, future in enumerate(self.futures):
            assert future.result()[0] == number
        return Counter(map(int, self._file.read_text("ascii").split()))


@pytest.mark.parametrize(
    ("strikes", "seed"), [(5, 3), *(pytest.param(60, seed, marks=pytest.mark.chaos) for seed in range(3))]
)
def test_everything_dies_and_every_task_ends_right(tmp_path: Path, strikes: int, seed: int) -> None:
    moments = random.Random(seed)
    file = tmp_path / "runs"
    with (
        Services(tmp_path, "--worker-timeout-seconds", "3") as services,
        services.relay() as relay,
        Client(str(relay.address)) as client,
    ):
        chaos, load = Chaos(services, relay, moments), Load(client, file)
        for _ in range(strikes):
            load.top_up()
            sleep_a_moment(moments.random())
            chaos.strike()
        runs = load.land()
    assert set(runs) == set(range(len(load.futures)))
    again = sum(runs.values()) - len(runs)
    print(f"\n{len(runs):,} tasks, {again} runs repeated, after {dict(chaos.counts)}")
