"""Tasks go to the host that has their big inputs, and no worker is idle for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler_protocol.ids import function_id
from scaler_protocol.messages import Done, Group, Inputs, Run, Status, Submit
from scaler_protocol.objects import Reference
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import Profile
from scaler_scheduler.core import locality
from scaler_scheduler.core.locality import LOCAL_BYTES, Locality

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FUNCTION = function_id(b"body")


def submit(driver: SchedulerDriver, client: bytes, first: int, needs: list[list[int]], **group: object) -> list[int]:
    """One task per list, which takes the results of these tasks."""
    tasks = [(client[0] << 32) + first + at for at in range(len(needs))]
    pairs = [(at, need) for at, found in enumerate(needs) for need in found]
    message = Submit(
        [Group(FUNCTION, **group)],  # type: ignore[arg-type]
        tasks,
        Payloads([b"call"] * len(tasks)),
        dependents=[at for at, _ in pairs],
        needs=[need for _, need in pairs],
        functions=[FUNCTION],
        names=["f"],
        bodies=Payloads([b"body"]),
    )
    driver.feed(client, message)
    return tasks


def finish(driver: SchedulerDriver, agent: bytes, runs: dict[int, int], size: int = LOCAL_BYTES) -> None:
    """These runs end, each with an object of that size."""
    results = [Reference(task.to_bytes(16, "big"), size).pack() for task in runs]
    driver.feed(
        agent,
        Done(
            list(runs), [Status.VALUE] * len(runs), Payloads(results), list(runs.values()), list(range(len(runs))),
            Profile(1000, 1, 1, 1, 0, 1).packed() * len(runs), "w",
        ),
    )  # fmt: skip


def test_consumers_change_places_until_each_is_where_its_input_is(driver: SchedulerDriver) -> None:
    client, agents = driver.client(), [driver.agent(name, workers=2) for name in (b"x", b"y")]
    sources = submit(driver, client, 1, [[]] * 4)
    ran = {agent: driver.runs(agent) for agent in agents}
    assert [len(runs) for runs in ran.values()] == [2, 2]
    where = {task: agent for agent, runs in ran.items() for task in runs}
    submit(driver, client, 101, [[source] for source in reversed(sources)])
    for agent in agents:  # in one turn
        driver.core.handle(agent, _done(ran[agent]), driver.now)
    driver.settle()
    found = {agent: driver.runs(agent) for agent in agents}
    assert {task: agent for agent, runs in found.items() for task in runs} == {
        (client[0] << 32) + 101 + at: where[source] for at, source in enumerate(reversed(sources))
    }


def _done(runs: dict[int, int]) -> Done:
    results = [Reference(task.to_bytes(16, "big"), LOCAL_BYTES).pack() for task in runs]
    profiles = Profile(1000, 1, 1, 1, 0, 1).packed() * len(runs)
    return Done(list(runs), [0] * len(runs), Payloads(results), list(runs.values()), list(range(len(runs))), profiles)


def test_a_task_goes_to_an_idle_worker_beside_its_input_but_waits_for_none(driver: SchedulerDriver) -> None:
    client, x = driver.client(), driver.agent(b"x", workers=2)
    [source, other] = submit(driver, client, 1, [[], []])
    runs = driver.runs(x)
    y = driver.agent(b"y", workers=2)
    [first] = submit(driver, client, 101, [[source]])
    finish(driver, x, {source: runs[source]})
    assert first in driver.runs(x) and not driver.runs(y)  # y is less loaded
    [second] = submit(driver, client, 102, [[source]])
    # The scheduler has forgotten the outcome, as its owner has it: that is asked for, and known again by its object.
    driver.feed(client, _input(second, source))
    assert second in driver.runs(y) and not driver.runs(x)  # both workers of x are busy, and none is to be idle
    assert other


def graph(driver: SchedulerDriver, client: bytes, needs: list[list[int]], asked: list[int], at: int = 1) -> list[int]:
    """Nodes that take the results of those at these places; its tasks."""
    first = (client[0] << 32) + at
    places = [need for each in needs for need in each]
    message = Submit(
        [Group(FUNCTION)],
        [first + place for place in range(len(needs))],
        Payloads([b"call"] * len(needs)),
        dependents=[place for place, each in enumerate(needs) for _ in each],
        needs=[first + need for need in places],
        functions=[FUNCTION],
        names=["f"],
        bodies=Payloads([b"body"]),
        consumers=[places.count(place) for place in range(len(needs))],
        intermediate=[place for place in range(len(needs)) if place not in asked],
        graph=first,
        graph_size=len(needs),
    )
    driver.feed(client, message)
    return list(message.tasks)


@pytest.mark.parametrize("crossed", [False, True])
def test_nodes_of_a_graph_follow_their_inputs_with_the_chains_that_they_begin(
    driver: SchedulerDriver, crossed: bool
) -> None:
    client, x, y = driver.client(), driver.agent(b"x"), driver.agent(b"y")
    first, second = (1, 0) if crossed else (0, 1)
    tasks = graph(driver, client, [[], [], [first], [2], [3], [second], [5], [6]], [4, 7])
    ran = {agent: driver.runs(agent) for agent in (x, y)}
    where = {task: agent for agent, runs in ran.items() for task in runs}
    assert where == {tasks[0]: where[tasks[0]], tasks[1]: where[tasks[1]]} and len(set(where.values())) == 2
    for agent in (x, y):  # in one turn
        driver.core.handle(agent, _done(ran[agent]), driver.now)
    driver.settle()
    for source, chain in ((first, tasks[2:5]), (second, tasks[5:8])):
        (run,) = driver.take(where[tasks[source]], Run)
        assert list(run.tasks) == chain and list(run.inputs_awaited) == [1, 2] and list(run.inputs_stored) == [0]


@pytest.mark.parametrize("plain_first", [False, True])
def test_a_chain_changes_places_with_a_task_that_may_be_anywhere(driver: SchedulerDriver, plain_first: bool) -> None:
    client, x = driver.client(), driver.agent(b"x")
    source, *chain = graph(driver, client, [[], [0], [1], [2]], [3])
    runs = {x: driver.runs(x)}
    y = driver.agent(b"y")
    [busy] = graph(driver, client, [[]], [0], at=50)
    runs[y] = driver.runs(y)
    assert (list(runs[x]), list(runs[y])) == ([source], [busy])
    plain = [graph(driver, client, [[]], [0], at=at)[0] for at in (60, 70)]
    for agent in (y, x) if plain_first else (x, y):
        driver.core.handle(agent, _done(runs[agent]), driver.now)
    driver.settle()
    given = {agent: list(driver.runs(agent)) for agent in (x, y)}
    at = given[x].index(chain[0])
    assert given[x][at : at + len(chain)] == chain and sorted(given[x] + given[y]) == sorted(chain + plain)


def test_nodes_with_inputs_on_one_host_keep_no_other_worker_idle(driver: SchedulerDriver) -> None:
    client, x = driver.client(), driver.agent(b"x", workers=2)
    tasks = graph(driver, client, [[], [], [0], [0, 1], [1]], [2, 3, 4])
    runs = driver.runs(x)
    y = driver.agent(b"y", workers=1)
    driver.feed(x, _done(runs))
    there, elsewhere = driver.runs(x), driver.runs(y)
    assert {*there, *elsewhere} == set(tasks[2:]) and len(elsewhere) == 1


def _input(task: int, need: int) -> Inputs:
    return Inputs([task], [need], [0], Payloads([Reference(need.to_bytes(16, "big"), LOCAL_BYTES).pack()]), [0])


def test_where_an_input_was_needed_it_is_from_then_on(driver: SchedulerDriver) -> None:
    client, x = driver.client(), driver.agent(b"x")
    [source] = submit(driver, client, 1, [[]])
    runs = driver.runs(x)
    y = driver.agent(b"y")
    finish(driver, x, runs)
    [busy] = submit(driver, client, 50, [[]])
    held = {agent: driver.runs(agent) for agent in (x, y)}
    one, other = (x, y) if busy in held[x] else (y, x)
    [consumer] = submit(driver, client, 101, [[source]])
    driver.feed(client, _input(consumer, source))
    taken = driver.runs(other)
    assert consumer in taken  # the other one is busy
    driver.done(other, taken)
    driver.done(one, held[one])
    [busy] = submit(driver, client, 51, [[]])
    place = x if busy in driver.runs(x) else y
    [again] = submit(driver, client, 102, [[source]])
    driver.feed(client, _input(again, source))
    assert again in driver.runs(y if place is x else x)


@pytest.mark.parametrize("reason", ["small", "another class", "one host"])
def test_nothing_moves(driver: SchedulerDriver, reason: str) -> None:
    client = driver.client()
    x = driver.agent(b"x", workers=1, capabilities=("a", "b"), host="same" if reason == "one host" else "x")
    [source] = submit(driver, client, 1, [[]])
    runs = driver.runs(x)
    offered = ("a",) if reason == "another class" else ("a", "b")
    y = driver.agent(b"y", workers=4, capabilities=offered, host="same" if reason == "one host" else "y")
    submit(driver, client, 50, [[]] * 3)
    before = len(driver.runs(x)), len(driver.runs(y))
    [consumer] = submit(driver, client, 101, [[source]], capability_names=("a",), capability_values=(-1,))
    finish(driver, x, runs, LOCAL_BYTES - 1 if reason == "small" else LOCAL_BYTES)
    assert consumer in {**driver.runs(x), **driver.runs(y)} and sum(before) == 3


def test_tasks_without_inputs_are_not_looked_at(driver: SchedulerDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("it costs something")

    client, x, y = driver.client(), driver.agent(b"x"), driver.agent(b"y")
    monkeypatch.setattr(Locality, "_bytes_by_host", fail)
    submit(driver, client, 1, [[]] * 10)
    finish(driver, x, driver.runs(x))
    finish(driver, y, driver.runs(y))  # now there are big results
    submit(driver, client, 101, [[]] * 10)
    assert driver.runs(x) or driver.runs(y)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_task_is_lost_and_no_worker_idle(make_driver: type[SchedulerDriver], data: st.DataObject) -> None:
    driver = make_driver(monitored=data.draw(st.booleans()))
    client = driver.client()
    names = [b"x", b"y", b"z"]
    agents = [driver.agent(name, workers=data.draw(st.integers(1, 3))) for name in names]
    count = data.draw(st.integers(1, 12))
    sources = submit(driver, client, 1, [[]] * count)
    needs = st.lists(st.sampled_from(sources), max_size=3, unique=True)
    consumers = submit(driver, client, 1001, data.draw(st.lists(needs, min_size=1, max_size=12)))
    ended: set[int] = set()
    for _ in range(200):
        for agent in agents:
            runs = driver.runs(agent)
            assert not ended & runs.keys()
            if runs:
                ended |= runs.keys()
                driver.core.handle(agent, _done(runs), driver.now)
        driver.settle()
        waiting = driver.core.state.waiting.count
        idle = sum(max(0, agent.workers - agent.active) for agent in driver.core.state.agents.values())
        assert not (waiting and idle)
        if len(ended) == count + len(consumers):
            return
    raise AssertionError("some task was never run")


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locality, "OBJECTS_LIMIT", 3)
    places = Locality()
    for number in range(5):
        places.add_location(Reference(bytes([number]) * 16, LOCAL_BYTES).pack(), "x")
    assert len(places._hosts_by_object) == 3
    for number in range(40):
        places.add_location(Reference(bytes([4]) * 16, LOCAL_BYTES).pack(), f"host {number}")
    assert len(places._hosts_by_object[bytes([4]) * 16]) == 16
