"""What a task costs, in messages and in Python function calls: the same on every machine."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import PurePath
from types import FrameType

import pytest

from scaler_io.service.server_loop import ServiceTurn
from world.cluster import World, plans
from world.plans import Plan

TASKS = 1000
CORES = {"scaler_client", "scaler_scheduler", "scaler_worker"}


def count_calls(act: Callable[[], object]) -> Counter[str]:
    """Python function calls by package, made while `act` runs; what only checks is not counted."""
    counts: Counter[str] = Counter()
    packages: dict[str, str] = {}

    def seen(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            file = frame.f_code.co_filename
            package = packages.get(file)
            if package is None:
                package = packages[file] = next((part for part in PurePath(file).parts if part in CORES), "")
            counts[package] += 1

    sys.setprofile(seen)
    try:
        act()
    finally:
        sys.setprofile(None)
    return counts


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Two workers who know the function already, and cores that do not check themselves."""
    made = World(hosts=[2])
    made.client.submit(*plans(200, 0.00001))
    made.finish(5.0)
    made.run(1.0)
    for core in (made.client.core, made.host.core, made.scheduler.core):
        monkeypatch.setattr(type(core), "check", lambda self: None)
    return made


def messages(world: World) -> int:
    """Sent by anybody so far."""
    senders = (world.client, world.host, world.scheduler.checked)
    return sum(sender.messages_sent for sender in senders)


@pytest.mark.parametrize("block", [False, True])
def test_messages_per_task(world: World, block: bool) -> None:
    before = messages(world)
    (world.client.map if block else world.client.submit)(*plans(TASKS, 0.00001))
    world.finish(5.0)
    world.run(1.0)
    assert (messages(world) - before) / TASKS < 0.1


@pytest.mark.parametrize("block", [False, True])
def test_calls_per_task(world: World, block: bool) -> None:
    (world.client.map if block else world.client.submit)(*plans(TASKS, 0.00001))
    counts = count_calls(lambda: world.finish(5.0))
    assert counts["scaler_client"] / TASKS < 3
    assert counts["scaler_scheduler"] / TASKS < 6
    assert counts["scaler_worker"] / TASKS < 6


@pytest.mark.parametrize(("queue_size", "share"), [(1, 0.7), (1000, 0.3)])
def test_a_busy_scheduler_gets_more_outcomes_with_each_message(
    monkeypatch: pytest.MonkeyPatch, queue_size: int, share: float
) -> None:
    monkeypatch.setattr(ServiceTurn, "_measure", lambda self, began: None)  # no time passes in a turn
    messages, makespans = [], []
    for busy in (0.0, 1.0):
        world, draw = World(hosts=[64], queue_size=queue_size), random.Random(7)
        world.scheduler.hub.busy = busy
        world.scheduler.core.note_busy(busy)
        world.run(2.0)
        before, began = world.host.messages_sent, world.now
        futures = world.client.submit(*[Plan(draw.uniform(0.5, 1.5)) for _ in range(640)])
        world.finish()
        world.check_as_expected(futures)
        messages.append(world.host.messages_sent - before)
        makespans.append(world.now - began)
    assert messages[1] < share * messages[0]
    assert makespans[1] < 1.02 * makespans[0]
