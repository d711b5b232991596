"""Outcomes of many agents in one message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_protocol.codec import decode, encode
from scaler_protocol.messages import MESSAGE_IDS, MESSAGE_LIMIT, Done, Status
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import NO_PROFILE, Profile, profile_at
from scaler_scheduler.core.outcome_batch import JOINED_BYTES, JOINED_TASKS, OutcomeBatch

if TYPE_CHECKING:
    from conftest import SchedulerDriver


def report(first: int, results: list[bytes], agent: str, stored: tuple[int, ...] = ()) -> Done:
    """The values of tasks from `first` on, each with a profile that has the task's number as its duration."""
    tasks = range(first, first + len(results))
    profiles = b"".join(Profile(task, 0, 0, 0, 0, 1).packed() for task in tasks)
    return Done(
        tasks, [0] * len(results), Payloads(results), [100 + task for task in tasks], stored, profiles, (agent,)
    )


def rows(done: Done) -> list[tuple[int, int, bytes, bool, int, str]]:
    """Task, status, result, whether it is stored, duration in microseconds, agent."""
    return [
        (task, status, result, at in done.stored, profile_at(done.profiles, at).duration_us, done.agent_of(at))
        for at, (task, status, result) in enumerate(zip(done.tasks, done.statuses, done.results, strict=True))
    ]


def written(done: Done) -> Done:
    """The message as its receiver reads it."""
    read = decode([bytes(frame) for frame in encode(done)])
    assert isinstance(read, Done)
    return read


def test_reports_of_many_agents_become_one_message() -> None:
    batch = OutcomeBatch()
    batch.add_report(report(1, [b"a", b""], "one"))
    batch.add_report(report(3, [b"c"], "two", stored=(0,)))
    batch.add_report(Done([4, 5], [0, 1], Payloads([b"d", b"e"]), agents=("three", "four"), agent_ends=(1, 2)))
    (done,) = batch.messages()
    assert rows(written(done)) == [
        (1, 0, b"a", False, 1, "one"),
        (2, 0, b"", False, 2, "one"),
        (3, 0, b"c", True, 3, "two"),
        (4, 0, b"d", False, 0, "three"),
        (5, 1, b"e", False, 0, "four"),
    ]


def test_single_outcomes_become_one_message() -> None:
    batch = OutcomeBatch()
    batch.add(9, (Status.FAILED, b"lost", False), NO_PROFILE, "")
    for task, agent in ((3, "two"), (4, "two")):
        batch.add(task, (0, b"stored", True), Profile(task, 0, 0, 0, 0, 1).packed(), agent)
    (done,) = batch.messages()
    assert rows(written(done)) == [
        (9, Status.FAILED, b"lost", False, 0, ""),
        (3, 0, b"stored", True, 3, "two"),
        (4, 0, b"stored", True, 4, "two"),
    ]
    assert list(done.agents) == ["", "two"] and list(done.agent_ends) == [1, 3]


def test_a_single_report_is_not_changed() -> None:
    batch, only = OutcomeBatch(), report(1, [b"a"], "one")
    batch.add_report(only)
    assert list(batch.messages()) == [only] and next(batch.messages()) is only


def test_joined_runs_are_those_that_were_asked_for() -> None:
    batch = OutcomeBatch()
    assert not batch
    batch.add_runs(report(1, [b"a", b"b", b"c"], "one", stored=(2,)), {3: 33, 1: 11})
    batch.add_runs(report(4, [b"d"], "two"), {4: 44})
    (done,) = batch.messages()
    assert (list(done.tasks), list(done.runs), list(done.stored)) == ([1, 3, 4], [11, 33, 44], [1])
    assert [done.agent_of(at) for at in range(3)] == ["one", "one", "two"]


@pytest.mark.parametrize("is_report", [False, True])
@pytest.mark.parametrize("what", ["results", "names"])
def test_messages_are_no_longer_than_their_limit(what: str, is_report: bool) -> None:
    batch, size = OutcomeBatch(), MESSAGE_LIMIT // 10
    for number in range(25):
        long, name = (b"r" * size, "a") if what == "results" else (b"", f"{number:04}" * (size // 4))
        if is_report:
            batch.add_report(report(number + 1, [long], name))
        else:
            batch.add(number + 1, (0, long, False), NO_PROFILE, name)
    messages = list(batch.messages())
    assert [len(done.tasks) for done in messages] == ([9, 9, 7] if what == "results" else [10, 10, 5])
    assert [task for done in messages for task in done.tasks] == list(range(1, 26))


def test_messages_have_no_more_tasks_than_their_limit() -> None:
    batch = OutcomeBatch()
    for number in range(MESSAGE_IDS + 1):
        batch.add(number + 1, (0, b"", False), NO_PROFILE, "a")
    assert [len(done.tasks) for done in batch.messages()] == [MESSAGE_IDS, 1]


@pytest.mark.parametrize("result", [b"r", b"r" * JOINED_BYTES])
def test_an_owner_gets_short_reports_of_a_turn_in_one_message(driver: SchedulerDriver, result: bytes) -> None:
    client, agents = driver.client(), [driver.agent(name) for name in (b"one", b"two", b"three")]
    tasks = driver.submit(client, 3)
    for agent in agents:
        (given,) = driver.runs(agent).items()
        done = report(given[0], [result], agent.rstrip(b".").decode())
        driver.core.handle(
            agent,
            written(Done(done.tasks, done.statuses, done.results, [given[1]], (), done.profiles, done.agents)),
            driver.now,
        )
    driver.settle()
    got = driver.take(client, Done)
    assert len(got) == (1 if len(result) < JOINED_BYTES else 3)
    assert sorted(row[0] for done in got for row in rows(done)) == tasks
    assert sorted(row[5] for done in got for row in rows(done)) == ["one", "three", "two"]


def test_long_reports_are_passed_on_as_they_came(driver: SchedulerDriver) -> None:
    client, agents = driver.client(), [driver.agent(name, workers=JOINED_TASKS) for name in (b"one", b"two")]
    driver.submit(client, 2 * JOINED_TASKS)
    for agent in agents:
        runs = driver.runs(agent)
        done = report(min(runs), [b"r"] * len(runs), "w")
        driver.core.handle(
            agent,
            written(Done(list(runs), done.statuses, done.results, list(runs.values()), (), done.profiles, ("w",))),
            driver.now,
        )
    driver.settle()
    assert [len(done.runs) for done in driver.take(client, Done)] == [JOINED_TASKS, JOINED_TASKS]
