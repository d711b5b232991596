"""Second runs of late ones, message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_io.links.events import PeerLost
from scaler_protocol import messages
from scaler_protocol.errors import WorkerDiedError, describe
from scaler_protocol.ids import first_task
from scaler_protocol.messages import Done, Group, Status, Submit
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import NO_PROFILE
from scaler_protocol.storage import DeleteObjects

if TYPE_CHECKING:
    from conftest import SchedulerDriver

LOST = describe(WorkerDiedError("killed"))
NESTED = 2**31 + 5
"""The session of tasks that a task submits."""


class Pair:
    """A task that has two runs."""

    def __init__(self, driver: SchedulerDriver, **group: int) -> None:
        self.driver, self.client = driver, driver.client()
        self.agents = [driver.agent(b"one", 8)]
        tasks = driver.submit(self.client, 8, speculate=True, **group)
        runs = driver.runs(self.agents[0])
        (self.task,), ended = tasks[:1], tasks[1:]
        self.first = runs[self.task]
        self.agents.append(driver.agent(b"two", 1))
        driver.done(self.agents[0], {task: runs[task] for task in ended}, seconds=1.0)
        driver.outcomes(self.client)
        driver.later(0.9)  # 1.9 s after its dispatch
        assert not driver.runs(self.agents[1])
        driver.later(0.3)
        self.second = driver.runs(self.agents[1])[self.task]

    def done(self, which: int, status: int = Status.VALUE, result: bytes = b"r") -> None:
        """The first (0) or the second (1) run ends."""
        self.driver.done(self.agents[which], {self.task: (self.first, self.second)[which]}, status, result)

    def withdrawn(self, which: int) -> list[int]:
        """Runs that an agent was told to stop."""
        return [run for message in self.driver.take(self.agents[which], messages.Withdraw) for run in message.runs]

    def outcomes(self) -> dict[int, tuple[int, bytes]]:
        return self.driver.outcomes(self.client)


def test_the_first_outcome_wins(driver: SchedulerDriver) -> None:
    pair = Pair(driver)
    pair.done(0, result=b"first")
    assert pair.outcomes() == {pair.task: (Status.VALUE, b"first")}
    assert pair.withdrawn(1) == [pair.second] and not pair.withdrawn(0)
    pair.done(1, Status.CANCELLED, b"")
    assert not pair.outcomes() and not driver.core._completion.speculation.groups


@pytest.mark.parametrize("status", [Status.VALUE, Status.RAISED])
def test_the_second_run_may_have_it(driver: SchedulerDriver, status: int) -> None:
    pair = Pair(driver)
    pair.done(1, status, b"second")
    assert pair.outcomes() == {pair.task: (status, b"second")}
    assert pair.withdrawn(0) == [pair.first]
    pair.done(0, Status.VALUE, b"late")
    assert not pair.outcomes()


def test_the_stored_result_of_the_loser_is_deleted(driver: SchedulerDriver) -> None:
    pair = Pair(driver)
    pair.done(1, result=b"second")
    late = Done(
        [pair.task],
        [Status.VALUE],
        Payloads([b"o" * 24]),
        runs=[pair.first],
        stored=[0],
        profiles=NO_PROFILE,
        agents=("w",),
    )
    driver.feed(pair.agents[0], late)
    (deleted,) = driver.take(pair.client, DeleteObjects)
    assert list(deleted.objects) == [b"o" * 16]
    driver.later(1.0)
    (released,) = driver.take(pair.agents[0], messages.Release)
    assert pair.task in released.tasks


@pytest.mark.parametrize("status", [Status.FAILED, Status.LOST, Status.CANCELLED])
def test_a_second_run_without_an_outcome_costs_nothing(driver: SchedulerDriver, status: int) -> None:
    pair = Pair(driver)
    pair.done(1, status, LOST)
    assert not pair.outcomes()
    notes = driver.core.state.find(pair.task).note()  # type: ignore[union-attr]
    assert (notes.lost_runs, notes.earlier_runs, driver.core._completion.speculation.second_runs) == (0, 0, {})
    pair.done(0)
    assert pair.outcomes() == {pair.task: (Status.VALUE, b"r")}


def test_a_task_gets_few_second_runs(driver: SchedulerDriver) -> None:
    pair = Pair(driver)
    begun = 0
    for _ in range(10):
        pair.done(1, Status.LOST, LOST)
        begun += 1
        for _ in range(30):
            driver.later(0.1)
            if again := driver.runs(pair.agents[1]):
                break
        else:
            break
        pair.second = again[pair.task]
    assert begun == 3


@pytest.mark.parametrize("how", ["lost", "cancelled", "returned", "host lost"])
def test_it_takes_the_place_of_the_first(driver: SchedulerDriver, how: str) -> None:
    pair = Pair(driver)
    if how == "returned":
        driver.feed(pair.agents[0], messages.Returned((pair.first,)))
    elif how == "host lost":
        driver.feed(pair.agents[0], PeerLost("killed"))
    else:
        pair.done(0, Status.LOST if how == "lost" else Status.CANCELLED, LOST)
    driver.later(1.0)
    assert not pair.withdrawn(1) and not driver.runs(pair.agents[1])
    record = driver.core.state.find(pair.task)
    assert record is not None and record.run == pair.second
    assert record.note().lost_runs == (how in ("lost", "host lost"))
    pair.done(1)
    assert pair.outcomes() == {pair.task: (Status.VALUE, b"r")}


def test_retries_count_exceptions_of_either_run(driver: SchedulerDriver) -> None:
    pair = Pair(driver, retries=1)
    pair.done(0, Status.RAISED)
    assert pair.withdrawn(1) == [pair.second] and not pair.outcomes()
    pair.done(1, Status.CANCELLED, b"")
    runs = [driver.runs(agent) for agent in pair.agents]
    (again,) = [at for at, given in enumerate(runs) if pair.task in given]
    driver.done(pair.agents[again], {pair.task: runs[again][pair.task]}, Status.RAISED)
    assert pair.outcomes() == {pair.task: (Status.RAISED, b"r")}


def test_cancel_stops_both(driver: SchedulerDriver) -> None:
    pair = Pair(driver)
    driver.feed(pair.client, messages.Cancel((pair.task,)))
    assert (pair.withdrawn(0), pair.withdrawn(1)) == ([pair.first], [pair.second])
    for which in (0, 1):
        pair.done(which, Status.CANCELLED, b"")
    assert not any(agent.runs for agent in driver.core.state.agents.values())


def test_children_end_with_the_run_that_submitted_them(driver: SchedulerDriver) -> None:
    pair = Pair(driver)
    child = first_task(NESTED) + 1
    call = Payloads([b"call"])
    driver.feed(pair.agents[1], Submit((Group(b"f" * 16),), (child,), call, parent=pair.second))
    assert driver.core.state.find(child) is not None
    pair.done(0)
    assert driver.core.state.find(child) is None
    assert child in driver.outcomes(pair.agents[1])


def test_a_run_with_children_gets_no_second_one(driver: SchedulerDriver) -> None:
    client, one = driver.client(), driver.agent(b"one", 8)
    parent, *others = driver.submit(client, 8, speculate=True)
    runs = driver.runs(one)
    two = driver.agent(b"two", 2)
    call = Payloads([b"call"])
    driver.feed(one, Submit((Group(b"f" * 16),), (first_task(NESTED) + 1,), call, parent=runs[parent]))
    driver.done(one, {task: runs[task] for task in others}, seconds=0.1)
    driver.runs(two)
    for _ in range(10):
        driver.later(1.0)
    assert parent not in driver.runs(two)


def test_another_host_is_better_than_another_agent(driver: SchedulerDriver) -> None:
    client, one = driver.client(), driver.agent(b"one", 8, host="here")
    task, *others = driver.submit(client, 8, speculate=True)
    runs = driver.runs(one)
    driver.agent(b"two", 8, host="here")
    there = driver.agent(b"three", 1, host="there")
    driver.done(one, {other: runs[other] for other in others}, seconds=0.1)
    driver.later(1.0)
    assert task in driver.runs(there)
    driver.feed(there, PeerLost("killed"))
    driver.done(one, {task: runs[task]})
    assert driver.outcomes(client)[task] == (Status.VALUE, b"r")


def test_a_late_agent_may_still_bring_the_outcome(driver: SchedulerDriver) -> None:
    """The second run's agent was given up, and comes back with what it has made."""
    pair = Pair(driver)
    driver.feed(pair.agents[1], PeerLost("silent"))
    again = driver.agent(b"two", 1, peer_incarnation=driver.incarnation)
    driver.feed(again, messages.Reconcile(finished=(pair.task,)))
    assert [list(asked.tasks) for asked in driver.take(again, messages.Resend)] == [[pair.task]]
    pair.done(1, result=b"second")
    assert pair.outcomes() == {pair.task: (Status.VALUE, b"second")}
    assert pair.withdrawn(0) == [pair.first]


def test_nobody_is_sent_the_option(driver: SchedulerDriver) -> None:
    driver.client()
    agent = driver.agent()
    driver.submit(b"client".ljust(16, b"."), 1, speculate=True)
    (run,) = driver.take(agent, messages.Run)
    assert not run.groups[0].speculate
