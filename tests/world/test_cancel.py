"""Cancellation: immediate for the owner, soon everywhere, and without effect on other clients."""

from __future__ import annotations

import pytest

from scaler_client.core.events import ClearRequested
from scaler_protocol.messages import Status
from world.cluster import World, plans
from world.plans import LOST_RUNS, Plan

LATE = 1000.0


def test_before_it_was_sent() -> None:
    world = World()
    lost, kept = world.client.submit(Plan(LATE), Plan())
    world.client.cancel(lost)
    world.finish(1.0)
    world.check_as_expected([lost, kept])
    assert not world.executions(lost)
    world.rest()


def test_while_there_is_no_link() -> None:
    world = World()
    world.connection(world.client).cut(dialer_notices=False, listener_notices=False)
    lost, kept = world.client.submit(Plan(LATE), Plan())
    world.run(1.0)
    world.client.cancel(lost)
    world.connection(world.client).cut()
    world.client.dialer.uplink.broken("cut", world.now)
    world.finish(30.0)
    world.check_as_expected([lost, kept])
    world.rest()


def test_while_it_waits_at_the_scheduler() -> None:
    world = World(hosts=0)
    lost, kept = world.client.submit(Plan(LATE), Plan())
    world.run(0.5)
    world.client.cancel(lost)
    world.add_host()
    world.finish(1.0)
    world.check_as_expected([lost, kept])
    assert not world.executions(lost)
    world.rest()


def test_while_it_waits_for_an_argument() -> None:
    world = World(hosts=[2])
    (source,) = world.client.submit(Plan(0.5))
    lost, kept = world.client.submit(Plan(LATE), Plan(), needs=[source])
    world.run(0.2)
    world.client.cancel(lost)
    world.finish(2.0)
    world.check_as_expected([source, lost, kept])
    world.rest()


def test_what_others_need_is_cancelled_with_them() -> None:
    world = World(hosts=[2])
    (source,) = world.client.submit(Plan(LATE))
    (middle,) = world.client.submit(Plan(), needs=[source])
    (last,) = world.client.submit(Plan(), needs=[middle])
    world.run(0.2)
    world.client.cancel(source)
    world.finish(1.0)
    assert middle.status == last.status == Status.CANCELLED
    world.rest()


def test_while_it_is_queued_behind_others_on_a_worker() -> None:
    world = World()
    world.client.submit(*plans(1))
    world.finish(1.0)
    futures = world.client.submit(*plans(200, 0.002))
    world.run(0.05)
    queued = [future for future in futures if future.outcome() is None and not world.running(future)]
    lost = queued[1::2]
    world.client.cancel(*lost)
    world.finish(2.0)
    world.check_as_expected(futures)
    assert not world.host.kills
    world.rest()


def test_while_it_runs() -> None:
    world = World(hosts=[2])
    lost, mate = world.client.submit(Plan(LATE), Plan(2.0))
    others = world.client.submit(*plans(10, 0.01))
    world.until(lambda: world.running(lost) and world.running(mate))
    world.client.cancel(lost)
    world.finish(5.0)
    world.check_as_expected([lost, mate, *others])
    assert world.host.kills == 1
    assert all(len(world.executions(future)) == 1 for future in (lost, mate, *others)), "bystanders are not charged"
    world.rest()


def test_in_the_middle_of_a_chunk() -> None:
    world = World()
    world.client.submit(*plans(50, 0.0001))
    world.finish(1.0)
    futures = world.client.submit(*plans(20, 0.0001), Plan(LATE), *plans(20, 0.0001))
    world.until(lambda: world.running(futures[20]))
    world.client.cancel(futures[20])
    world.finish(5.0)
    world.check_as_expected(futures)
    assert all(len(world.executions(future)) == 1 for future in futures)
    world.rest()


def test_a_blocked_parent_with_its_children() -> None:
    world = World(hosts=[2])
    lost, mate = world.client.submit(Plan(children=(Plan(LATE, children=(Plan(LATE),)),) * 5), Plan(1.0))
    world.run(0.5)
    world.client.cancel(lost)
    world.finish(5.0)
    world.check_as_expected([lost, mate])
    world.rest()


@pytest.mark.parametrize("delay", [0.0, 0.0002, 0.0005, 0.001, 0.002])
def test_when_it_has_just_ended(delay: float) -> None:
    world = World()
    futures = world.client.submit(*plans(10, 0.001))
    world.until(lambda: any(world.history))
    world.run(0.001 + delay)
    world.client.cancel(*futures)
    world.finish(1.0)
    world.rest()


def test_everything_of_a_block() -> None:
    world = World(hosts=2)
    futures = world.client.map(*plans(500, 0.005))
    world.run(0.3)
    delivered = world.delivered(futures)
    world.client.cancel(*futures)
    mates = world.client.submit(*plans(10))
    world.finish(1.0)
    assert 0 < len(delivered) < 500
    world.check_as_expected([*delivered, *mates])
    world.rest()


def test_clear_ends_everything() -> None:
    world = World(hosts=2)
    futures = world.client.submit(*plans(500, 0.01))
    world.run(0.5)
    world.client.ask(ClearRequested(1))
    world.run(0.01)
    assert {future.status for future in futures} == {Status.VALUE, Status.CANCELLED}
    mates = world.client.submit(*plans(10))
    world.finish(1.0)
    world.check_as_expected(mates)
    world.rest()


def test_a_task_that_kills_workers_and_is_cancelled_between() -> None:
    world = World()
    (lost,) = world.client.submit(Plan(0.1, kills_worker=LOST_RUNS))
    world.until(lambda: len(world.executions(lost)) == 2)
    world.client.cancel(lost)
    world.run(5.0)
    assert len(world.executions(lost)) == 2
    world.rest()
