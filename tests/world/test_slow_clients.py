"""A client that does not read its results: only its own results are kept, and it is disconnected at its limit."""

from __future__ import annotations

import pytest

from scaler_io.links import hub
from scaler_protocol.ids import session_of
from world.cluster import World, plans
from world.plans import Plan

BOUND = 1024 * 1024


@pytest.fixture
def low_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that little is too much already."""
    monkeypatch.setattr(hub, "KEPT_LIMIT", BOUND // 4)
    monkeypatch.setattr(hub, "KEPT_MOST", BOUND)


def test_it_pins_its_own_results_and_no_others() -> None:
    world = World(hosts=[2], clients=2)
    slow, quick = world.clients
    futures = slow.submit(*plans(50, 0.005))
    world.run(0.01)
    slow.shell.stop(10.0)
    others = quick.submit(*plans(50, 0.005))
    world.until(lambda: not quick.unfinished, 2.0)
    world.check_as_expected(others)
    world.run(3.0)
    kept = set(map(session_of, world.host.core.in_flight.kept))
    assert kept == {slow.session}
    world.finish(20.0)
    world.check_as_expected(futures)
    assert len(world.history) == 100
    world.rest()


@pytest.mark.usefixtures("low_bound")
def test_it_is_disconnected_at_its_limit_and_joins_again() -> None:
    world = World(hosts=[2], clients=2)
    slow, quick = world.clients
    futures = slow.submit(*[Plan(0.01, size=10_000)] * 300)
    world.run(0.1)
    slow.shell.stop(10.0)
    others = quick.submit(*plans(200, 0.01))
    world.until(lambda: world.scheduler.session(slow) is None, 5.0)
    world.until(lambda: not quick.unfinished, 5.0)
    world.check_as_expected(others)
    world.run(1.0)
    assert not len(world.host.core.in_flight.kept), "what it had pinned is free"
    world.finish(60.0)
    world.check_as_expected(futures)
    world.rest()


@pytest.mark.usefixtures("low_bound")
def test_one_that_only_takes_its_time_is_not_cut_off() -> None:
    world = World(hosts=[2])
    futures = world.client.submit(*[Plan(0.01, size=10_000)] * 300)
    while world.client.unfinished:
        world.client.shell.stop(0.1)
        world.run(0.2)
    world.check_as_expected(futures)
    assert len(world.history) == 300
    world.rest()


def test_a_client_with_more_than_its_credit_waits_for_its_own_tasks() -> None:
    world = World(hosts=[2], clients=2)
    world.client.core._queue.credit = 2000
    futures = world.client.submit(*plans(200, 0.002))
    world.run(0.1)
    session = world.scheduler.session(world.client)
    assert session is not None and len(session.tasks) < 100
    others = world.clients[1].submit(*plans(20, 0.002))
    world.finish(10.0)
    world.check_as_expected([*futures, *others])
    world.rest()
