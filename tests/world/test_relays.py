"""Relays: many agents as one, and what happens when each of the processes is lost."""

from __future__ import annotations

import pytest

from scaler_protocol.addresses import Address
from scaler_protocol.messages import Group
from scaler_scheduler.relay.core import JOIN_SECONDS
from world.cluster import World, plans
from world.plans import FUNCTION, Plan
from world.relays import RELAY_ADDRESS


def relayed(seed: int = 1, *, hosts: int = 3, workers: int = 2) -> World:
    """A cluster whose hosts are behind a relay."""
    world = World(seed, hosts=0)
    world.add_relay()
    world.run(0.1)
    for _ in range(hosts):
        world.add_host(workers, address=RELAY_ADDRESS)
    world.run(0.2)
    return world


def test_tasks_run_on_the_hosts_of_a_relay() -> None:
    world = relayed()
    futures = world.client.submit(*plans(200))
    world.finish()
    world.check_as_expected(futures)
    assert {execution.host for execution in world.history} == {"host0", "host1", "host2"}
    assert all(len(world.executions(future)) == 1 for future in futures)
    assert [agent.workers for agent in world.scheduler.core.state.agents.values()] == [6]
    world.rest(30.0)


def test_an_outcome_does_not_wait_for_company_that_cannot_come() -> None:
    """Otherwise each of many calls that follow one another, as along a chain of a graph, takes as long as that wait."""
    world = relayed()
    began = world.now
    for _ in range(20):
        (future,) = world.client.submit(*plans(1, 0.0))
        world.until(future.outcome)
    assert world.now - began < 20 * JOIN_SECONDS / 2
    world.finish()
    world.rest(30.0)


def test_a_relay_without_hosts_takes_no_tasks_and_does_not_drain() -> None:
    world = World(1, hosts=0)
    world.add_relay()
    world.run(0.1)
    (relay,) = world.scheduler.core.state.agents.values()
    assert not relay.is_draining
    futures = world.client.submit(*plans(3))
    world.run(1.0)
    assert not relay.runs
    world.add_host(1, address=RELAY_ADDRESS)
    world.finish()
    world.check_as_expected(futures)


def check_nothing_ran_twice(world: World) -> None:
    tasks = [execution.task for execution in world.history]
    assert len(tasks) == len(set(tasks)), "a task was run twice though its agent lives"


SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("at", [0.0, 0.02, 0.5])
def test_agents_go_on_at_the_scheduler_when_their_relay_is_killed(seed: int, at: float) -> None:
    world = relayed(seed)
    futures = world.client.submit(*plans(60, 0.3), *plans(100, 0.01))
    world.run(at)
    world.relays[0].shell.kill()
    world.finish(30.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    assert len(world.scheduler.core.state.agents) == 3
    world.rest(30.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_another_relay_at_the_address_takes_the_agents_over(seed: int) -> None:
    world = relayed(seed)
    futures = world.client.submit(*plans(60, 0.3), *plans(100, 0.01))
    world.run(0.4)
    world.relays[0].shell.kill()
    world.add_relay()
    for host in world.hosts:
        host.dialer._fallback = None  # the scheduler cannot be reached from there
    world.finish(30.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    assert len(world.scheduler.core.state.agents) == 1
    world.rest(30.0)


def test_runs_go_on_when_the_second_relay_is_killed_too() -> None:
    world = relayed()
    futures = world.client.submit(*plans(6, 15.0))
    world.run(0.4)
    world.relays[0].shell.kill()
    world.add_relay()
    for host in world.hosts:
        host.dialer._fallback = None  # the scheduler cannot be reached from there
    world.until(lambda: len(world.relays[1].core.leases.runs) == 6 and len(world.relays[1].core._state.agents) == 3)
    world.run(6.0)
    world.relays[1].shell.kill()
    world.finish(30.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    world.rest(30.0)


@pytest.mark.parametrize("fault", ["scheduler", "connections"])
def test_runs_go_on_when_hosts_that_had_moved_come_to_a_relay_again(fault: str) -> None:
    world = World(1, hosts=0, journal=True)
    world.add_relay()
    world.run(0.1)
    for _ in range(3):
        world.add_host(2, address=RELAY_ADDRESS)
    futures = world.client.submit(*plans(6, 15.0))
    world.run(0.4)
    world.relays[0].shell.kill()
    world.until(lambda: len(world.scheduler.core.state.agents) == 3)
    world.add_relay()
    world.run(2.0)
    if fault == "scheduler":
        world.restart_scheduler()
    else:
        for host in world.hosts:
            host.dialer.connection.cut()
            host.dialer._attempts = 1  # the next one is at the relay
    world.until(lambda: len(world.relays[1].core._state.agents) == 3)
    world.finish(40.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    world.rest(40.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_relay_that_was_stopped_for_long(seed: int) -> None:
    world = relayed(seed)
    futures = world.client.submit(*plans(60, 0.3), *plans(100, 0.01))
    world.run(0.4)
    world.relays[0].shell.stop(20.0)
    world.finish(60.0)
    world.check_as_expected(futures)
    world.rest(40.0)


@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_scheduler_is_killed_above_a_relay(seed: int, journal: bool) -> None:
    world = World(seed, hosts=0, journal=journal)
    world.add_relay()
    world.run(0.1)
    for _ in range(3):
        world.add_host(2, address=RELAY_ADDRESS)
    futures = world.client.submit(*plans(60, 0.3), *plans(100, 0.01))
    world.run(0.6)
    world.restart_scheduler()
    world.finish(30.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    world.rest(40.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_scheduler_and_relay_are_killed(seed: int) -> None:
    world = relayed(seed)
    futures = world.client.submit(*plans(60, 0.3), *plans(100, 0.01))
    world.run(0.6)
    world.relays[0].shell.kill()
    world.restart_scheduler()
    world.finish(40.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    world.rest(40.0)


def test_a_host_is_lost_behind_a_relay() -> None:
    world = relayed()
    futures = world.client.submit(*plans(60, 0.3))
    world.run(0.4)
    world.host.kill()
    world.finish(30.0)
    world.check_as_expected(futures)
    world.until(lambda: [agent.workers for agent in world.scheduler.core.state.agents.values()] == [4])
    world.rest(30.0)


def test_tasks_that_raise_kill_workers_and_time_out() -> None:
    world = relayed()
    raising = world.client.submit(Plan(0.01, raises=2), group=Group(FUNCTION, retries=2))
    failing = world.client.submit(Plan(0.01, raises=9), group=Group(FUNCTION, retries=2))
    deadly = world.client.submit(Plan(0.01, kills_worker=9), Plan(0.01, kills_worker=1))
    (late,) = world.client.submit(Plan(50.0), group=Group(FUNCTION, timeout_seconds=0.5))
    world.finish(30.0)
    world.check_as_expected([*raising, *failing, *deadly])
    assert type(late.error).__name__ == "TaskTimeoutError"
    assert [execution.attempt for execution in world.executions(raising[0])] == [1, 2, 3]
    assert len(world.executions(failing[0])) == 3
    world.rest(30.0)


def test_runs_that_are_lost_behind_a_relay_count_elsewhere() -> None:
    """A task that ends its workers does so three times in all, also when it goes from a relay to the scheduler."""
    world = relayed(hosts=1, workers=1)
    (deadly,) = world.client.submit(Plan(0.5, kills_worker=9))
    world.until(lambda: len(world.executions(deadly)) == 3)
    world.relays[0].shell.kill()
    world.finish(30.0)
    world.check_as_expected([deadly])
    assert [execution.attempt for execution in world.executions(deadly)] == [1, 2, 3]
    world.rest(30.0)


@pytest.mark.parametrize("fault", ["none", "relay", "scheduler"])
def test_tasks_submit_tasks_behind_a_relay(fault: str) -> None:
    world = relayed()
    parent = Plan(0.01, "p", children=(Plan(0.3, "c"), Plan(0.3, "d", children=(Plan(0.3, "e"),))))
    futures = world.client.submit(*[parent] * 6)
    world.run(0.4)
    if fault == "relay":
        world.relays[0].shell.kill()
    if fault == "scheduler":
        world.restart_scheduler()
    world.finish(40.0)
    world.check_as_expected(futures)
    world.rest(40.0)


@pytest.mark.parametrize("fault", ["none", "relay", "scheduler"])
def test_graphs_behind_a_relay(fault: str) -> None:
    world = relayed()
    needs: list[tuple[int, ...]] = [(), (), (), (), (0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (6, 7), (8, 9)]
    (last,) = world.client.graph([Plan(0.2, f"n{at}") for at in range(11)], needs, [10])
    world.run(0.3)
    if fault == "relay":
        world.relays[0].shell.kill()
    if fault == "scheduler":
        world.restart_scheduler()
    world.finish(40.0)
    world.check_as_expected([last])
    world.rest(40.0)


@pytest.mark.parametrize("fault", ["none", "relay"])
def test_cancelled_tasks_stop(fault: str) -> None:
    world = relayed()
    futures = world.client.submit(*plans(20, 30.0))
    other = world.client.submit(*plans(20, 0.1))
    world.run(0.3)
    if fault == "relay":
        world.relays[0].shell.kill()
        world.run(0.3)
    world.client.cancel(*futures)
    world.finish(10.0)
    world.check_as_expected(other)
    world.rest(40.0)


def test_idle_hosts_get_what_waits_at_a_relay() -> None:
    world = relayed(hosts=1)
    futures = world.client.submit(*plans(40, 1.0))
    world.run(0.5)
    for _ in range(4):
        world.add_host(4)
    began = world.now
    world.finish(30.0)
    assert world.now - began < 5.0
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    world.rest(30.0)


@pytest.mark.parametrize("lower", [True, False])
def test_relays_below_a_relay(lower: bool) -> None:
    world = World(2, hosts=0)
    world.add_relay()
    world.run(0.1)
    address = Address(path="/world/lower")
    world.add_relay(address, RELAY_ADDRESS)
    world.run(0.1)
    for _ in range(3):
        world.add_host(2, address=address)
    futures = world.client.submit(*plans(60, 0.3), *plans(100, 0.01))
    world.run(0.5)
    world.relays[1 if lower else 0].shell.kill()
    world.finish(40.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    world.rest(40.0)
