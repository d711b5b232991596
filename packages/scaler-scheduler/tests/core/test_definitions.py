"""Function bodies that tasks wait for: if a body cannot be obtained, its tasks fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_protocol.errors import ProtocolError, restore
from scaler_protocol.ids import first_task, function_id
from scaler_protocol.messages import Functions, Group, NeedFunctions, Status, Submit, Withdraw
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.functions import FunctionStore

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FUNCTION = function_id(b"body")
REFUSED = "is not the BLAKE2b-128 of the body"


def submit_unknown(driver: SchedulerDriver, client: bytes, count: int, serializer: bytes = b"") -> list[int]:
    """Tasks of a function whose bytes do not come with them."""
    tasks = list(range(first_task(client[0]) + 100, first_task(client[0]) + 100 + count))
    driver.feed(client, Submit((Group(FUNCTION, serializer=serializer),), tasks, Payloads([b"call"] * count)))
    return tasks


def answer_wrongly(driver: SchedulerDriver, client: bytes, function: bytes = FUNCTION) -> None:
    """To the first question, whether it was asked or not, and to all that follow."""
    more = True
    while more:
        driver.take(client, NeedFunctions)
        with pytest.raises(ProtocolError, match=REFUSED):
            driver.feed(client, Functions((function,), ("n",), Payloads([b"forged"])))
        driver.settle()
        more = any(isinstance(said, NeedFunctions) for said in driver.inboxes.get(client, ()))


def assert_failed(driver: SchedulerDriver, client: bytes, tasks: list[int]) -> None:
    told = driver.outcomes(client)
    assert sorted(told) == tasks
    assert all(status == Status.FAILED and REFUSED in str(restore(payload)) for status, payload in told.values())


def test_tasks_that_are_held_for_a_function_that_is_refused_fail(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent()
    tasks = submit_unknown(driver, client, 3)
    answer_wrongly(driver, client)
    assert_failed(driver, client, tasks)
    assert not driver.runs(agent)
    (task,) = driver.submit(client)
    assert list(driver.runs(agent)) == [task]


def test_a_serializer_that_is_refused(driver: SchedulerDriver) -> None:
    client, serializer = driver.client(b"c"), function_id(b"serializer")
    driver.agent(workers=4)
    driver.submit(client)
    tasks = submit_unknown(driver, client, 2, serializer)
    answer_wrongly(driver, client, serializer)
    assert_failed(driver, client, tasks)


def test_runs_on_an_agent_that_dropped_the_function_are_withdrawn(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent(workers=2)
    tasks = driver.submit(client, 2)
    runs = driver.runs(agent)
    driver.core.state.functions.use(FUNCTION).body = None
    driver.feed(agent, NeedFunctions((FUNCTION,)))
    answer_wrongly(driver, client)
    assert_failed(driver, client, tasks)
    assert sorted(run for said in driver.take(agent, Withdraw) for run in said.runs) == sorted(runs.values())


def test_who_says_nonsense_harms_no_other(driver: SchedulerDriver) -> None:
    honest, liar, stranger, agent = driver.client(b"h"), driver.client(b"l"), driver.client(b"s"), driver.agent()
    mine, others = submit_unknown(driver, honest, 2), submit_unknown(driver, liar, 1)
    answer_wrongly(driver, stranger)
    assert not driver.outcomes(liar)
    answer_wrongly(driver, liar)
    assert_failed(driver, liar, others)
    driver.feed(honest, Functions((FUNCTION,), ("n",), Payloads([b"body"])))
    while runs := driver.runs(agent):
        driver.done(agent, runs)
    assert sorted(driver.outcomes(honest)) == mine


def test_an_agent_gets_the_function_from_another_client(driver: SchedulerDriver) -> None:
    liar, honest, agent = driver.client(b"l"), driver.client(b"h"), driver.agent(workers=2)
    driver.submit(liar)
    (mine,) = driver.submit(honest)
    runs = driver.runs(agent)
    driver.core.state.functions.use(FUNCTION).body = None
    driver.feed(agent, NeedFunctions((FUNCTION,)))
    asked = liar if driver.take(liar, NeedFunctions) else honest
    other = honest if asked is liar else liar
    answer_wrongly(driver, asked)
    assert driver.take(other, NeedFunctions)
    driver.feed(other, Functions((FUNCTION,), ("n",), Payloads([b"body"])))
    assert [list(said.bodies) for said in driver.take(agent, Functions)] == [[b"body"]]
    driver.done(agent, {task: run for task, run in runs.items() if task >> 32 == other[0]})
    assert list(driver.outcomes(other)) == [task for task in runs if task >> 32 == other[0]]
    assert mine in runs


def test_an_agent_is_not_told_functions_that_none_of_its_tasks_needs(driver: SchedulerDriver) -> None:
    client, busy = driver.client(b"c"), driver.agent(b"busy")
    driver.submit(client)
    assert driver.runs(busy)
    curious = driver.agent(b"curious")
    driver.feed(curious, NeedFunctions((FUNCTION, function_id(b"another"))))
    assert not driver.take(curious, Functions)
    driver.core.state.functions.use(FUNCTION).body = None
    driver.feed(curious, NeedFunctions((FUNCTION,)))
    assert not driver.take(client, NeedFunctions) and not driver.take(curious, Functions)
    driver.feed(busy, NeedFunctions((FUNCTION,)))
    assert driver.take(client, NeedFunctions)


def test_a_done_of_another_agents_run_counts_for_nothing(driver: SchedulerDriver) -> None:
    client, honest = driver.client(b"c"), driver.agent(b"honest")
    driver.submit(client)
    runs = driver.runs(honest)
    liar = driver.agent(b"liar")
    driver.done(liar, runs)
    driver.done(liar, {task: run + 1000 for task, run in runs.items()})
    assert not driver.outcomes(client)
    driver.done(honest, runs)
    assert list(driver.outcomes(client)) == list(runs)


def test_functions_that_nobody_knows_take_the_place_of_no_other() -> None:
    """An agent that has returned may ask for any: their sessions may not be back yet."""
    store = FunctionStore(records_limit=2)
    store.define((b"one", b"two"), ("n", "n"), (b"1", b"2"))
    assert store.expect(b"unknown").body is None
    assert [function.id for function in store.latest()] == [b"two", b"one"]
    assert store.expect(b"one").body == b"1"
    assert [function.id for function in store.latest()] == [b"one", b"two"]
