"""Real processes: what was accepted outlives the scheduler with its journal, and the client."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scaler import Client
from support.faults import Services
from support.waiting import wait_until
from test_faults import Flight

TASKS = 1000


@pytest.mark.parametrize("seed", range(2))
def test_the_scheduler_is_killed_again_and_again(tmp_path: Path, seed: int) -> None:
    """With agents that come back nothing runs twice."""
    draw = random.Random(seed)
    journal = tmp_path / "journal"
    with Services(tmp_path, "--journal", str(journal)) as services:
        services.add_agent(2)
        services.add_agent(1)
        with Client(services.address) as client:
            flight = Flight(client, tmp_path, 0.005)
            for part in range(1, 4):
                flight.wait_for(TASKS * part // 8)
                time.sleep(draw.uniform(0.0, 0.05))
                services.scheduler.kill()
                services.start_scheduler()
            runs = flight.land(60)
        assert sum(runs.values()) == TASKS, "nothing runs twice, since every agent is back in time"


def test_scheduler_and_client_are_killed(tmp_path: Path) -> None:
    """All that was acknowledged runs; the client's process is not needed for it."""
    journal, runs = tmp_path / "journal", tmp_path / "runs"
    runs.touch()
    with Services(tmp_path, "--journal", str(journal)) as services:
        agent = services.add_agent(1)
        words = [sys.executable, "-c", _CLIENT, services.address, str(runs)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "some are done\n"
            services.scheduler.kill()
            client.kill()
            agent.kill()
        assert len(runs.read_text().split()) < 400
        services.start_scheduler()
        services.add_agent(2)
        wait_until(lambda: set(runs.read_text().split()) == set(map(str, range(400))), "all tasks have run", 60)


_CLIENT = """
import sys
from scaler import Client
from support.fault_tasks import step
client = Client(sys.argv[1])
futures = [client.submit(step, sys.argv[2], number, 0.01) for number in range(400)]
futures[20].result()
print("some are done", flush=True)
futures[-1].result()
"""
