"""Second runs of stragglers: the first outcome wins, nothing is left over, and they take little of the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaler_protocol.messages import Group, Status
from scaler_scheduler.core.run_times import SHARE
from world.callers import WorldFuture
from world.cluster import World
from world.hosts import SimulatedHost
from world.plans import FUNCTION, Execution, Plan
from world.workers import SimulatedWorker

SPECULATE = Group(FUNCTION, speculate=True)
HALF_SECOND = Plan(0.5)
SLOW = 20.0
"""How many times longer tasks take on the slow host."""
ROUND_TRIP_SECONDS = 0.05
"""How long a run may go on after the scheduler has decided that it should not."""
GRID = 40
"""Tasks of 0.5 s, of which the slow host gets two."""


def cluster(seed: int = 0, *, hosts: Sequence[int] = (2, 4, 4), journal: bool = False) -> World:
    """The first host is slow."""
    world = World(seed, hosts=hosts, journal=journal)
    world.host.slowness = SLOW
    return world


def submit(world: World, plan: Plan = HALF_SECOND, count: int = GRID, retries: int = 0) -> list[WorldFuture]:
    return world.client.submit(*[plan] * count, group=Group(FUNCTION, speculate=True, retries=retries))


def seconds_of(world: World) -> list[Execution]:
    """Runs that began while another run of their task went on."""
    of_task: dict[int, list[Execution]] = defaultdict(list)
    for run in world.history:
        of_task[run.task].append(run)
    return [
        run
        for run in world.history
        if any(
            other.began < run.began and (other.ended is None or run.began < other.ended) for other in of_task[run.task]
        )
    ]


def until_second(world: World) -> list[WorldFuture]:
    """Submit the grid, and wait for a second run; the futures whose tasks have two runs now."""
    futures = submit(world)
    world.until(lambda: seconds_of(world), 20.0)
    twice = {run.task for run in seconds_of(world)}
    return [future for future in futures if future.task_id in twice]


def taken(run: Execution, now: float) -> float:
    return (now if run.ended is None else run.ended) - run.began


def check_share(world: World) -> None:
    """Second runs took no more than their share of the other work, and the longest of them."""
    seconds = seconds_of(world)
    extra = [taken(run, world.now) for run in seconds]
    worked = sum(taken(run, world.now) for run in world.history if run.how in ("value", "raised"))
    slack = ROUND_TRIP_SECONDS * len(extra)
    assert sum(extra) <= SHARE * worked + max(extra, default=0.0) + slack, (extra, worked)


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_host_holds_nothing_up(seed: int) -> None:
    world = cluster(seed, hosts=[1, 8, 8])
    began = world.now
    futures = submit(world, count=160)
    world.finish()
    assert world.now - began < 0.5 * SLOW
    world.check_as_expected(futures)
    assert {run.host for run in seconds_of(world)} <= {"host1", "host2"}
    assert world.host.kills == 1
    assert all(run.attempt == 1 for run in world.history), "a second run is no attempt"
    check_share(world)
    world.rest()


def test_it_is_off_unless_asked_for() -> None:
    world = cluster()
    futures = world.client.submit(*[Plan(0.5)] * GRID)
    world.finish()
    world.check_as_expected(futures)
    assert len(world.history) == GRID
    world.rest()


def test_nothing_is_run_twice_while_other_tasks_wait() -> None:
    world = cluster(hosts=[2, 4])
    world.host.slowness = 100.0
    futures = submit(world)
    waiting = world.client.submit(*[Plan(1.0)] * 40)
    world.until(lambda: world.scheduler.core.state.waiting.count)
    world.until(lambda: not world.scheduler.core.state.waiting.count)
    assert world.now > 10.0 and not seconds_of(world)
    world.finish()
    world.check_as_expected([*futures, *waiting])
    assert seconds_of(world)
    world.rest()


def test_tasks_of_another_class_may_wait_meanwhile() -> None:
    world = cluster()
    unserved = world.client.submit(*[Plan()] * 3, group=Group(FUNCTION, ("gpu",), (-1,)))
    futures = submit(world)
    world.until(lambda: not any(future.outcome() is None for future in futures), 9.0)
    assert seconds_of(world)
    world.client.cancel(*unserved)
    world.finish()
    world.rest()


def test_an_even_cluster_runs_nothing_twice() -> None:
    world = World(hosts=[4, 4])
    futures = world.client.submit(*[Plan(0.001 * (1 + at % 40)) for at in range(400)], group=SPECULATE)
    world.finish()
    world.check_as_expected(futures)
    assert len(world.history) == 400
    world.rest()


def test_the_first_run_may_win() -> None:
    """It ends while the worker of the second one is stopped."""
    world = cluster(hosts=[1, 4, 4])
    twice = until_second(world)
    for run in seconds_of(world):
        worker_of(world, run).stop(100.0)
    world.finish()
    world.check_as_expected(twice)
    assert not any(run.how == "value" for run in seconds_of(world))
    check_share(world)
    world.rest()


@pytest.mark.parametrize("retries", [0, 2])
def test_an_exception_is_an_outcome(retries: int) -> None:
    world = cluster()
    warm = submit(world, Plan(0.1), 100, retries)
    world.finish()
    world.run(5.0)
    futures = submit(world, Plan(0.1, raises=2), 12, retries)
    world.finish()
    world.check_as_expected([*warm, *futures])
    assert {future.status for future in futures} == {Status.RAISED if retries < 2 else Status.VALUE}
    assert seconds_of(world)
    for future in futures:
        raised = [run for run in world.executions(future) if run.how == "raised"]
        assert len(raised) == min(retries + 1, 2), "the first outcome of two runs is the only one"
    world.rest()


def test_cancel_stops_both() -> None:
    world = cluster()
    twice = until_second(world)
    world.client.cancel(*twice)
    world.run(0.2)
    assert not any(world.running(future) for future in twice)
    world.finish()
    world.rest()


def test_a_client_that_leaves_stops_both() -> None:
    world = cluster()
    until_second(world)
    world.client.kill()
    world.run(world.config.client_timeout_seconds + 5.0)
    world.rest()


@pytest.mark.parametrize("then", ["it wins", "cancel", "the first host dies", "the second host dies"])
@pytest.mark.parametrize("both", [False, True])
def test_children_are_withdrawn_with_their_run(then: str, both: bool) -> None:
    """The first run hangs before it submits its child; where `both` submit it, the first one does so later."""
    world = World(hosts=[1, 8])
    submit(world, Plan(0.1), 20)
    world.finish()
    (worker,) = world.host.workers.values()
    worker.stop(2.0 if both else 30.0)
    parents = submit(world, Plan(0.01, children=(Plan(4.0),)), 5)
    world.run(2.5)
    second = [run for run in world.history if run.plan.children and run.ended is None][4]
    parent = find(parents, second)
    assert len(world.executions(parent)) == 1 + both
    if then == "cancel":
        world.client.cancel(parent)
        world.run(0.2)
        assert not world.running(parent)
    elif then != "it wins":
        world.hosts[then == "the second host dies"].kill()
        world.add_host(8)
    world.finish()
    world.check_as_expected(parents)
    world.run(10.0)
    world.rest()


FAULTS: dict[str, Callable[[World, Execution, Execution], object]] = {
    "the first worker dies": lambda world, first, second: worker_of(world, first).die("was killed by SIGKILL"),
    "the second worker dies": lambda world, first, second: worker_of(world, second).die("was killed by SIGKILL"),
    "the first host dies": lambda world, first, second: host_of(world, first).kill(),
    "the second host dies": lambda world, first, second: host_of(world, second).kill(),
    "both hosts die": lambda world, first, second: kill_hosts(world, first, second),
    "the first host loses power": lambda world, first, second: host_of(world, first).vanish(),
    "the second host loses power": lambda world, first, second: host_of(world, second).vanish(),
    "the first host leaves": lambda world, first, second: host_of(world, first).leave(),
    "the second host leaves": lambda world, first, second: host_of(world, second).leave(),
    "the first connection breaks": lambda world, first, second: world.connection(host_of(world, first)).cut(),
    "the second connection breaks": lambda world, first, second: world.connection(host_of(world, second)).cut(),
    "the first connection stalls": lambda world, first, second: world.connection(host_of(world, first)).stall(7.0),
    "the second connection stalls": lambda world, first, second: world.connection(host_of(world, second)).stall(7.0),
    "the client's connection breaks": lambda world, first, second: world.connection(world.client).cut(),
    "the scheduler is restarted": lambda world, first, second: world.restart_scheduler(),
    "the scheduler is replaced": lambda world, first, second: world.replace_scheduler(),
    "the scheduler is stopped": lambda world, first, second: world.scheduler.shell.stop(3.0),
    "nothing": lambda world, first, second: None,
}


def host_of(world: World, run: Execution) -> SimulatedHost:
    return next(host for host in world.hosts if host.name == run.host)


def kill_hosts(world: World, *runs: Execution) -> None:
    for run in runs:
        host_of(world, run).kill()


def worker_of(world: World, run: Execution) -> SimulatedWorker:
    return next(worker for worker in host_of(world, run).workers.values() if worker.now is run)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("moment", "journal"), [(0.0, False), (0.0005, False), (0.3, False), (0.3, True), (0.4997, False), (0.5003, False)]
)
def test_a_fault_while_a_task_has_two_runs(fault: str, moment: float, journal: bool) -> None:
    """`moment` is counted from the beginning of the second run, which takes 0.5 s."""
    world = cluster(hosts=[1, 4, 4], journal=journal)
    futures = submit(world)
    world.until(lambda: seconds_of(world), 20.0)
    (second,) = seconds_of(world)
    (first,) = [run for run in world.history if run.task == second.task and run is not second]
    world.run(moment)
    if (first.ended is None and second.ended is None) or "worker" not in fault:
        FAULTS[fault](world, first, second)
    world.finish()
    world.check_as_expected(futures)
    if "second" in fault:
        assert all(run.attempt == 1 for run in world.executions(find(futures, second))), "it costs no attempt"
    world.run(30.0)
    world.rest()


def find(futures: Sequence[WorldFuture], run: Execution) -> WorldFuture:
    return next(future for future in futures if future.task_id == run.task)


@pytest.mark.parametrize("whole_host", [False, True])
def test_the_second_run_takes_the_place_of_a_lost_one(whole_host: bool) -> None:
    world = cluster(hosts=[1, 4, 4])
    (future, *_) = until_second(world)
    (second,) = seconds_of(world)
    world.run(0.2)
    if whole_host:
        world.host.kill()
    else:
        world.kill_worker(world.host)
    world.finish()
    assert second.how == "value"
    assert len(world.executions(future)) == 2, "it is not run a third time"
    world.rest()


def test_a_task_that_ends_its_workers_costs_one_more_of_them() -> None:
    world = cluster(hosts=[1, 4, 4])
    submit(world, Plan(0.05), 20)
    world.finish()
    (deadly,) = world.client.submit(Plan(1.0, kills_worker=1000), group=SPECULATE)
    world.finish()
    assert type(deadly.error).__name__ == "WorkerDiedError" and deadly.error.details["runs"] == 3
    assert len(world.executions(deadly)) <= 6
    world.rest()


durations = st.lists(st.sampled_from([0.01, 0.01, 0.01, 0.3, 2.0, 10.0]), min_size=1, max_size=80)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 9),
    hosts=st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1.0, 1.0, 1.0, 5.0, 50.0])), min_size=2, max_size=5),
    durations=durations,
    more=durations,
    cancelled=st.booleans(),
)
def test_second_runs_take_their_share_only(
    seed: int, hosts: list[tuple[int, float]], durations: list[float], more: list[float], cancelled: bool
) -> None:
    world = World(seed, hosts=[workers for workers, _ in hosts])
    for host, (_, slowness) in zip(world.hosts, hosts, strict=True):
        host.slowness = slowness
    futures = world.client.submit(*map(Plan, durations), group=SPECULATE)
    world.run(3.0)
    futures += world.client.submit(*map(Plan, more), group=SPECULATE)
    if cancelled:
        world.run(2.0)
        world.client.cancel(*[future for future in futures if future.outcome() is None][::3])
    world.finish(20_000.0)
    world.check_as_expected(futures)
    check_share(world)
    runs: dict[int, list[Execution]] = defaultdict(list)
    for run in world.history:
        runs[run.task].append(run)
    for same in runs.values():
        assert len(same) <= 2 and sum(run.how == "value" for run in same) <= 1 + (len(same) > 1)
        assert len({run.host for run in same}) == len(same), "two runs of a task are on two agents"
    world.rest()
