"""Balance: which agents are asked to return runs, and that no task waits where another worker could have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scaler_protocol import messages

if TYPE_CHECKING:
    from conftest import SchedulerDriver

GPU: dict[str, Any] = {"capability_names": ("gpu",), "capability_values": (-1,)}


def _loaded_agents(driver: SchedulerDriver, count: int) -> dict[bytes, dict[int, int]]:
    """Agents with one worker each, and their runs, which are expected to take few milliseconds; another one is idle."""
    client, agents = driver.client(), [driver.agent(b"early%d" % number) for number in range(count)]
    driver.submit(client, 180 * count)
    for _ in range(7):  # the windows grow
        for agent in agents:
            driver.done(agent, driver.runs(agent), seconds=0.00002)
    assert driver.core.state.waiting.count == 0
    driver.agent(b"late", workers=2)
    return {agent: driver.runs(agent) for agent in agents}


def test_every_agent_without_progress_is_asked_for_runs_however_short_these_are_expected_to_be(
    driver: SchedulerDriver,
) -> None:
    held = [agent for agent, runs in _loaded_agents(driver, 3).items() if len(runs) > 1]
    assert len(held) > 1
    driver.later(0.01)
    assert not any(driver.take(agent, messages.Recall) for agent in held)
    driver.later((driver.core.due() or driver.now) - driver.now)
    assert all(driver.take(agent, messages.Recall) for agent in held)


def test_an_agent_with_little_work_that_makes_progress_is_not_asked(driver: SchedulerDriver) -> None:
    held = {agent: runs for agent, runs in _loaded_agents(driver, 3).items() if len(runs) > 1}
    first, second = list(held)[:2]
    driver.later(0.01)
    driver.done(first, dict(list(held[first].items())[:1]), seconds=0.00002)
    driver.later(0.01)
    assert [len(driver.take(agent, messages.Recall)) for agent in (first, second)] == [0, 1]


def test_a_task_that_nobody_can_run_does_not_keep_idle_workers_from_what_others_have(driver: SchedulerDriver) -> None:
    held = [agent for agent, runs in _loaded_agents(driver, 3).items() if len(runs) > 1]
    taking: dict[str, Any] = {"capability_names": ("license",), "capability_values": (1,)}
    driver.agent(b"limited", 1, **taking, consumable_names=("license",), consumable_totals=(1,))
    driver.submit(driver.client(b"other"), 3, **taking)
    driver.submit(driver.client(b"hopeless"), 3, **GPU)
    driver.later(0.01)
    assert driver.core.state.waiting.count == 5
    driver.later((driver.core.due() or driver.now) - driver.now)
    assert all(driver.take(agent, messages.Recall) for agent in held)


def _stuck(driver: SchedulerDriver, agent: bytes, client: bytes, **group: Any) -> tuple[int, dict[int, int]]:
    """A task of a function that was short until now waits at an agent, behind a run that ends no more; all its runs."""
    for count in (1, 2, 4):
        driver.submit(client, count, **group)
        while runs := driver.runs(agent):
            driver.done(agent, runs, seconds=0.00001)
    driver.submit(client, **group)
    runs = driver.runs(agent)
    (behind,) = driver.submit(client, **group)
    runs |= driver.runs(agent)
    assert behind in runs
    return behind, runs


def _answer_recalls(driver: SchedulerDriver, agent: bytes, runs: dict[int, int], seconds: float = 0.1) -> int:
    """Time passes; the agent returns its newest runs when it is asked, but for the oldest one; how often it was."""
    asked = 0
    for _ in range(round(seconds / 0.01)):
        due = driver.core.due()
        driver.later(min(0.01, max(0.0, due - driver.now)) if due is not None else 0.01)
        for recall in driver.take(agent, messages.Recall):
            asked += 1
            newest = list(runs)[1:][-recall.count :]
            driver.feed(agent, messages.Returned([runs.pop(task) for task in newest]))
            runs |= driver.runs(agent)
    return asked


def test_what_one_agent_returns_goes_to_another_one_whatever_that_offers_beside(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(b"first")
    behind, runs = _stuck(driver, agent, client)
    other = driver.agent(b"other", capabilities=["gpu"])
    assert _answer_recalls(driver, agent, runs) == 1
    assert behind in driver.runs(other)


def test_an_idle_worker_has_a_task_before_it_waits_behind_another_one_elsewhere(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(b"first")
    _stuck(driver, agent, client)
    other = driver.agent(b"other", workers=2, capabilities=["gpu"])
    tasks = driver.submit(client, 2)
    assert tasks == list(driver.runs(other))


def test_tasks_that_only_busy_agents_can_run_do_not_keep_others_where_they_wait(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(b"able", capabilities=["gpu"])
    behind, runs = _stuck(driver, agent, client)
    driver.submit(driver.client(b"other"), 3000, **GPU)
    runs |= driver.runs(agent)
    assert driver.core.state.waiting.count
    plain = driver.agent(b"plain")
    _answer_recalls(driver, agent, runs)
    assert behind in driver.runs(plain)


def test_loads_are_compared_although_nothing_happens_after_the_last_change(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(b"first")
    behind, runs = _stuck(driver, agent, client)
    driver.later(0.02)
    driver.agent(b"nobody", workers=0)  # loads are compared
    driver.later(0.001)
    other = driver.agent(b"other")
    assert driver.core.due() is not None
    _answer_recalls(driver, agent, runs)
    assert behind in driver.runs(other)


def test_all_kinds_of_queued_tasks_are_looked_at_not_the_newest_one_only(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(b"able", capabilities=["gpu"])
    behind, runs = _stuck(driver, agent, client)
    driver.submit(client, 3, **GPU)
    runs |= driver.runs(agent)
    assert list(runs)[-1] != behind
    plain = driver.agent(b"plain")
    _answer_recalls(driver, agent, runs)
    assert list(driver.runs(plain)) == [behind]


@pytest.mark.parametrize("useless", [(), (1,)])
def test_an_agent_that_has_nothing_of_use_to_return_does_not_keep_others_from_being_asked(
    driver: SchedulerDriver, useless: tuple[int, ...]
) -> None:
    client, crowded = driver.client(), driver.agent(b"crowded")
    driver.submit(client)
    (parent,) = driver.runs(crowded).values()
    driver.feed(crowded, messages.Blocked([parent], [True]))
    driver.submit(client)
    agent = driver.agent(b"first")
    behind, runs = _stuck(driver, agent, client)
    driver.feed(crowded, messages.Blocked([parent], [False]))  # it resumes: more runs than workers
    other = driver.agent(b"other")
    asked = 0
    for _ in range(10):
        if driver.take(crowded, messages.Recall):
            asked += 1
            driver.feed(crowded, messages.Returned(useless))
        _answer_recalls(driver, agent, runs, 0.01)
    assert asked
    assert behind in driver.runs(other)
