"""Real processes: what was accepted outlives the scheduler with its journal, and the client."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scaler import Client
from scaler_protocol.errors import SubmitRefusedError
from support.faults import Services
from support.gates import SECONDS, Gate, wait_at
from support.mounts import fill, small_memory
from support.processes import PROGRAMS, free_ports
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
    """All that was acknowledged runs, without the client's process; another one gets the futures of its session."""
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
        with Client(services.address, session="nightly", timeout_seconds=SECONDS) as later:
            assert later.session.future("last").result(SECONDS) == 19 * 19
            assert [future.result(SECONDS) for future in later.session.futures()] == [n * n for n in range(20)] + [1]
            later.session.end()


_CLIENT = """
import sys
from scaler import Client
from support.fault_tasks import step
named = Client(sys.argv[1], session="nightly")
squares = [named.submit(pow, number, 2) for number in range(20)]
named.session.publish("last", squares[-1])
named.submit(pow, 1, 1).result()  # so the scheduler has what was sent before
client = Client(sys.argv[1])
futures = [client.submit(step, sys.argv[2], number, 0.01) for number in range(400)]
futures[20].result()
print("some are done", flush=True)
futures[-1].result()
"""


def test_a_full_disk_refuses_new_work_and_takes_it_again(tmp_path: Path) -> None:
    """What was accepted goes on meanwhile; who looks at the status is told."""
    folder = tmp_path / "disk"
    folder.mkdir()
    filler = folder / "filler"
    with small_memory(folder, 32), Services(tmp_path, "--journal", str(folder / "journal")) as services:
        agent = services.add_agent(2)
        with Client(services.address) as client, Gate() as gate:
            accepted = [client.submit(pow, number, 2) for number in range(100)]
            assert [future.result(SECONDS) for future in accepted] == [number * number for number in range(100)]
            running = client.submit(wait_at, gate.port, 1)
            arrival = gate.arrive()
            services.scheduler.process.send_signal(signal.SIGSTOP)
            fill(filler)
            services.scheduler.process.send_signal(signal.SIGCONT)
            with pytest.raises(SubmitRefusedError, match="refuses new work: the journal's disk is full"):
                for _ in range(1000):
                    client.submit(len, bytes(10_000)).result(SECONDS)
            # Who goes on asking is answered, and loses nothing.
            answers = {type(client.submit(len, b"").exception(SECONDS)) for _ in range(300)}
            assert answers <= {SubmitRefusedError, type(None)}
            arrival.let_go()
            assert running.result(SECONDS) == 1
            assert "malformed" not in services.scheduler.said()
            shown = subprocess.run([PROGRAMS / "scaler", "status", services.address], capture_output=True, text=True)
            assert "refuses new work: the journal's disk is full" in shown.stdout, shown
            filler.unlink()
            wait_until(lambda: "takes new work again" in services.scheduler.said(), "room")
            assert client.submit(pow, 3, 2).result(SECONDS) == 9
            services.scheduler.kill()
            services.start_scheduler()
            assert client.submit(pow, 4, 2).result(SECONDS) == 16
        assert agent.process.poll() is None


def test_a_second_scheduler_with_the_same_file_ends_at_once(tmp_path: Path) -> None:
    journal = str(tmp_path / "journal")
    with Services(tmp_path, "--journal", journal):
        words = [sys.executable, "-m", "scaler_scheduler", f"tcp://127.0.0.1:{free_ports()}", "--journal", journal]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 1
        assert f"journal {journal} is in use by another scheduler: stop it, or name another file" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_client_that_ends_the_scheduler_is_answered(tmp_path: Path) -> None:
    """What leaves with the last turn leaves, although it is recorded first."""
    with Services(tmp_path, "--journal", str(tmp_path / "journal"), "--no-protected") as services:
        with Client(services.address) as client:
            client.submit(pow, 2, 3)
            client.shutdown()
        assert services.scheduler.process.wait(SECONDS) == 0
        assert "ERROR" not in services.scheduler.said()
