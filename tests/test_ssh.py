"""A fleet on hosts that ssh reaches, with real processes: it follows the load, and no task is lost whatever ends."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client
from scaler_io.transport.own_keys import own_keys
from support.faults import TESTS, Service
from support.fleets import Fleet
from support.gates import SECONDS, Gate, wait_at
from support.processes import Watched
from support.sshd import Sshd, running_sshd
from support.waiting import wait_until


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as started:
        yield started


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    running = Fleet(tmp_path)
    with running:
        yield running


def add_manager(fleet: Fleet, sshd: Sshd, *words: str) -> Service:
    return fleet.add_manager(
        -1, "--hosts", "one:2,away,two:2", "--ssh-arguments", f"-F {sshd.client_configuration}",
        "--remote-directory", str(fleet.folder / "remote"), "--setup", f"export PYTHONPATH={TESTS}",
        "--poll-interval-seconds", "1", "--keys", str(own_keys()), *words, id="lab", kind="ssh",
    )  # fmt: skip


def agents(fleet: Fleet) -> set[int]:
    """The process ids of all units; the file of one that ends may vanish meanwhile."""
    found = set()
    for path in fleet.folder.glob("remote/**/*.pid"):
        with contextlib.suppress(FileNotFoundError):
            found.add(int(path.read_text("utf-8").split()[0]))
    return found


def test_hosts_follow_the_load_and_units_survive_their_manager(sshd: Sshd, fleet: Fleet, gate: Gate) -> None:
    manager = add_manager(fleet, sshd)
    with Client(fleet.address) as client:
        futures = [client.submit(wait_at, gate.port, number) for number in range(8)]
        arrivals = [gate.arrive(SECONDS) for _ in range(4)]
        before = agents(fleet)
        fleet.wait_status(lambda status: sum(status.manager_joined) == 4, "four workers")
        away = "host away: connect to host"
        fleet.wait_status(lambda status: away in "".join(status.manager_failures), "why there is no fifth")
        manager.kill()
        manager = add_manager(fleet, sshd)
        wait_until(lambda: "workers wanted" in manager.said(), "a manager that knows what is wanted")
        os.kill(min(before), signal.SIGKILL)
        arrivals.append(gate.arrive(SECONDS))
        wait_until(lambda: len(agents(fleet)) == 4, "one in place of the one killed")
        assert len(agents(fleet) & before) == 3, "and no more"
        for arrival in arrivals:
            arrival.let_go()
        for _ in range(4):
            gate.arrive(SECONDS).let_go()
        assert [future.result(SECONDS) for future in futures] == list(range(8))
        fleet.wait_status(lambda status: not status.agents, "no workers")
        wait_until(lambda: not agents(fleet), "no units")
    manager.process.terminate()
    assert manager.process.wait(SECONDS) == 0, manager.said()


def test_units_end_on_their_own_without_scheduler_and_manager(sshd: Sshd, fleet: Fleet, gate: Gate) -> None:
    manager = add_manager(fleet, sshd, "--death-timeout-seconds", "2")
    with Client(fleet.address) as client:
        futures = [client.submit(wait_at, gate.port, number) for number in range(2)]
        for _ in futures:
            gate.arrive(SECONDS)
        with Watched(agents(fleet)) as units:
            manager.kill()
            fleet.scheduler.kill()
            assert units.wait_gone(SECONDS) == []
