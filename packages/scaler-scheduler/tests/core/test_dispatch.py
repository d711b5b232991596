"""Dispatch: log texts about tasks that no worker can run, nested tasks of parents elsewhere, what goes before a Run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scaler_io.links.events import PeerLost
from scaler_protocol import messages
from scaler_protocol.errors import WorkerDiedError, describe
from scaler_protocol.ids import function_id
from scaler_protocol.messages import Status
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.core import SchedulerCore
from scaler_scheduler.core.queue import REPORTED_LIMIT

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FUNCTION = function_id(b"body")
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


# --- a busy scheduler -------------------------------------------------------------------------------------------------


def measured(driver: SchedulerDriver, agent: bytes, client: bytes, seconds: float) -> None:
    """The duration of the function is known, and the window of the agent is wide."""
    for _ in range(4):
        driver.submit(client, 16)
        while runs := driver.runs(agent):
            driver.done(agent, runs, seconds=seconds)


@pytest.mark.parametrize(("seconds", "ahead"), [(0.1, 16), (1.0, 16), (10.0, 1), (20.0, 0)])
def test_a_busy_scheduler_sends_as_many_long_tasks_ahead_as_end_while_an_outcome_waits(
    driver: SchedulerDriver, seconds: float, ahead: int
) -> None:
    client, agent = driver.client(), driver.agent(workers=16)
    measured(driver, agent, client, seconds)
    driver.core.note_busy(1.0)
    driver.submit(client, 100)
    runs = driver.runs(agent)
    assert len(runs) == 16 + ahead
    driver.core.note_busy(0.5)
    some = dict(list(runs.items())[: ahead + 1])
    driver.done(agent, some, seconds=seconds)
    assert len(driver.runs(agent)) == 1, "what was ahead runs first"


def test_what_was_sent_ahead_goes_to_a_host_that_comes(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=16)
    measured(driver, agent, client, 1.0)
    driver.core.note_busy(1.0)
    driver.submit(client, 20)
    runs = driver.runs(agent)
    assert len(runs) == 20
    other = driver.agent(b"other", workers=16)
    driver.later(1.0)
    (recall,) = driver.take(agent, messages.Recall)
    driver.feed(agent, messages.Returned(tuple(list(runs.values())[-recall.count :])))
    assert len(driver.runs(other)) == recall.count


@pytest.mark.parametrize(("busy", "hosts"), [(0.5, 2), (1.0, 1)])
def test_a_busy_scheduler_sends_short_tasks_to_one_host_after_the_other(
    driver: SchedulerDriver, busy: float, hosts: int
) -> None:
    client, agents = driver.client(), [driver.agent(name, workers=4) for name in (b"one", b"two")]
    for _ in range(2):
        driver.submit(client, 100)
        while given := {agent: runs for agent in agents if (runs := driver.runs(agent))}:
            for agent, runs in given.items():
                driver.done(agent, runs, seconds=0.0001)
    driver.core.note_busy(busy)
    driver.submit(client, 40)
    assert sum(bool(driver.runs(agent)) for agent in agents) == hosts


def test_a_host_without_a_queue_is_sent_nothing_ahead(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=16, queue_size=1)
    measured(driver, agent, client, 1.0)
    driver.core.note_busy(1.0)
    driver.submit(client, 100)
    assert len(driver.runs(agent)) == 16


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


@pytest.mark.parametrize(
    ("name", "key", "is_inside"),
    [
        (b"a stranger", b"key of another", False),
        (b"of its client", b"key of the client", True),
        (b"of its host", b"key of workers", True),
    ],
)
def test_only_a_client_with_a_key_of_the_run_nests_tasks_in_it(
    make_driver: type[SchedulerDriver], name: bytes, key: bytes, is_inside: bool
) -> None:
    driver = make_driver()
    keys = {b"client": b"key of the client", b"agent": b"key of workers", name: key}
    driver.core = SchedulerCore(7, driver.config, key_of=lambda peer: keys[peer.rstrip(b".")])
    client, agent = driver.client(), driver.agent()
    (parent,) = driver.submit(client)
    runs = driver.runs(agent)
    inside = driver.client(name)
    tasks = driver.submit(inside, 2, parent=runs[parent])
    assert set(driver.runs(agent)) == (set(tasks) if is_inside else set())
    driver.done(agent, {parent: runs[parent]})
    assert bool(driver.outcomes(inside)) == is_inside, "tasks of others do not end with the run"


def test_lanes_of_parents_leave_nothing_behind(driver: SchedulerDriver) -> None:
    client, agent, inside = driver.client(b"c"), driver.agent(), driver.client(b"n")
    (parent,) = driver.submit(client)
    runs = driver.runs(agent)
    for _ in range(200):
        driver.submit(inside, parent=runs[parent])
    (queue,) = driver.core.state.waiting._classes.values()
    assert sum(len(lanes) for level in queue.levels.values() for lanes in level._lanes.values()) < 10


def submit(task: int, *needs: int) -> messages.Submit:
    """A Submit of one task."""
    positions = [0] * len(needs)
    return messages.Submit([messages.Group(FUNCTION)], [task], Payloads([b"call"]), dependents=positions, needs=needs)


def said(driver: SchedulerDriver, agent: bytes, *kinds: type[messages.Message]) -> list[messages.Message]:
    """Messages of these kinds that the agent was newly sent, in their order."""
    return [message for message in driver.inboxes.pop(agent) if isinstance(message, kinds)]


def test_an_agent_forgets_the_old_outcome_before_the_task_runs_again(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    tasks = driver.submit(client)
    driver.done(agent, driver.runs(agent))
    driver.feed(client, messages.Release(tasks))
    driver.feed(client, submit(tasks[0]))  # its object was lost: it is made again
    release, run = said(driver, agent, messages.Release, messages.Run)
    assert isinstance(release, messages.Release) and list(release.tasks) == tasks
    assert isinstance(run, messages.Run) and list(run.tasks) == tasks
    driver.later(0.1)
    assert not driver.inboxes.get(agent), "a late Release would drop the new outcome"


def test_an_agent_forgets_the_old_outcome_before_a_task_that_needs_it_runs(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    (need,) = driver.submit(client)
    driver.done(agent, driver.runs(agent))
    driver.feed(client, messages.Release([need]))
    driver.feed(
        client, submit(need + 1, need), messages.Inputs([need + 1], [need], [Status.VALUE], Payloads([b"input"]))
    )
    release, run = said(driver, agent, messages.Release, messages.Run)
    assert isinstance(release, messages.Release) and isinstance(run, messages.Run)


def test_a_retried_task_keeps_its_new_outcome(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    driver.submit(client, retries=1)
    driver.done(agent, driver.runs(agent), Status.RAISED)
    driver.later(0.1)
    assert [type(message) for message in said(driver, agent, messages.Release, messages.Run)] == [
        messages.Release,
        messages.Run,
    ]


def test_an_outcome_that_no_agent_keeps_is_not_released(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    tasks = driver.submit(client)
    runs = driver.runs(agent)
    driver.feed(client, messages.Cancel(tasks))
    driver.done(agent, runs, Status.CANCELLED)
    driver.later(0.1)
    assert not driver.take(agent, messages.Release)


def test_an_agent_stops_what_is_not_wanted_before_it_begins_something_else(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=2)
    (unwanted,) = driver.submit(client)
    runs = driver.runs(agent)
    driver.feed(client, messages.Cancel([unwanted]), submit(unwanted + 1))
    withdraw, run = said(driver, agent, messages.Withdraw, messages.Run)
    assert isinstance(withdraw, messages.Withdraw) and list(withdraw.runs) == [runs[unwanted]]
    assert isinstance(run, messages.Run) and list(run.tasks) == [unwanted + 1]


def test_a_task_that_nobody_wants_any_more_does_not_hide_idle_workers(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(b"first", queue_size=1)
    driver.submit(driver.client(b"other"), **GPU)  # it waits for good
    _, unwanted = driver.submit(client, 2)
    runs = driver.runs(agent)
    driver.feed(client, messages.Cancel([unwanted]))
    driver.done(agent, runs)
    (task,) = driver.submit(client)
    assert list(driver.runs(agent)) == [task]
