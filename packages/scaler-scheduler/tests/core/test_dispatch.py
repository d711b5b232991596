"""Dispatch: log texts about tasks that no worker can run, and nested tasks of parents elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scaler_io.links.events import PeerLost
from scaler_protocol import messages
from scaler_protocol.errors import WorkerDiedError, describe
from scaler_protocol.messages import Status
from scaler_scheduler.core.queue import REPORTED_LIMIT

if TYPE_CHECKING:
    from conftest import SchedulerDriver

GPU: dict[str, Any] = {"capability_names": ("gpu",), "capability_values": (-1,)}


def warnings(driver: SchedulerDriver) -> list[str]:
    """New log texts about capabilities that no worker offers."""
    said = [text for text in driver.logs if "no connected worker offers" in text]
    driver.logs.clear()
    return said


def test_it_is_said_again_when_the_agent_that_offered_it_has_left(driver: SchedulerDriver) -> None:
    client, _ = driver.client(), driver.agent(b"plain")
    driver.submit(client, **GPU)
    assert len(warnings(driver)) == 1
    driver.submit(client, **GPU)
    assert not warnings(driver)
    able = driver.agent(b"able", capabilities=["gpu"])
    while runs := driver.runs(able):
        driver.done(able, runs)
    driver.feed(able, PeerLost("gone", True))
    assert not warnings(driver), "nothing waits for it"
    driver.submit(client, **GPU)
    assert len(warnings(driver)) == 1


def test_it_is_said_when_tasks_wait_already(driver: SchedulerDriver) -> None:
    client = driver.client()
    driver.submit(client, **GPU)
    assert not warnings(driver), "no worker is connected at all"
    driver.agent(b"plain")
    assert len(warnings(driver)) == 1
    able = driver.agent(b"able", capabilities=["gpu"])
    driver.feed(able, PeerLost("gone", True))
    assert len(warnings(driver)) == 1, "its run waits again"


def test_it_is_said_to_everybody_but_not_without_end(driver: SchedulerDriver) -> None:
    client, _ = driver.client(), driver.agent(b"plain")
    for number in range(3 * REPORTED_LIMIT):
        driver.submit(client, capability_names=(f"c{number}",), capability_values=(-1,))
    assert len(warnings(driver)) == REPORTED_LIMIT
    driver.feed(client, PeerLost("left"))
    assert not driver.core.state.waiting._reported
    driver.submit(driver.client(b"other"), **GPU)
    assert len(warnings(driver)) == 1


# --- parents that run outside of their agent's host ------------------------------------------------------------------


def test_nested_tasks_of_a_client_go_to_the_agent_of_their_parent_however_full_it_seems(
    driver: SchedulerDriver,
) -> None:
    client, agent = driver.client(b"c"), driver.agent()
    (parent,) = driver.submit(client)
    runs = driver.runs(agent)
    urgent = driver.submit(driver.client(b"u"), 3, priority=9)
    inside = driver.client(b"n")
    nested = driver.submit(inside, 2, parent=runs[parent])
    given = driver.take(agent, messages.Run)
    assert [task for run in given for task in run.tasks] == nested
    assert {group.depth for run in given for group in run.groups} == {1}
    assert not set(urgent) & set(driver.runs(agent))


def test_a_returned_nested_task_may_run_elsewhere_and_a_lost_one_goes_back(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent()
    (parent,) = driver.submit(client)
    runs = driver.runs(agent)
    first, second = driver.submit(driver.client(b"n"), 2, parent=runs[parent])
    nested = driver.runs(agent)
    other = driver.agent(b"other")
    driver.feed(agent, messages.Returned((nested[second],)))
    assert set(driver.runs(other)) == {second}
    driver.done(agent, {first: nested[first]}, Status.LOST, describe(WorkerDiedError()))
    assert set(driver.runs(agent)) == {first}


def test_nested_tasks_of_a_client_end_with_the_run_of_their_parent(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent()
    (parent,) = driver.submit(client)
    runs = driver.runs(agent)
    inside = driver.client(b"n")
    (child,) = driver.submit(inside, parent=runs[parent])
    driver.done(agent, {parent: runs[parent]})
    assert driver.outcomes(inside) == {child: (Status.CANCELLED, b"")}
    (late,) = driver.submit(inside, parent=runs[parent])
    assert set(driver.runs(agent)) == {child, late}, "an ordinary task: its parent is over"


def test_nested_tasks_that_the_agent_of_their_parent_cannot_run_wait_for_another(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent()
    (parent,) = driver.submit(client)
    runs = driver.runs(agent)
    nested = driver.submit(driver.client(b"n"), parent=runs[parent], capability_names=("gpu",), capability_values=(-1,))
    assert not driver.runs(agent)
    assert list(driver.runs(driver.agent(b"gpu", capabilities=("gpu",)))) == nested


def test_lanes_of_parents_leave_nothing_behind(driver: SchedulerDriver) -> None:
    client, agent, inside = driver.client(b"c"), driver.agent(), driver.client(b"n")
    (parent,) = driver.submit(client)
    runs = driver.runs(agent)
    for _ in range(200):
        driver.submit(inside, parent=runs[parent])
    (queue,) = driver.core.state.waiting._classes.values()
    assert sum(len(lanes) for level in queue.levels.values() for lanes in level._lanes.values()) < 10
