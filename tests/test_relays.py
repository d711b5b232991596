"""Relays between a scheduler and agents: real processes, some of which are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import sleep

import pytest

from scaler import Client
from scaler_protocol.addresses import Address
from scaler_protocol.errors import TaskTimeoutError, WorkerDiedError
from support.fault_tasks import kill_itself, nested_sum, step
from support.faults import Service, Services
from support.gates import SECONDS, Gate, wait_at
from support.processes import free_ports
from support.waiting import wait_until


class Relayed(Services):
    """A scheduler, a relay, and two agents of two workers each behind it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.behind = f"tcp://127.0.0.1:{free_ports(1)}"
        self.relay_process = self.start_relay()
        self.agents = [self.add_agent(2, address=Address.parse(self.behind)) for _ in range(2)]

    def start_relay(self) -> Service:
        """Start a relay on the address that agents know."""
        log = self.folder / f"relay-{len(self.started)}.log"
        relay = Service(log, "scaler_scheduler.relay", self.behind, "--scheduler", self.address)
        self.started.append(relay)
        wait_until(lambda: "connected to the scheduler" in relay.said(), "a relay")
        return relay


def knows(agent: Service, address: str) -> bool:
    """Whether an agent has connected to a service."""
    return f"connected to the scheduler at {address}" in agent.said()


@pytest.fixture
def relayed(tmp_path: Path) -> Iterator[Relayed]:
    services = Relayed(tmp_path)
    with services:
        yield services


def test_work_of_every_kind_passes_a_relay(relayed: Relayed, tmp_path: Path) -> None:
    with Client(relayed.address) as client:
        assert client.wait_for_workers(4).count == 4
        assert len(set(client.run(os.getpid).values())) == 4
        assert client.map(pow, range(5000), [2] * 5000) == [number**2 for number in range(5000)]
        assert client.submit(nested_sum, client, 6).result(SECONDS) == 21
        naps = [client.submit(sleep, 0.05) for _ in range(40)]
        assert all(nap.result(SECONDS) is None for nap in naps)
        assert len({nap.profiling_info().worker.split("/")[0] for nap in naps}) == 2, "both agents, by their own names"
        big = client.submit(bytes, 3_000_000)
        assert client.submit(len, big).result(SECONDS) == 3_000_000
        chain = client.get({"a": (abs, -7), "b": (pow, "a", 2), "c": (sum, ["a", "b"])}, ["c"])
        assert chain == {"c": 56}
        with pytest.raises(ZeroDivisionError):
            client.submit(divmod, 1, 0).result(SECONDS)
        with pytest.raises(TaskTimeoutError, match=r"0\.1 s"):
            client.options(timeout=0.1).submit(sleep, SECONDS).result(SECONDS)
        with pytest.raises(WorkerDiedError, match=r"attempt 3; .*3 runs lost"):
            client.submit(kill_itself, str(tmp_path / "runs")).result(SECONDS)
        with Gate() as gate:
            held = client.submit(wait_at, gate.port, 0)
            arrival = gate.arrive()
            held.cancel()
            arrival.wait_gone()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_runs_go_on_when_the_relay_ends(relayed: Relayed, tmp_path: Path, number: int) -> None:
    notes = str(tmp_path / "notes")
    with Gate() as gate, Client(relayed.address) as client:
        held = [client.submit(wait_at, gate.port, at) for at in range(4)]
        arrivals = [gate.arrive() for _ in held]
        queued = [client.submit(step, notes, at, 0.0) for at in range(20)]
        relayed.relay_process.process.send_signal(number)
        relayed.relay_process.process.wait(SECONDS)
        for agent in relayed.agents:
            wait_until(partial(knows, agent, relayed.address), "the scheduler")
        for arrival in arrivals:
            arrival.let_go()
        assert [future.result(SECONDS) for future in held] == [0, 1, 2, 3]
        assert [future.result(SECONDS)[0] for future in queued] == list(range(20))
    assert sorted(map(int, Path(notes).read_text("utf-8").split())) == list(range(20)), "none has run twice"


def test_what_a_relay_refuses(relayed: Relayed, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match=f"relay.* connect to the scheduler at {relayed.address}"):
        Client(relayed.behind)
    command = [sys.executable, "-m", "scaler_worker", relayed.behind, "-n", "1"]
    for words, reason in (
        (["--per-worker-capabilities", "gpu=1"], "the hosts of a relay are alike: this agent offers gpu=1 and"),
        (["--host-capabilities", "license=2"], "does not count quantities, and this agent has some of license"),
    ):
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 1
        assert reason in done.stderr
        assert f"connect the agent to the scheduler at {relayed.address}" in done.stderr


def test_a_relay_that_cannot_serve_says_why(tmp_path: Path) -> None:
    port = free_ports(1)
    command = [sys.executable, "-m", "scaler_scheduler.relay", f"tcp://127.0.0.1:{port}", "--scheduler"]
    done = subprocess.run(
        [*command, f"tcp://127.0.0.1:{port}"], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 2
    assert "is this relay's own address" in done.stderr
    nobody = free_ports(1)
    done = subprocess.run(
        [*command, f"tcp://127.0.0.1:{nobody}", "--death-timeout-seconds", "0.5"],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"no scheduler at tcp://127.0.0.1:{nobody}" in done.stderr
