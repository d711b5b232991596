"""Why a task waits: what the scheduler says is what it then does, and what a monitor says agrees."""

from __future__ import annotations

import pytest

from scaler_protocol.messages import Group
from scaler_scheduler.core.history import ENTRIES
from scaler_scheduler.core.task_states import WAITING
from scaler_ui.model.reasons import why
from world.cluster import World, plans
from world.plans import FUNCTION, Plan
from world.test_monitor import WorldMonitor

TPU = Group(FUNCTION, capability_names=("tpu",), capability_values=(1,))


@pytest.mark.parametrize("seed", range(3))
def test_it_waits_behind_those_that_then_go_first(seed: int) -> None:
    """Several clients and priorities take turns; tasks that nobody can run are not counted."""
    world = World(seed, hosts=[1], clients=4)
    for client in world.clients:
        client.submit(Plan(1.0))
    world.finish()  # how long a call takes is measured
    slow, fair, urgent, hopeless = world.clients
    hopeless.submit(*plans(500, 1.0), group=TPU)
    futures = [
        *slow.submit(*plans(40, 1.0)),
        *fair.submit(*plans(20, 1.0)),
        *urgent.submit(*plans(3, 1.0), group=Group(FUNCTION, priority=1)),
    ]
    world.run(2.5)
    core = world.scheduler.core
    waiting = [future for future in futures if (record := world.scheduler.record(future)) and record.state == WAITING]
    told = {future.task_id: core.why(future.task_id, world.now) for future in waiting}
    world.until(lambda: all(future.outcome() for future in futures), 200.0)
    order = [execution.task for execution in world.history if execution.task in told]
    for at, task in enumerate(order):
        counts = [int(sentence.split()[3]) for sentence in told[task] if "behind" in sentence]
        assert sum(counts) == at, (at, told[task])
    assert sum("it is next" in sentence for said in told.values() for sentence in said) == 1


def test_what_holds_a_task_is_named() -> None:
    world = World(hosts=[1])
    first, second = world.client.submit(Plan(5.0), Plan(5.0))
    (third,) = world.client.submit(Plan(1.0), needs=[first])
    (hopeless,) = world.client.submit(Plan(), group=TPU)
    world.run(3.0)
    core, monitor = world.scheduler.core, WorldMonitor(world)
    monitor.look()
    assert core.why(hopeless.task_id, world.now) == why(monitor.model, hopeless.task_id)
    assert core.why(hopeless.task_id, world.now) == ["it waits: no worker offers tpu=1"]
    (held,) = core.why(third.task_id, world.now)
    assert held == f"it is held: it needs the results of 1 task: {first.task_id:x} (on a host)"
    (runs,) = core.why(first.task_id, world.now)
    assert runs.startswith("it runs on host0, for ")
    assert core.why(second.task_id, world.now) == ["it is next: 1 worker has 1 task"]
    assert core.why(99, world.now) == []


def test_how_a_task_ended_is_told_while_it_is_remembered() -> None:
    world = World(hosts=[1])
    raising, fine = world.client.submit(Plan(0.01, raises=100), Plan(0.01))
    world.finish(5.0)
    core = world.scheduler.core
    (said,) = core.why(raising.task_id, world.now)
    assert said.startswith("it has ended without a value: ")
    world.client.submit(*[Plan(0.001, raises=100)] * (ENTRIES + 5))
    world.finish(20.0)
    unsure = ["it has ended, and is not among the last failures: its client has the outcome, or will get it"]
    for ended in (raising, fine):
        assert core.why(ended.task_id, world.now) in ([], unsure)
