"""Worker managers with real processes: the fleet follows the load, and no task is lost whatever is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client
from scaler_protocol.manager_rows import manager_rows
from support.fault_tasks import step
from support.faults import Service
from support.fleets import Fleet, numbers
from support.gates import SECONDS
from support.processes import Watched, children, command_line
from support.waiting import wait_until


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    running = Fleet(tmp_path)
    with running:
        yield running


def units_of(manager: Service) -> list[int]:
    """The agents that a manager has started."""
    return [pid for pid in children(manager.pid) if "--unit-id" in command_line(pid)]


def test_the_fleet_follows_the_load_and_loses_nothing(fleet: Fleet, tmp_path: Path) -> None:
    manager = fleet.add_manager(8)
    assert units_of(manager) == []
    with Client(fleet.address) as client:
        futures = [client.submit(step, str(tmp_path / "begun"), number, 1.0) for number in range(80)]
        status = fleet.wait_status(lambda status: sum(status.agent_workers) == 8, "eight workers")
        assert (tuple(status.managers), tuple(status.manager_maximums)) == (("local",), (8,))
        assert numbers(futures) == list(range(80))
        fleet.wait_status(lambda status: not sum(status.agent_workers) and not status.agents, "no workers")
        wait_until(lambda: not units_of(manager), "no units")
        assert client.submit(step, str(tmp_path / "again"), 61, 0.0).result(SECONDS)[0] == 61
    begun = (tmp_path / "begun").read_text("utf-8").splitlines()
    assert len(begun) == 80, "a drained unit runs no task twice"


def test_units_that_die_are_replaced_and_their_tasks_repeated(fleet: Fleet, tmp_path: Path) -> None:
    manager = fleet.add_manager(4)
    with Client(fleet.address) as client:
        futures = [client.submit(step, str(tmp_path / "begun"), number, 0.25) for number in range(60)]
        fleet.wait_status(lambda status: sum(status.agent_workers) == 4, "four workers")
        for pid in units_of(manager)[:2]:
            os.kill(pid, signal.SIGKILL)
        assert numbers(futures) == list(range(60))


def test_a_killed_manager_takes_its_units_along_and_its_successor_goes_on(fleet: Fleet, tmp_path: Path) -> None:
    manager = fleet.add_manager(3)
    with Client(fleet.address) as client:
        futures = [client.submit(step, str(tmp_path / "begun"), number, 0.25) for number in range(40)]
        fleet.wait_status(lambda status: sum(status.agent_workers) == 3, "three workers")
        with Watched(manager.family()) as watched:
            manager.kill()
            assert watched.wait_gone(5) == []
        fleet.add_manager(3)
        assert numbers(futures) == list(range(40))


def test_a_killed_scheduler_finds_the_fleet_again(fleet: Fleet, tmp_path: Path) -> None:
    manager = fleet.add_manager(3)
    with Client(fleet.address, timeout_seconds=SECONDS) as client:
        futures = [client.submit(step, str(tmp_path / "begun"), number, 0.25) for number in range(40)]
        fleet.wait_status(lambda status: sum(status.agent_workers) == 3, "three workers")
        before = set(units_of(manager))
        fleet.scheduler.kill()
        fleet.start_scheduler()
        assert numbers(futures) == list(range(40))
        assert set(units_of(manager)) == before, "no unit was started twice"


def test_a_second_signal_to_a_manager_ends_its_units_by_force(fleet: Fleet, tmp_path: Path) -> None:
    manager = fleet.add_manager(2)
    with Client(fleet.address) as client:
        future = client.submit(step, str(tmp_path / "begun"), 1, 10 * SECONDS)
        wait_until((tmp_path / "begun").exists, "the task runs")
        with Watched(manager.family()) as watched:
            manager.process.send_signal(signal.SIGTERM)
            fleet.wait_status(lambda status: any(status.agent_draining), "a draining agent")
            assert manager.process.poll() is None
            manager.process.send_signal(signal.SIGTERM)
            assert manager.process.wait(SECONDS) == 0
            assert watched.wait_gone(5) == []
        assert not future.done()


def test_a_second_manager_of_the_same_id_is_refused(fleet: Fleet) -> None:
    fleet.add_manager(1)
    second = fleet.add_manager(1)
    assert second.process.wait(SECONDS) == 1
    assert "worker manager 'local' is connected already" in second.said()
    fleet.started.remove(second)


def test_capabilities_start_the_manager_that_offers_them(fleet: Fleet) -> None:
    plain = fleet.add_manager(2, id="plain")
    gifted = fleet.add_manager(2, "-pwc", "gpu=1", id="gifted")
    with Client(fleet.address) as client:
        assert client.submit_verbose(round, (3.15,), {}, capabilities={"gpu": 1}).result(SECONDS) == 3
    assert "1 worker wanted" in gifted.said() and units_of(plain) == []


def test_users_see_what_managers_do(fleet: Fleet) -> None:
    fleet.add_manager(2, "-pwc", "gpu=1", id="gifted")
    with Client(fleet.address) as client:
        future = client.submit_verbose(time.sleep, (5.0,), {}, capabilities={"gpu": 1})
        (host, *_) = client.wait_for_workers(1, timeout=SECONDS).hosts
        assert (host.manager, host.capabilities) == ("gifted", {"gpu": 1})
        lacking = client.submit_verbose(round, (3.15,), {}, capabilities={"fpga": 1})
        status = fleet.wait_status(lambda status: status.waiting and sum(status.agent_workers), "who waits")
        (row,) = manager_rows(status)
        assert (row.manager, row.kind, row.maximum) == ("gifted", "baremetal_native", 2) and row.reason
        first, second = fleet.why(lacking.task_id)
        assert first == "it waits: no worker offers fpga=1" and second.startswith("worker manager gifted ")
        assert future.result(SECONDS) is None


def test_sigterm_drains_an_agent(fleet: Fleet, tmp_path: Path) -> None:
    agent = fleet.add_agent(2)
    with Client(fleet.address) as client:
        path = tmp_path / "begun"
        futures = [client.submit(step, str(path), number, 1.0) for number in range(6)]
        wait_until(lambda: path.exists() and len(path.read_text("utf-8").splitlines()) == 2, "two begun")
        agent.process.terminate()
        assert agent.process.wait(SECONDS) == 0
        fleet.add_agent(2)
        assert numbers(futures) == list(range(6))
    assert len(path.read_text("utf-8").splitlines()) == 6, "no task ran twice"
    assert "draining, for 25 s at most: SIGTERM" in agent.said()
