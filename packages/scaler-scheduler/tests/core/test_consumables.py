"""Consumables: what goes before a run that takes some, whichever way it is started; nothing of them is left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scaler_io.links.events import PeerLost
from scaler_protocol.errors import WorkerDiedError, describe
from scaler_protocol.ids import worker_id
from scaler_protocol.messages import Cancel, Run, Status

if TYPE_CHECKING:
    from conftest import SchedulerDriver


def needing(license: int = 1, **others: int) -> dict[str, Any]:
    """The group of tasks that need so much."""
    needs = {"license": license, **others}
    return {"capability_names": tuple(needs), "capability_values": tuple(needs.values())}


def having(license: int = 1, **others: int) -> dict[str, Any]:
    """What an agent says that has so much."""
    has = {"license": license, **others}
    names, values = tuple(has), tuple(has.values())
    return {
        "capability_names": names,
        "capability_values": values,
        "consumable_names": names,
        "consumable_totals": values,
    }


def test_an_agent_is_told_what_a_run_takes_and_of_nothing_else(driver: SchedulerDriver) -> None:
    client = driver.client()
    agent = driver.agent(workers=4, **{**having(3), "capability_names": ("license", "x"), "capability_values": (3, 9)})
    groups = [needing(2, x=5), needing(-1), needing(0), {}]
    for group in groups:
        driver.submit(client, **group)
    told = [group for message in driver.take(agent, Run) for group in message.groups]
    shares = [dict(zip(group.capability_names, group.capability_values, strict=True)) for group in told]
    assert shares == [{"license": 2}, {"license": 1}, {}, {}]


def test_a_quantity_that_each_worker_offers_is_not_taken(driver: SchedulerDriver) -> None:
    client = driver.client()
    agent = driver.agent(workers=3, capability_names=("license",), capability_values=(1,))
    driver.submit(client, 3, **needing())
    assert len(driver.runs(agent)) == 3


def test_no_more_is_sent_ahead_than_there_is(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=8, **having(2))
    driver.submit(client, 10, **needing())
    for _ in range(5):
        runs = driver.runs(agent)
        assert len(runs) == 2
        driver.done(agent, runs, seconds=0.00002)
    assert len(driver.outcomes(client)) == 10


def test_an_agent_without_enough_for_the_next_task_is_asked_about_the_one_behind_it(driver: SchedulerDriver) -> None:
    client, second = driver.client(), driver.agent(b"second", workers=4, **having(2))
    driver.submit(client)
    driver.submit(client, **needing())
    first = driver.agent(b"first", workers=8, **having(2))
    driver.submit(client, **needing())
    runs = {agent: driver.runs(agent) for agent in (first, second)}
    assert [len(given) for given in runs.values()] == [1, 2]
    big, small = driver.submit(client, **needing(2)), driver.submit(client, **needing())
    assert not driver.runs(first) and not driver.runs(second), "each has one left"
    [*_, ended] = runs[second]
    driver.done(second, {ended: runs[second][ended]})
    assert list(driver.runs(second)) == big
    assert list(driver.runs(first)) == small, "in the same turn, although it was asked first and lacked one"
    driver.submit(client, 9)
    assert len(driver.runs(first)) + len(driver.runs(second)) == 9, "there is room for what takes none"


def test_what_a_cancelled_task_has_taken_is_there_again(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=2, **having())
    first, second = driver.submit(client, 2, **needing())
    runs = driver.runs(agent)
    assert list(runs) == [first]
    driver.feed(client, Cancel([first]))
    assert not driver.runs(agent), "its agent has not stopped it yet"
    driver.done(agent, runs, Status.CANCELLED)
    assert list(driver.runs(agent)) == [second]


@pytest.mark.parametrize("way", ["suspect", "pinned"])
def test_tasks_that_go_before_others_wait_for_it_too(driver: SchedulerDriver, way: str) -> None:
    client, agent = driver.client(), driver.agent(workers=4, **having())
    [task] = driver.submit(client, **needing())
    runs = driver.runs(agent)
    if way == "suspect":
        [record] = [driver.core.state.find(task)]
        assert record is not None
        record.note().suspect = True
        [ahead] = driver.submit(client, **needing())
        driver.done(agent, runs, Status.LOST, describe(WorkerDiedError(charged=False)))
    else:
        [ahead] = driver.submit(client, **needing(), worker=worker_id(agent, 1))
        assert not driver.runs(agent)
        driver.done(agent, runs)
    runs = driver.runs(agent)
    assert len(runs) == 1, "one at a time"
    driver.done(agent, runs)
    driver.done(agent, driver.runs(agent))
    assert {ahead, task} == driver.outcomes(client).keys()


def test_queues_for_combinations_that_nobody_needs_any_more_are_dropped(driver: SchedulerDriver) -> None:
    names = [f"c{number}" for number in range(5)]
    client, agent = driver.client(), driver.agent(**having(**dict.fromkeys(names, 1)))
    for number in range(2**5):
        chosen = [name for bit, name in enumerate(names) if number >> bit & 1]
        driver.submit(client, **needing(**dict.fromkeys(chosen, 1)))
    waiting = driver.core.state.waiting
    while runs := driver.runs(agent):
        driver.done(agent, runs)
    [parts] = waiting._parts.values()
    assert len(parts) > 25
    driver.feed(client, PeerLost("left"))
    assert list(parts) == [()]
