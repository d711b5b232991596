"""`scaler drain` with real agents: they finish what runs, lose nothing, and leave; the exit code tells."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client
from scaler_protocol.monitoring import MonitorStatus
from support.faults import Service
from support.fleets import Fleet
from support.gates import SECONDS, Arrival, Gate, wait_at
from support.processes import PROGRAMS, Terminal, free_ports

HOST = socket.gethostname()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    running = Fleet(tmp_path)
    with running:
        yield running


def name(agent: Service) -> str:
    return f"{HOST}:{agent.pid}"


def scaler_drain(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROGRAMS / "scaler"), "drain", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS, check=False)


def draining(status: MonitorStatus) -> list[str]:
    return [each for each, drains in zip(status.agent_names, status.agent_draining, strict=True) if drains]


def test_an_agent_finishes_its_run_and_the_command_waits_for_it(fleet: Fleet, gate: Gate) -> None:
    first = fleet.add_agent(1)
    with Client(fleet.address) as client:
        running = client.submit(wait_at, gate.port, 1)
        arrival = gate.arrive()
        second = fleet.add_agent(1)
        command = (PROGRAMS / "scaler", "drain", fleet.address, name(first))
        with Terminal(*command) as drain:
            fleet.wait_status(lambda status: draining(status) == [name(first)], "the agent drains")
            assert client.submit(os.getpid).result(SECONDS) in second.family()
            assert drain.process.poll() is None, "it waits for the run"
            arrival.let_go()
            assert drain.process.wait(2 * SECONDS) == 0
            assert drain.rest() == [f"{name(first)} has left"]
        assert running.result(SECONDS) == 1
        assert first.process.wait(SECONDS) == 0 and second.process.poll() is None
    log = fleet.scheduler.said()
    assert f"scaler drain drains all workers of {name(first)}" in log and name(second) not in log.split("drains")[1]


def test_all_agents_of_a_host_without_waiting(fleet: Fleet, gate: Gate) -> None:
    agents = [fleet.add_agent(1) for _ in range(2)]
    with Client(fleet.address) as client:
        futures = [client.submit(wait_at, gate.port, number) for number in range(2)]
        arrivals: list[Arrival] = [gate.arrive() for _ in futures]
        done = scaler_drain(fleet.address, "--host", HOST, "--no-wait", "-t", str(SECONDS))
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(done.stdout.splitlines()) == sorted(f"{name(agent)} drains" for agent in agents)
        done = scaler_drain(fleet.address, "--host", HOST, "-t", "2")
        assert done.returncode == 1
        assert sorted(done.stdout.splitlines()) == sorted(f"{name(agent)} is still there after 2 s" for agent in agents)
        for arrival in arrivals:
            arrival.let_go()
        assert [future.result(SECONDS) for future in futures] == [0, 1]
        assert [agent.process.wait(SECONDS) for agent in agents] == [0, 0]


def test_an_agent_that_dies_meanwhile_was_lost(fleet: Fleet, gate: Gate) -> None:
    agent = fleet.add_agent(1)
    with Client(fleet.address) as client:
        running = client.submit_verbose(wait_at, (gate.port, 1), {}, retries=0)
        gate.arrive()
        with Terminal(PROGRAMS / "scaler", "drain", fleet.address, name(agent)) as drain:
            fleet.wait_status(lambda status: draining(status) == [name(agent)], "the agent drains")
            os.kill(agent.pid, signal.SIGKILL)
            assert drain.process.wait(2 * SECONDS) == 1
            (line,) = drain.rest()
            assert line.startswith(f"{name(agent)} was lost: ")
        agent.process.wait(SECONDS)
        running.cancel()


def test_another_scheduler_is_not_told(fleet: Fleet, gate: Gate) -> None:
    agent = fleet.add_agent(1)
    with Client(fleet.address, timeout_seconds=SECONDS) as client:
        running = client.submit(wait_at, gate.port, 1)
        arrival = gate.arrive()
        with Terminal(PROGRAMS / "scaler", "drain", fleet.address, name(agent)) as drain:
            fleet.wait_status(lambda status: draining(status) == [name(agent)], "the agent drains")
            fleet.scheduler.kill()
            fleet.start_scheduler()
            assert drain.process.wait(2 * SECONDS) == 1
            assert "was started again" in drain.rest()[-1]
        arrival.let_go()
        assert running.result(SECONDS) == 1
        assert agent.process.wait(2 * SECONDS) == 0, "it drains nevertheless"


def test_who_is_unknown_and_where_nobody_answers(fleet: Fleet) -> None:
    agent = fleet.add_agent(1)
    done = scaler_drain(fleet.address, name(agent), "nobody:1", "-t", str(SECONDS))
    assert done.returncode == 1 and "no agent or unit is called 'nobody:1'" in done.stderr
    assert scaler_drain(fleet.address).returncode == 2
    nobody = f"tcp://127.0.0.1:{free_ports()}"
    done = scaler_drain(nobody, "a", "-t", "1")
    assert (done.returncode, done.stdout) == (1, "") and "no scheduler answers at" in done.stderr
    status = fleet.wait_status(lambda status: status.agents, "the agent")
    assert draining(status) == [] and agent.process.poll() is None
