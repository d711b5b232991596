"""One fault at a time: every future ends in bounded time, once, and only what was running is charged."""

from __future__ import annotations

import pytest

from scaler_protocol.messages import Status
from world.callers import WorldFuture
from world.cluster import ADDRESS, World, plans
from world.hosts import SimulatedHost
from world.plans import LOST_RUNS, Plan
from world.relays import RELAY_ADDRESS

SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_is_killed_while_it_runs(seed: int) -> None:
    world = World(seed, hosts=[2])
    futures = world.client.submit(*plans(100, 0.01))
    world.run(0.2)
    killed = world.kill_worker(world.host)
    assert killed is not None
    world.finish(3.0)
    world.check_as_expected(futures)
    for future in futures:
        runs = world.executions(future)
        assert len(runs) == (2 if future.task_id == killed.task else 1), "only what was running is charged"
    assert max(run.attempt for run in world.history) == 2
    world.rest()


def test_an_idle_worker_is_killed() -> None:
    world = World(hosts=[2])
    world.kill_worker(world.host, busy=False)
    futures = world.client.submit(*plans(20, 0.01))
    world.finish(1.0)
    world.check_as_expected(futures)
    assert all(run.attempt == 1 for run in world.history)
    world.rest()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_is_killed_in_a_chunk_of_tiny_tasks_with_results_unread(seed: int) -> None:
    world = World(seed)
    world.client.submit(*plans(100, 0.0001))
    world.finish(1.0)
    futures = world.client.map(*plans(400, 0.0001))
    world.until(lambda: len(world.history) > 250 and world.host.busy)
    world.host.shell.stop(0.05)
    world.run(0.0005)
    killed = world.kill_worker(world.host)
    assert killed is not None
    world.finish(3.0)
    world.check_as_expected(futures)
    ended = [run for run in world.history if run.how == "value"]
    assert len(ended) == len({run.task for run in ended}), "what ended well is not run again"
    assert [run.task for run in world.history if run.attempt == 2] == [killed.task]
    world.rest()


@pytest.mark.parametrize("workers", [1, 3])
def test_a_task_that_kills_its_workers_is_given_up(workers: int) -> None:
    world = World(hosts=[workers])
    mates = world.client.submit(*plans(20, 0.005))
    (deadly,) = world.client.submit(Plan(0.005, kills_worker=LOST_RUNS))
    mates += world.client.submit(*plans(20, 0.005))
    world.finish(5.0)
    assert type(deadly.error).__name__ == "WorkerDiedError" and deadly.error.details["runs"] == LOST_RUNS
    assert [run.attempt for run in world.executions(deadly)] == [1, 2, 3]
    world.check_as_expected(mates)
    assert all(len(world.executions(mate)) == 1 for mate in mates)
    world.rest()


def test_a_task_that_kills_two_workers_is_given_a_third() -> None:
    world = World()
    futures = world.client.submit(Plan(0.005, kills_worker=LOST_RUNS - 1), *plans(5))
    world.finish(2.0)
    world.check_as_expected(futures)
    world.rest()


def test_children_of_a_parent_whose_worker_died_are_not_kept() -> None:
    world = World(hosts=[2])
    child = Plan(0.3, "child")
    (parent,) = world.client.submit(Plan(0.01, children=(child,) * 4))
    world.run(0.5)
    world.kill_worker(world.host)
    world.finish(10.0)
    world.check_as_expected([parent])
    world.rest()


def test_a_parent_that_kills_its_worker_after_its_children_ended() -> None:
    world = World(hosts=[2])
    (parent,) = world.client.submit(Plan(0.01, children=(Plan(0.01),) * 4, kills_worker=1))
    world.finish(5.0)
    world.check_as_expected([parent])
    assert len(world.executions(parent)) == 2
    world.rest()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["kill", "vanish", "leave"])
def test_an_agent_is_gone(seed: int, how: str) -> None:
    world = World(seed, hosts=[2, 2])
    futures = world.client.submit(*plans(100, 0.02))
    world.run(0.3)
    getattr(world.hosts[1], how)()
    at = world.now
    world.finish(3.0 if how != "vanish" else world.config.worker_timeout_seconds + 3.0)
    world.check_as_expected(futures)
    charged = {run.task for run in world.history if run.attempt > 1}
    assert len(charged) <= 2, "no more than there were workers"
    ended_before = {run.task for run in world.history if run.how == "value" and run.ended and run.ended < at - 0.01}
    again = {run.task for run in world.history if run.began > at}
    assert not ended_before & again, "what had ended is not run again"
    world.rest()


def test_a_task_that_kills_its_hosts_is_given_up() -> None:
    world = World(hosts=[1] * 5)
    (deadly,) = world.client.submit(Plan(0.005, kills_host=1000))
    world.finish(20.0)
    assert type(deadly.error).__name__ == "WorkerDiedError"
    assert len(world.executions(deadly)) == LOST_RUNS
    mates = world.client.submit(*plans(10))
    world.finish(2.0)
    world.check_as_expected(mates)
    world.rest()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("workers", [2, 4])
def test_a_task_that_kills_its_hosts_takes_no_neighbours_along(seed: int, workers: int) -> None:
    world = World(seed, hosts=[workers] * 6)
    mates = world.client.submit(*plans(3 * workers, 0.05))
    (deadly,) = world.client.submit(Plan(0.005, kills_host=1000))
    mates += world.client.submit(*plans(6 * workers, 0.05))
    world.finish(30.0)
    assert type(deadly.error).__name__ == "WorkerDiedError"
    assert len(world.executions(deadly)) <= LOST_RUNS + 1
    world.check_as_expected(mates)
    world.rest()


@pytest.mark.parametrize("relay", [False, True])
def test_a_report_that_crosses_a_run_does_not_say_that_the_run_waits(relay: bool) -> None:
    world = World(hosts=0)
    if relay:
        world.add_relay()
        world.run(0.1)
    for _ in range(LOST_RUNS + 1):
        world.add_host(address=RELAY_ADDRESS if relay else ADDRESS)
    world.run(0.2)
    (deadly,) = world.client.submit(Plan(0.005, kills_host=1000))
    for _ in range(LOST_RUNS):
        host = run_on_its_way(world, deadly)
        host.report()
        world.until(lambda host=host: not host.alive)  # type: ignore[misc]
    world.finish(20.0)
    assert type(deadly.error).__name__ == "WorkerDiedError"
    assert len(world.executions(deadly)) == LOST_RUNS
    world.rest()


def run_on_its_way(world: World, future: WorldFuture) -> SimulatedHost:
    """The host that a run of the task has been sent to, before it arrives there."""
    hosts = {host.identity: host for host in world.hosts}
    core = world.relays[0].core._core if world.relays else world.scheduler.core

    def alive() -> SimulatedHost | None:
        record = core.state.find(future.task_id)
        host = hosts[record.agent.peer] if record is not None and record.agent is not None else None
        return host if host is not None and host.alive else None

    before = len(world.executions(future))
    world.until(alive)
    host = alive()
    assert host is not None and len(world.executions(future)) == before
    return host


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_task_that_kills_its_hosts_after_it_was_reported_as_queued(workers: int) -> None:
    world = World(hosts=[workers] * 6)
    mates = world.client.submit(*plans(24 * workers, 0.1))  # after these, hosts are sent more runs than workers
    world.finish(3.0)
    mates += world.client.submit(*plans(12 * workers, 1.6))
    (deadly,) = world.client.submit(Plan(0.005, kills_host=1000))
    mates += world.client.submit(*plans(12 * workers, 1.6))
    world.finish(40.0)
    assert type(deadly.error).__name__ == "WorkerDiedError"
    assert len(world.executions(deadly)) <= LOST_RUNS + (workers > 1)
    world.check_as_expected(mates)
    world.rest()


def test_tasks_wait_while_no_agent_is_connected() -> None:
    world = World()
    futures = world.client.submit(*plans(20, 0.01))
    world.run(0.1)
    world.host.kill()
    world.run(10.0)
    world.add_host()
    world.finish(2.0)
    world.check_as_expected(futures)
    world.rest()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("whose", ["client", "host"])
@pytest.mark.parametrize("noticed_by", ["both", "dialer", "listener", "nobody"])
def test_a_connection_breaks(seed: int, whose: str, noticed_by: str) -> None:
    world = World(seed, hosts=[2])
    futures = world.client.submit(*plans(100, 0.005))
    world.run(0.1)
    connection = world.connection(world.client if whose == "client" else world.host)
    connection.cut(dialer_notices=noticed_by in ("both", "dialer"), listener_notices=noticed_by in ("both", "listener"))
    futures += world.client.submit(*plans(20))
    world.finish(130.0)
    world.check_as_expected(futures)
    world.rest()


@pytest.mark.parametrize("seed", range(5))
def test_connections_break_again_and_again(seed: int) -> None:
    world = World(seed, hosts=[2, 1], clients=2)
    futures = []
    for _ in range(20):
        for client in world.clients:
            futures += client.submit(*plans(10, 0.005))
        world.connection(world.network.random.choice(world.processes)).cut()
        world.run(world.network.random.uniform(0.0, 0.1))
    world.finish(30.0)
    world.check_as_expected(futures)
    assert all(run.attempt == 1 for run in world.history), "a broken connection costs no run"
    world.rest()


@pytest.mark.parametrize("whose", ["client", "host", "scheduler"])
@pytest.mark.parametrize("seconds", [0.3, 2.0, 10.0])
def test_a_process_is_stopped_for_a_while(whose: str, seconds: float) -> None:
    world = World(hosts=[2, 2], clients=2)
    futures = [future for client in world.clients for future in client.submit(*plans(50, 0.01))]
    world.run(0.1)
    stopped = {"client": world.client.shell, "host": world.host.shell, "scheduler": world.scheduler.shell}
    stopped[whose].stop(seconds)
    world.run(seconds)
    world.finish(10.0)
    world.check_as_expected(futures)
    world.rest()


def test_a_worker_is_stopped_for_a_while() -> None:
    world = World(hosts=[2])
    futures = world.client.submit(*plans(100, 0.01))
    world.run(0.1)
    next(iter(world.host.workers.values())).stop(5.0)
    world.finish(10.0)
    world.check_as_expected(futures)
    late = [run for run in world.history if run.ended and run.ended - run.began > 1]
    assert len(late) <= 1, "nothing waits behind a task that takes long"
    world.rest()


@pytest.mark.parametrize("seconds", [0.5, 3.0])
def test_a_connection_stalls(seconds: float) -> None:
    world = World(hosts=[2])
    futures = world.client.submit(*plans(100, 0.005))
    world.run(0.1)
    world.connection(world.host).stall(seconds)
    world.finish(seconds + 5.0)
    world.check_as_expected(futures)
    assert len(world.history) == 100
    world.rest()


def test_a_half_open_agent() -> None:
    """Nobody hears it any more, and it does not know: its tasks run elsewhere, and late results count once."""
    world = World(hosts=[2, 2])
    futures = world.client.submit(*plans(60, 0.2))
    world.run(1.0)
    connection = world.connection(world.hosts[1])
    connection.cut(dialer_notices=False, listener_notices=False)
    world.finish(20.0)
    world.check_as_expected(futures)
    world.run(120.0)
    world.rest()


def test_late_results_of_an_agent_that_was_given_up_are_taken() -> None:
    world = World()
    (future,) = world.client.submit(Plan(5.0))
    world.run(0.1)
    world.connection(world.host).stall(10.0)
    other = world.add_host()
    world.until(lambda: len(world.executions(future)) == 2)
    other.shell.stop(20.0)
    world.until(lambda: future.outcome() is not None, 12.0)
    world.check_as_expected([future])
    world.run(30.0)
    world.rest()


def test_an_agent_that_comes_back_goes_on_with_what_nobody_else_has_taken() -> None:
    world = World()
    futures = world.client.submit(Plan(10.0), Plan(0.1))
    world.run(0.1)
    world.connection(world.host).stall(7.0)
    world.finish(20.0)
    world.check_as_expected(futures)
    assert [run.attempt for run in world.history] == [1, 1]
    world.rest()


def test_a_client_is_away_for_longer_than_its_timeout() -> None:
    world = World(hosts=[2], clients=2, client_timeout_seconds=5.0)
    (source,) = world.clients[0].submit(Plan(value="a"))
    world.finish(1.0)
    futures = world.clients[0].submit(*plans(50, 1.0))
    mates = world.clients[1].submit(*plans(10, 0.01))
    world.run(2.5)
    world.connection(world.clients[0]).stall(1.0, up=False)
    futures += world.clients[0].submit(Plan(), needs=[source])
    world.run(0.1)
    world.connection(world.clients[0]).cut(up_lost=0, listener_notices=False)
    world.network.unbind(world.scheduler.listener)
    world.run(8.0)
    world.network.bind(world.scheduler.listener)
    assert all(future.status in (Status.VALUE, Status.FAILED) for future in futures)
    assert {type(future.error).__name__ for future in futures if future.status == Status.FAILED} == {
        "SchedulerLostError"
    }
    world.run(5.0)
    again = world.clients[0].submit(*plans(10, 0.01))
    world.finish(5.0)
    world.check_as_expected([*mates, *again])
    world.rest()
