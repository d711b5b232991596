"""Graphs in the World: every fault in the middle of one, and nothing is left over."""

from __future__ import annotations

from random import Random

import pytest

from world.callers import WorldFuture
from world.cluster import World
from world.plans import Plan

SEEDS = range(3)


def start(world: World, seed: int, nodes: int = 60, *, failing: float = 0.0) -> list[WorldFuture]:
    """A random graph of a client, in layers of 12: nodes take up to three of the layer before, the last ones and some
    others are asked for."""
    random = Random(seed)
    needs: list[list[int]] = []
    for at in range(nodes):
        layer = range(max(0, at // 12 * 12 - 12), at // 12 * 12)
        needs.append(random.sample(layer, random.randint(1, 3)) if layer else [])
    plans = [Plan(random.uniform(0.001, 0.03), f"n{at}", raises=random.random() < failing) for at in range(nodes)]
    taken = {need for each in needs for need in each}
    asked = [at for at in range(nodes) if at not in taken or random.random() < 0.1]
    return world.client.graph(plans, needs, asked)


@pytest.mark.parametrize("seed", SEEDS)
def test_undisturbed(seed: int) -> None:
    world = World(seed, hosts=[2, 1])
    futures = start(world, seed)
    world.finish()
    world.check_as_expected(futures)
    assert len(world.history) == 60 and len(world.client.answers) == len(futures), "only what was asked for comes back"
    world.rest()


@pytest.mark.parametrize("seed", SEEDS)
def test_failing_nodes(seed: int) -> None:
    world = World(seed, hosts=[2, 1])
    futures = start(world, seed, failing=0.1)
    world.finish()
    world.check_as_expected(futures)
    world.rest()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("away", [0.0, 0.5])
def test_a_restarted_scheduler_is_told_again(seed: int, away: float) -> None:
    world = World(seed, hosts=[2, 1])
    futures = start(world, seed)
    world.run(0.05 + 0.03 * seed)
    assert world.client.unfinished and world.history
    world.restart_scheduler(away)
    world.finish(60.0)
    world.check_as_expected(futures)
    world.rest(10.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_and_hosts_that_are_lost(seed: int) -> None:
    world = World(seed, hosts=[2, 2, 1])
    futures = start(world, seed)
    world.run(0.1)
    world.kill_worker(world.hosts[0])
    world.hosts[1].kill()
    world.finish(60.0)
    world.check_as_expected(futures)
    world.rest(10.0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_cancelling_one_or_all(seed: int, seconds: float) -> None:
    world = World(seed, hosts=[2])
    futures = start(world, seed)
    other = start(world, seed + 10)
    world.run(seconds)
    world.client.cancel(*[future for future in futures if future.outcome() is None])
    pending = [future for future in other if future.outcome() is None]
    world.client.cancel(*pending[:1])
    world.finish()
    assert all(future.outcome() is not None for future in other)
    world.rest()


def test_a_client_that_leaves() -> None:
    world = World(hosts=[2])
    start(world, 5)
    world.run(0.1)
    world.client.leave(world.network.now)
    world.rest(10.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_connections_that_are_cut(seed: int) -> None:
    world = World(seed, hosts=[2])
    futures = start(world, seed)
    for _ in range(3):
        world.run(0.06)
        world.connection(world.client).cut()
    world.finish(60.0)
    world.check_as_expected(futures)
    world.rest(10.0)
