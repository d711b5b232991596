"""The scheduler is killed and started again on its address: its state is put together from what the others hold."""

from __future__ import annotations

import pytest

from scaler_protocol.messages import Group, Status
from scaler_worker.agent.core import functions
from world.cluster import World, plans
from world.plans import FUNCTION, LOST_RUNS, OTHER_FUNCTION, Plan

SEEDS = range(3)


def check_nothing_ran_twice(world: World) -> None:
    tasks = [execution.task for execution in world.history]
    assert len(tasks) == len(set(tasks)), "a task was run twice though its agent was back in time"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("away", [0.0, 0.2, 3.0])
def test_with_work_queued_and_running(seed: int, away: float) -> None:
    world = World(seed, hosts=[2, 2], clients=2)
    futures = [future for client in world.clients for future in client.submit(*plans(100, 0.05))]
    world.run(1.0)
    world.restart_scheduler(away)
    world.finish(30.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    world.rest()


def test_new_work_runs_at_once() -> None:
    world = World(hosts=[2])
    old = world.client.submit(*plans(4, 1.0))
    world.run(0.1)
    world.restart_scheduler()
    world.run(1.5)
    new = world.client.submit(*plans(10, 0.01))
    world.until(lambda: all(future.outcome() for future in new), 2.0)
    world.finish(20.0)
    world.check_as_expected([*old, *new])
    world.rest()


def test_with_work_that_ended_and_was_not_delivered() -> None:
    world = World(hosts=[2])
    futures = world.client.submit(*plans(20, 0.05))
    world.run(0.2)
    world.connection(world.client).stall(10.0, up=False)
    world.run(2.0)
    assert all(map(world.done_at_scheduler, world.client.unfinished.values()))
    world.connection(world.client).cut(down_lost=1000)
    world.restart_scheduler()
    world.finish(20.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    world.rest(10.0)


def test_with_results_that_were_delivered_and_not_yet_released() -> None:
    world = World(hosts=[2])
    futures = world.client.submit(*plans(20, 0.05))
    world.run(0.2)
    world.client.shell.stop(4.0)
    world.run(2.0)
    world.restart_scheduler()
    world.finish(20.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    world.rest(10.0)


def test_with_work_that_ends_in_the_window_before_its_client_is_back() -> None:
    world = World(hosts=[2])
    futures = world.client.submit(*plans(4, 1.0))
    world.run(0.1)
    world.client.shell.stop(3.0)
    world.restart_scheduler()
    world.finish(20.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    world.rest()


def test_with_work_that_ends_while_there_is_no_scheduler() -> None:
    world = World(hosts=[2])
    futures = world.client.submit(*plans(4, 0.5))
    world.run(0.1)
    world.restart_scheduler(3.0)
    world.finish(20.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    world.rest()


@pytest.mark.parametrize("journal", [False, True])
def test_with_failures_of_the_engine_that_were_not_delivered(journal: bool) -> None:
    world = World(journal=journal)
    (late,) = world.client.submit(Plan(100.0), group=Group(FUNCTION, timeout_seconds=0.5))
    world.run(0.2)
    world.restart_scheduler(2.0)
    world.finish(20.0)
    assert type(late.error).__name__ == "TaskTimeoutError"
    assert len(world.executions(late)) == 1
    world.rest()


def test_with_blocks_and_arguments() -> None:
    world = World(hosts=[2])
    sources = world.client.submit(Plan(0.01, "a"), Plan(1.5, "b"))
    last = world.client.map(*plans(50, 0.05), needs=sources)
    world.run(0.3)
    world.restart_scheduler()
    world.finish(20.0)
    world.check_as_expected([*sources, *last])
    world.rest()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("workers", [[1], [2], [1, 1]])
@pytest.mark.parametrize("tells", [True, False])
def test_with_parents_that_wait_for_their_children(seed: int, workers: list[int], tells: bool) -> None:
    world = World(seed, hosts=workers)
    branch = Plan(0.02, "branch", children=(Plan(0.3, "leaf"),) * 3, tells=tells)
    futures = world.client.submit(*[Plan(0.02, "root", children=(branch,) * 2, tells=tells)] * 2)
    world.run(0.4 + world.network.random.random())
    world.restart_scheduler()
    world.finish(40.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    world.rest(10.0)


def test_children_of_a_parent_that_dies_in_the_window_are_forgotten() -> None:
    world = World(hosts=[1, 1])
    (parent,) = world.client.submit(Plan(0.1, children=(Plan(4.0), Plan(4.0))))
    world.run(0.5)
    world.restart_scheduler()
    world.run(1.5)
    killed = [world.kill_worker(host) for host in world.hosts]
    assert any(killed)
    world.finish(60.0)
    world.check_as_expected([parent])
    world.rest(10.0)


def test_children_that_nobody_waits_for_end_with_their_parent() -> None:
    world = World(hosts=[2])
    (parent,) = world.client.submit(Plan(2.0, children=(Plan(100.0),), waits=False))
    world.run(0.5)
    world.restart_scheduler()
    world.finish(10.0)
    world.check_as_expected([parent])
    world.rest(10.0)


def test_its_agent_does_not_come_back() -> None:
    world = World(hosts=[1, 1])
    futures = world.client.submit(*plans(20, 0.2))
    world.run(0.5)
    world.kill_scheduler()
    world.hosts[1].kill()
    world.run(0.2)
    world.start_scheduler()
    world.finish(30.0)
    world.check_as_expected(futures)
    world.rest()


def test_an_agent_dies_when_it_is_asked_for_what_it_keeps() -> None:
    world = World(hosts=[1, 1])
    futures = world.client.submit(*plans(20, 0.05))
    world.run(0.2)
    world.connection(world.client).stall(10.0, up=False)
    world.run(1.0)
    world.connection(world.client).cut(down_lost=1000)
    world.restart_scheduler()
    world.until(lambda: world.scheduler.core._recovery._asked)
    world.hosts[1].kill()
    world.finish(30.0)
    world.check_as_expected(futures)
    world.rest()


def test_an_agent_comes_back_after_the_window() -> None:
    world = World(hosts=[1, 1])
    futures = world.client.submit(*plans(10, 3.0))
    world.run(0.5)
    world.hosts[1].shell.stop(12.0)
    world.restart_scheduler()
    world.finish(60.0)
    world.check_as_expected(futures)
    world.run(20.0)
    world.rest(10.0)


def test_a_client_comes_back_after_the_window() -> None:
    world = World(hosts=[2], clients=2)
    futures = [future for client in world.clients for future in client.submit(*plans(10, 1.0))]
    world.run(0.5)
    world.client.shell.stop(12.0)
    world.restart_scheduler()
    world.finish(60.0)
    world.check_as_expected(futures)
    world.rest(10.0)


def test_a_client_cancels_while_there_is_no_scheduler() -> None:
    world = World(hosts=[1])
    lost, *kept = world.client.submit(Plan(100.0), *plans(5))
    world.run(0.5)
    world.kill_scheduler()
    world.run(0.2)
    world.client.cancel(lost)
    world.start_scheduler()
    world.finish(20.0)
    world.check_as_expected([lost, *kept])
    world.rest(10.0)


@pytest.mark.parametrize("delay", [0.3, 1.0, 2.0, 4.9, 5.5, 6.0])
def test_a_client_cancels_while_the_window_is_open(delay: float) -> None:
    world = World(hosts=[1])
    lost, waiting, *kept = world.client.submit(Plan(100.0), Plan(100.0), *plans(5))
    world.run(0.5)
    world.restart_scheduler()
    world.run(delay)
    world.client.cancel(lost, waiting)
    world.finish(20.0)
    world.check_as_expected([lost, waiting, *kept])
    world.rest(10.0)


def test_a_client_cancels_in_the_window_what_an_agent_then_says_it_runs() -> None:
    world = World()
    lost, kept = world.client.submit(Plan(100.0), Plan())
    world.run(0.5)
    world.host.shell.stop(4.0)
    world.restart_scheduler()
    world.run(2.0)
    world.client.cancel(lost)
    world.finish(20.0)
    world.check_as_expected([lost, kept])
    world.rest(10.0)


def test_a_client_leaves_while_there_is_no_scheduler() -> None:
    world = World(hosts=[1], clients=2)
    world.clients[0].submit(*plans(5, 100.0))
    world.run(0.5)
    world.kill_scheduler()
    world.clients[0].leave(world.now)
    world.start_scheduler()
    futures = world.clients[1].submit(*plans(5))
    world.finish(20.0)
    world.check_as_expected(futures)
    world.rest(10.0)


def test_again_and_again() -> None:
    world = World(hosts=[2, 2], clients=2)
    futures = []
    for _ in range(6):
        futures += [future for client in world.clients for future in client.submit(*plans(20, 0.1))]
        world.run(world.network.random.uniform(0.1, 7.0))
        world.restart_scheduler(world.network.random.uniform(0.0, 1.0))
    world.finish(60.0)
    world.check_as_expected(futures)
    world.rest(10.0)


def test_a_task_that_kills_its_workers_is_given_up_all_the_same() -> None:
    world = World(hosts=[1])
    (deadly,) = world.client.submit(Plan(0.3, kills_worker=LOST_RUNS))
    world.until(lambda: len(world.executions(deadly)) == 2)
    world.restart_scheduler()
    world.finish(30.0)
    assert deadly.status == Status.FAILED
    world.rest()


def test_what_a_proxy_still_carries_of_an_older_life_is_ignored() -> None:
    world = World(hosts=[2])
    futures = world.client.submit(*plans(50, 0.05))
    world.run(0.5)
    world.connection(world.host).stall(1.0)
    world.connection(world.client).stall(1.0)
    futures += world.client.submit(*plans(5))
    world.run(0.3)
    world.replace_scheduler()
    world.finish(30.0)
    world.check_as_expected(futures)
    assert world.scheduler.hub.refused_frames
    check_nothing_ran_twice(world)
    world.rest()


def test_while_an_agent_waits_for_the_bytes_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "BODIES_LIMIT", 0)
    world = World()
    world.client.submit(Plan())
    world.client.submit(Plan(), group=Group(OTHER_FUNCTION))
    world.finish(1.0)
    world.run(1.0)
    world.kill_worker(world.host, busy=False)
    world.run(0.1)
    world.connection(world.host).stall(1.0, up=False)
    parked = world.client.submit(*plans(3))
    world.run(0.01)
    world.connection(world.host).stall(1.0, down=False)
    world.run(1.0)
    assert world.host.core.functions.parked_entries() and not any(map(world.executions, parked))
    world.restart_scheduler()
    world.finish(20.0)
    world.check_as_expected(parked)
    world.rest()
