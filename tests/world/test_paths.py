"""Without faults every call has an outcome, and no process keeps any state."""

from __future__ import annotations

import pytest

from scaler_protocol.messages import Group, Status
from world.cluster import World, plans
from world.plans import FUNCTION, Plan


def test_the_straight_path() -> None:
    world = World()
    futures = world.client.submit(*plans(100))
    world.finish(1.0)
    world.check_as_expected(futures)
    assert len(world.history) == 100
    world.rest()


def test_a_block() -> None:
    world = World(hosts=2)
    futures = world.client.map(*plans(1000, 0.0001))
    world.finish(5.0)
    world.check_as_expected(futures)
    world.rest()


@pytest.mark.parametrize("clients, hosts", [(3, 1), (1, 5), (8, 8)])
def test_many_clients_and_hosts(clients: int, hosts: int) -> None:
    world = World(hosts=[2] * hosts, clients=clients)
    futures = [future for client in world.clients for future in client.submit(*plans(50, 0.01))]
    world.finish(clients * 50 * 0.01 / hosts + 0.5)
    world.check_as_expected(futures)
    assert {execution.host for execution in world.history} == {host.name for host in world.hosts}
    world.rest()


def test_work_is_spread_over_a_host_that_comes_late() -> None:
    world = World()
    futures = world.client.submit(*plans(100, 0.05))
    world.run(0.5)
    world.add_host(4)
    world.finish(2.0)
    world.check_as_expected(futures)
    world.rest()


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("workers", [1, 3])
def test_nested_tasks(workers: int, tells: bool) -> None:
    leaf = Plan(0.002, "leaf")
    branch = Plan(0.002, "branch", children=(leaf,) * 3, tells=tells)
    world = World(hosts=[workers])
    futures = world.client.submit(*[Plan(0.002, "root", children=(branch,) * 2, tells=tells)] * 4)
    world.finish(20.0)
    world.check_as_expected(futures)
    world.rest()


@pytest.mark.parametrize("seed", range(8))
def test_a_parent_in_the_middle_of_a_chunk_that_does_not_say_that_it_waits(seed: int) -> None:
    world = World(seed)
    world.client.submit(*plans(200, 0.00001))
    world.finish(1.0)
    futures = world.client.map(*plans(20, 0.00001), Plan(children=(Plan(),), tells=False), *plans(20, 0.00001))
    world.finish(5.0)
    world.check_as_expected(futures)
    world.rest()


def test_nested_tasks_with_the_shortest_queue() -> None:
    leaf = Plan(0.001, "leaf")
    fan = Plan(0.001, "fan", children=(leaf,) * 30)
    world = World(hosts=[2], queue_size=2)
    futures = world.client.submit(Plan(children=(fan,) * 30))
    world.finish(20.0)
    world.check_as_expected(futures)
    world.rest()


def test_eight_levels_on_one_worker() -> None:
    plan = Plan(value="0")
    for level in range(1, 9):
        plan = Plan(value=str(level), children=(plan,))
    world = World()
    futures = world.client.submit(plan, plan)
    world.finish(10.0)
    world.check_as_expected(futures)
    world.rest()


def test_children_that_nobody_waits_for_end_with_their_parent() -> None:
    world = World()
    futures = world.client.submit(Plan(0.01, children=(Plan(5.0),) * 3, waits=False))
    world.finish(1.0)
    world.check_as_expected(futures)
    world.rest()


def test_a_failing_child_fails_its_parent_only() -> None:
    world = World(hosts=[2])
    futures = world.client.submit(Plan(children=(Plan(raises=1), Plan())), Plan())
    world.finish(1.0)
    world.check_as_expected(futures)
    assert [future.status for future in futures] == [Status.RAISED, Status.VALUE]
    world.rest()


def test_futures_as_arguments() -> None:
    world = World(hosts=2)
    sources = world.client.submit(Plan(0.05, "a"), Plan(0.1, "b"))
    (middle,) = world.client.submit(Plan(0.01, "c"), needs=sources)
    last = world.client.map(*plans(3), needs=[middle, sources[0]])
    world.finish(1.0)
    world.check_as_expected([*sources, middle, *last])
    assert middle.outcome() == (Status.VALUE, b"c(a(),b())")
    world.rest()


def test_the_argument_has_ended_already() -> None:
    world = World()
    (source,) = world.client.submit(Plan(value="a"))
    world.finish(1.0)
    world.run(1.0)
    dependents = world.client.submit(Plan(), Plan(), needs=[source])
    world.finish(1.0)
    world.check_as_expected(dependents)
    world.rest()


def test_an_argument_that_fails_is_the_fate_of_all_that_need_it() -> None:
    world = World()
    (source,) = world.client.submit(Plan(0.01, raises=1))
    (middle,) = world.client.submit(Plan(), needs=[source])
    (last,) = world.client.submit(Plan(), needs=[middle])
    world.finish(1.0)
    assert [future.status for future in (source, middle, last)] == [Status.RAISED] * 3
    assert len(world.history) == 1
    world.rest()


def test_retries() -> None:
    world = World()
    group = Group(FUNCTION, retries=2)
    enough, too_few = world.client.submit(Plan(raises=2), Plan(raises=3), group=group)
    world.finish(1.0)
    world.check_as_expected([enough, too_few])
    assert len(world.executions(enough)) == len(world.executions(too_few)) == 3
    world.rest()


def test_a_task_out_of_time_is_stopped() -> None:
    world = World()
    group = Group(FUNCTION, timeout_seconds=0.5)
    (slow,) = world.client.submit(Plan(100.0), group=group)
    mates = world.client.submit(*plans(20, 0.01))
    world.finish(2.0)
    assert slow.status == Status.FAILED and type(slow.error).__name__ == "TaskTimeoutError"
    world.check_as_expected(mates)
    assert all(len(world.executions(mate)) == 1 for mate in mates)
    world.rest()


def test_a_client_that_leaves_takes_its_tasks_along() -> None:
    world = World(hosts=[2], clients=2)
    world.clients[0].submit(*[Plan(30.0)] * 10)
    world.run(0.5)
    world.clients[0].leave(world.now)
    futures = world.clients[1].submit(*plans(10))
    world.finish(2.0)
    world.check_as_expected(futures)
    world.rest()


def test_a_client_that_never_comes_back_takes_its_tasks_along() -> None:
    world = World(hosts=[2], clients=2)
    world.clients[0].submit(*[Plan(1000.0)] * 10)
    world.run(0.5)
    world.clients[0].kill()
    futures = world.clients[1].submit(*plans(10))
    world.finish(world.config.client_timeout_seconds + 2.0)
    world.check_as_expected(futures)
    world.rest()
