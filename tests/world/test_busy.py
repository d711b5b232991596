"""A busy scheduler, which gets outcomes together and sends hosts tasks ahead: who needs an outcome does not wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from scaler_io.service.server_loop import ServiceTurn
from scaler_protocol.messages import Group
from world.cluster import CONFIG, World, plans
from world.licenses import needing
from world.plans import FUNCTION, LOST_RUNS, OTHER_FUNCTION, Plan


@pytest.fixture(autouse=True)
def no_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes in a turn of the World: tests say how busy the scheduler is."""
    monkeypatch.setattr(ServiceTurn, "_measure", lambda self, began: None)


def keep_busy(world: World, busy: float) -> None:
    """The scheduler is busy for this share of its time; hosts hear it."""
    world.scheduler.hub.busy = busy
    world.scheduler.core.note_busy(busy)
    world.run(2.0)


def flooded(busy: float, hosts: Sequence[int], seconds: float = 1.0, **options: object) -> World:
    """A World whose second client has submitted tasks of about `seconds` for minutes to come."""
    world, draw = World(hosts=hosts, clients=2, **options), Random(3)  # type: ignore[arg-type]
    world.run(world.config.recovery_seconds)
    keep_busy(world, busy)
    world.clients[1].submit(*plans(4, seconds))
    world.finish(10 * seconds)
    world.clients[1].submit(*[Plan(draw.uniform(0.5, 1.5) * seconds) for _ in range(80 * sum(hosts))])
    world.run(3 * seconds)
    return world


@pytest.mark.parametrize("everywhere", [False, True])
def test_what_a_run_has_taken_is_free_when_it_ends(everywhere: bool) -> None:
    if everywhere:
        world = flooded(1.0, [8], config=replace(CONFIG, cluster_capabilities=(("license", 2),)))
    else:
        world = flooded(1.0, [8], consumables={"license": 2})
    limited, began = world.client.submit(*plans(20, 1.0), group=needing()), world.now
    world.until(lambda: all(future.outcome() for future in limited))
    assert world.now - began < 12.5, "10 s of work, and a queue of a run each at the host"


@pytest.mark.parametrize("depth", [0, 4])
def test_an_outcome_that_none_will_join_does_not_wait(depth: int) -> None:
    world, plan = flooded(1.0, [8, 8]), Plan(2.0)
    for _ in range(depth):
        plan = Plan(2.0, children=(plan,))
    (future,) = world.client.submit(plan, group=Group(OTHER_FUNCTION))
    world.until(lambda: world.executions(future))
    began = world.now
    world.until(future.outcome)
    slack = 0.1 + depth * 0.5  # until a worker is free
    assert world.now - began < 2.0 * (depth + 1) + slack


@pytest.mark.parametrize("busy", [0.51, 0.75])
def test_no_long_task_is_sent_ahead_of_urgent_ones(busy: float) -> None:
    world = flooded(busy, [1] * 8, seconds=60.0)
    urgent, began = world.client.submit(*plans(4, 60.0), group=Group(FUNCTION, priority=5)), world.now
    world.until(lambda: all(map(world.executions, urgent)), 100.0)
    assert world.now - began < 60.0


@pytest.mark.parametrize("workers", [2, 4])
def test_what_kills_its_hosts_is_found_although_what_ended_before_it_is_not_told(workers: int) -> None:
    world = World(hosts=[workers] * 6)
    keep_busy(world, 1.0)
    mates = world.client.submit(*plans(24 * workers, 0.1))  # after these, hosts are sent more runs than workers
    world.finish(4.0)
    mates += world.client.submit(*plans(12 * workers, 1.6))
    (deadly,) = world.client.submit(Plan(0.005, kills_host=1000))
    mates += world.client.submit(*plans(12 * workers, 1.6))
    world.finish(40.0)
    assert type(deadly.error).__name__ == "WorkerDiedError"
    assert len(world.executions(deadly)) <= LOST_RUNS + 1
    world.check_as_expected(mates)
    world.rest()
