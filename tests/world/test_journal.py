"""The scheduler has a journal: what was accepted survives it, and the client's process; nothing runs twice for it."""

from __future__ import annotations

import pytest

from scaler_protocol.messages import Status
from world.cluster import World, plans
from world.plans import LOST_RUNS, Plan
from world.test_graphs import start
from world.test_restart import check_nothing_ran_twice

SEEDS = range(3)


def restart(world: World, away: float = 0.2) -> None:
    """Kill the scheduler, start another one with its journal."""
    world.restart_scheduler(away)
    journal = world.scheduler.journal
    assert journal is not None
    journal.check()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("away", [0.0, 0.2, 3.0])
def test_with_work_queued_and_running(seed: int, away: float) -> None:
    world = World(seed, hosts=[2, 2], clients=2, journal=True)
    futures = [future for client in world.clients for future in client.submit(*plans(100, 0.05))]
    world.run(1.0)
    restart(world, away)
    world.finish(30.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    world.rest()


@pytest.mark.parametrize("step", range(12))
def test_a_scheduler_killed_at_every_point(step: int) -> None:
    """Four restarts, each a little later than the one before; tasks raise, die, need and submit others."""
    world = World(step, hosts=[2, 1], clients=2, journal=True)
    first, second = world.clients
    sources = first.submit(Plan(0.004, "a"), Plan(0.01, "b"))
    futures = [*sources, *first.submit(*plans(20, 0.003)), *second.submit(*plans(20, 0.002))]
    futures += first.map(*plans(10, 0.004), needs=sources)
    futures += second.submit(Plan(0.002, children=(Plan(0.003),) * 3), Plan(0.001, raises=1000))
    futures += second.submit(Plan(0.002, kills_worker=1))
    for number in range(4):
        world.run(0.0013 * step + 0.0007 * number)
        restart(world, 0.05)
    world.finish(30.0)
    world.check_as_expected(futures)
    world.rest(10.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_client_is_killed_with_it(seed: int) -> None:
    """Its tasks go on until it is given up."""
    world = World(seed, hosts=[2], clients=2, journal=True)
    futures = world.client.submit(*plans(50, 0.1))
    others = world.clients[1].submit(*plans(10, 0.1))
    world.run(0.5)
    world.client.shell.kill()
    world.client.gone = True
    restart(world)
    world.until(lambda: {run.task for run in world.history} >= {future.task_id for future in futures}, 10.0)
    world.finish()
    world.check_as_expected(others)
    check_nothing_ran_twice(world)
    world.rest(world.config.client_timeout_seconds + 5.0)


def test_a_missing_host_delays_its_own_tasks_only() -> None:
    world = World(hosts=[1, 1], journal=True)
    futures = world.client.submit(*plans(40, 0.1))
    world.run(0.5)
    world.hosts[1].shell.stop(60.0)
    restart(world)
    began = world.now
    world.until(lambda: len(world.delivered(futures)) >= 20, 3.0)
    assert world.now - began < world.scheduler.core.state.config.recovery_seconds
    world.finish(30.0)
    world.check_as_expected(futures)


def test_deadly_tasks_do_not_live_longer_with_each_scheduler() -> None:
    world = World(hosts=[1], journal=True)
    (deadly,) = world.client.submit(Plan(2.0, kills_worker=LOST_RUNS))
    for runs in range(1, LOST_RUNS):
        world.until(lambda count=runs: len(world.executions(deadly)) > count)  # type: ignore[misc]
        world.run(0.05)
        restart(world)
    world.finish(10.0)
    assert deadly.status == Status.FAILED
    assert len(world.executions(deadly)) == LOST_RUNS
    world.rest()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_graph_does_not_begin_again(seed: int) -> None:
    world = World(seed, hosts=[2, 1], journal=True)
    futures = start(world, seed)
    for _ in range(3):
        world.run(0.05 + 0.03 * seed)
        restart(world)
    world.finish(10.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    world.rest()
