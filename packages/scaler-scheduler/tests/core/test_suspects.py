"""A task that ends its hosts is found; what ran beside it is neither charged nor held up for long."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pytest

from scaler_io.links.events import PeerLost
from scaler_protocol import messages
from scaler_protocol.errors import WorkerDiedError, restore
from scaler_protocol.messages import Status
from scaler_scheduler.core.suspects import PROBATION_SECONDS

if TYPE_CHECKING:
    from conftest import SchedulerDriver

HOSTS = 12
"""More than one task can end before it is given up."""


def report(driver: SchedulerDriver, agent: bytes, *runs: int, newest: int | None = None) -> None:
    """The agent says that these runs are on its workers, and that it has received all, or those up to `newest`."""
    count = len(runs)
    zeros = (0,) * count
    newest = driver.core.state.next_run - 1 if newest is None else newest
    columns = (("w",) * count, zeros, zeros, runs, zeros, zeros, zeros)
    driver.feed(agent, messages.AgentStatus(0.0, 0, 0, 0, *columns, newest_run=newest))


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_only_the_task_that_kills_hosts_is_given_up(driver: SchedulerDriver, workers: int) -> None:
    client = driver.client()
    poison, *innocent = driver.submit(client, 3 * workers)
    told: dict[int, tuple[int, bytes]] = {}
    agents = {driver.agent(b"0-%d" % number, workers): dict[int, int]() for number in range(2)}
    killed = 0
    while poison not in told:
        for agent, runs in list(agents.items()):
            runs.update(driver.runs(agent))
            running = dict(islice(runs.items(), workers))
            report(driver, agent, *running.values())
            if poison in running:
                del agents[agent]
                driver.feed(agent, PeerLost("killed"))
                killed += 1
                assert killed < HOSTS, "the task that kills its hosts is never given up"
                agents[driver.agent(b"%d" % killed, workers)] = {}
            else:
                driver.done(agent, running)
                agents[agent] = {task: run for task, run in runs.items() if task not in running}
        told |= driver.outcomes(client)
    status, payload = told[poison]
    error = restore(payload)
    assert status == Status.FAILED and isinstance(error, WorkerDiedError) and error.details["runs"] == 3
    for _ in range(100):
        for agent, runs in agents.items():
            runs.update(driver.runs(agent))
            driver.done(agent, dict(runs))
            runs.clear()
        told |= driver.outcomes(client)
    assert {told[task] for task in innocent} == {(Status.VALUE, b"r")}


def test_suspects_run_apart_and_others_beside_them(driver: SchedulerDriver) -> None:
    client, first = driver.client(), driver.agent(b"first", 3)
    suspects = driver.submit(client, 3)
    report(driver, first, *driver.runs(first).values())
    driver.feed(first, PeerLost("killed"))
    one, two = driver.agent(b"one", 3), driver.agent(b"two", 3)
    others = driver.submit(client, 4)
    runs = [driver.runs(one), driver.runs(two)]
    assert [len(given.keys() & suspects) for given in runs] == [1, 1]
    assert {task for given in runs for task in given} >= set(others)
    (alone,) = runs[0].keys() & suspects
    driver.done(one, {alone: runs[0][alone]})
    assert driver.runs(one).keys() == set(suspects) - runs[0].keys() - runs[1].keys()


def test_a_suspect_that_stays_on_a_worker_is_none_any_more(driver: SchedulerDriver) -> None:
    client, first = driver.client(), driver.agent(b"first", 2)
    suspects = driver.submit(client, 2)
    report(driver, first, *driver.runs(first).values())
    driver.feed(first, PeerLost("killed"))
    second = driver.agent(b"second", 2)
    runs = driver.runs(second)
    (alone,) = runs
    report(driver, second, runs[alone])
    driver.later(PROBATION_SECONDS / 2)
    report(driver, second, runs[alone])
    assert not driver.runs(second)
    driver.later(PROBATION_SECONDS / 2)
    report(driver, second, runs[alone])
    assert list(driver.runs(second)) == [task for task in suspects if task != alone]


def test_a_suspect_can_be_cancelled(driver: SchedulerDriver) -> None:
    client, first = driver.client(), driver.agent(b"first", 2)
    suspects = driver.submit(client, 2)
    report(driver, first, *driver.runs(first).values())
    driver.feed(first, PeerLost("killed"))
    driver.feed(client, messages.Cancel(suspects))
    assert not list(driver.core.state.suspects) and not driver.runs(driver.agent(b"second", 2))


def test_a_run_that_was_queued_when_no_worker_was_ready_is_charged(driver: SchedulerDriver) -> None:
    client = driver.client()
    (poison,) = driver.submit(client)
    for turn in range(3):
        agent = driver.agent(b"%d" % turn)
        assert poison in driver.runs(agent) and not driver.outcomes(client)
        report(driver, agent)
        driver.feed(agent, PeerLost("killed"))
    assert driver.outcomes(client)[poison][0] == Status.FAILED


@pytest.mark.parametrize("crossed", [False, True])
def test_a_run_that_ends_its_agent_before_it_reaches_a_worker_is_charged(
    driver: SchedulerDriver, crossed: bool
) -> None:
    client = driver.client()
    (busy,) = driver.submit(client)
    agents = [driver.agent(b"0"), driver.agent(b"1")]
    for agent in agents:
        if runs := driver.runs(agent):
            report(driver, agent, runs[busy])
    (poison,) = driver.submit(client)
    told: dict[int, tuple[int, bytes]] = {}
    for turn in range(2, HOSTS):
        for agent in agents:
            if poison in driver.runs(agent):
                if crossed:
                    on_worker = [run for run, task in driver.core.state.agents[agent].runs.items() if task.id == busy]
                    report(driver, agent, *on_worker, newest=max(on_worker, default=0))
                agents.remove(agent)
                driver.feed(agent, PeerLost("struct.error"))
                agents.append(driver.agent(b"%d" % turn))
                break
        told |= driver.outcomes(client)
    assert told[poison][0] == Status.FAILED and busy not in told
