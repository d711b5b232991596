"""Consumables: of what a host has a quantity, its runs never have more at one time, whatever breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from world.cluster import World, plans
from world.licenses import cancelled, cut_off, host_killed, needing, restarted, worker_killed
from world.plans import Plan

SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
def test_others_run_beside_those_that_wait_for_it(seed: int) -> None:
    world = World(seed, hosts=[4], consumables={"license": 2})
    limited = world.client.submit(*plans(20, 0.1), group=needing())
    present = world.client.submit(*plans(2, 0.1), group=needing(-1))
    others = world.client.submit(*plans(20, 0.1))
    began = world.now
    world.finish()
    assert world.most_taken(world.host, "license") == 2
    assert world.now - began < 1.3, "a worker was idle though a task could have run"
    world.check_as_expected([*limited, *present, *others])
    world.rest()


@pytest.mark.parametrize("seed", SEEDS)
def test_each_host_has_its_own(seed: int) -> None:
    world = World(seed, hosts=[2, 2, 2], consumables={"license": 1})
    world.client.submit(*plans(30, 0.1), group=needing())
    began = world.now
    world.finish()
    assert [world.most_taken(host, "license") for host in world.hosts] == [1, 1, 1]
    assert world.now - began < 1.3, "a host did nothing although it had what waits"


def test_what_needs_more_is_not_overtaken_by_what_needs_less() -> None:
    world = World(hosts=[4], consumables={"license": 3, "dongle": 1})
    world.client.submit(Plan(0.1), Plan(0.15), Plan(0.2), group=needing())
    (big,) = world.client.submit(Plan(0.1), group=needing(3, dongle=1))
    small = world.client.submit(*plans(30, 0.1), group=needing())
    others = world.client.submit(*plans(5, 0.1))
    world.until(lambda: big.outcome(), 0.35)
    assert not any(map(world.executions, small))
    assert all(map(world.executions, others)), "what needs nothing does not wait"
    world.finish()
    world.check_as_expected([big, *small, *others])
    assert world.most_taken(world.host, "license") == 3


def test_a_client_that_needs_none_has_its_turns_and_one_that_does_has_its_own() -> None:
    world = World(hosts=[2], clients=2, consumables={"license": 1})
    first, second = world.clients
    first.submit(*plans(200, 0.05))
    limited = second.submit(*plans(20, 0.05), group=needing())
    world.until(lambda: all(future.outcome() for future in limited), 2.5)


def test_a_parent_keeps_it_while_its_children_run() -> None:
    world = World(hosts=[2], consumables={"license": 1})
    family = Plan(0.05, children=(Plan(0.3), Plan(0.3)))
    futures = world.client.submit(family, family, group=needing())
    world.finish()
    assert world.most_taken(world.host, "license") == 1
    world.check_as_expected(futures)


@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", [restarted, cut_off, cancelled, worker_killed, host_killed])
def test_never_more_at_once(fault: Callable[[World], None], seed: int, journal: bool) -> None:
    world = World(seed, hosts=[4], consumables={"license": 2}, journal=journal)
    world.client.submit(*plans(3, 0.5), *plans(6, 8.0), group=needing())
    world.client.submit(*plans(50, 0.001))
    world.run(1.5)
    fault(world)
    world.client.submit(*plans(6, 0.5), group=needing())
    world.finish()
    assert max(world.most_taken(host, "license") for host in world.hosts) == 2
    world.rest(10.0)


def test_what_is_missing_is_named() -> None:
    world = World(hosts=[4, 4], consumables={"license": 2})
    futures = world.client.submit(*plans(6, 5.0), group=needing())
    world.run(1.0)
    said = world.scheduler.core.why(futures[-1].task_id, world.now)
    assert said == ["it waits for license (4 of 4 in use)", "it waits behind 1 task of priority 0"]
