"""Tasks that only one worker may run, and the list of the workers' processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_io.links.events import PeerLost
from scaler_protocol.capacity import ListProcesses, ProcessList
from scaler_protocol.errors import NoWorkerError, ProtocolError, ScalerError, WorkerDiedError, describe, restore
from scaler_protocol.ids import worker_id
from scaler_protocol.messages import Reconcile, Returned, Status
from scaler_protocol.operations import Resized
from scaler_scheduler.core.config import SchedulerConfig

if TYPE_CHECKING:
    from conftest import SchedulerDriver


def failure(driver: SchedulerDriver, client: bytes, task: int) -> ScalerError:
    """The error with which a task has failed."""
    status, payload = driver.outcomes(client)[task]
    assert status == Status.FAILED
    return restore(payload)


def test_a_pinned_task_goes_to_its_agent_at_once(driver: SchedulerDriver) -> None:
    client, busy, idle = driver.client(), driver.agent(b"busy", 1), driver.agent(b"idle", 4)
    pin = worker_id(busy, 4711)
    driver.submit(client, 200)
    tasks = [driver.submit(client, worker=pin)[0] for _ in range(3)]
    runs = driver.runs(busy)
    assert runs.keys() >= set(tasks) and not driver.runs(idle).keys() & set(tasks)
    driver.done(busy, {task: runs[task] for task in tasks})
    assert driver.outcomes(client).keys() == set(tasks)


def test_a_pinned_task_fails_where_its_worker_is_gone(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(b"agent", 2)
    driver.agent(b"other", 2)
    [gone] = driver.submit(client, worker=worker_id(b"gone".ljust(16, b"."), 1))
    assert "the host of the only worker" in str(failure(driver, client, gone))
    [lacking] = driver.submit(client, worker=worker_id(agent, 1), capability_names=("gpu",), capability_values=(1,))
    assert isinstance(failure(driver, client, lacking), NoWorkerError)
    [lost] = driver.submit(client, worker=worker_id(agent, 1))
    death = WorkerDiedError("Worker[0] was killed", pid=1)
    driver.done(agent, {lost: driver.runs(agent)[lost]}, Status.LOST, describe(death))
    assert str(failure(driver, client, lost)) == "Worker[0] was killed"
    with_agent, drained = driver.submit(client, worker=worker_id(agent, 1)), driver.submit(client, 1)
    driver.feed(agent, PeerLost("killed"))
    error = failure(driver, client, with_agent[0])
    assert isinstance(error, WorkerDiedError) and "lost its worker with its host agent (killed)" in str(error)
    other = b"other".ljust(16, b".")
    [returned] = driver.submit(client, worker=worker_id(other, 1))
    run = driver.runs(other)[returned]
    driver.feed(other, Resized(0), Returned((run,)))
    assert "drains" in str(failure(driver, client, returned)) and drained


def test_a_held_pinned_task_is_cancelled_and_ends_with_its_client(make_driver: type[SchedulerDriver]) -> None:
    driver = make_driver(SchedulerConfig(recovery_seconds=60.0), incarnation=8)
    client = driver.client(peer_incarnation=7)
    absent, back = worker_id(b"absent".ljust(16, b"."), 1), worker_id(b"back".ljust(16, b"."), 1)
    one, two, three = (driver.submit(client, worker=pin)[0] for pin in (absent, absent, back))
    assert not driver.outcomes(client), "the hosts may come back, since the scheduler was started again"
    agent = driver.agent(b"back", 1, peer_incarnation=7)
    driver.feed(agent, Reconcile())
    assert driver.runs(agent).keys() == {three}
    assert "has not come back" in driver.core.why(two, driver.now)[0]
    driver.later(61.0)
    assert driver.outcomes(client).keys() == {one, two}


def test_processes_are_asked_of_all_agents(driver: SchedulerDriver) -> None:
    client, other = driver.client(), driver.client(b"other")
    driver.feed(client, ListProcesses(1))
    assert driver.take(client, ProcessList) == [ProcessList(1)], "there is no agent"
    agents = [driver.agent(b"a", 2), driver.agent(b"b", 1), driver.agent(b"c", 1)]
    driver.feed(client, ListProcesses(1))
    driver.feed(other, ListProcesses(1))
    numbers = [[asked.request for asked in driver.take(agent, ListProcesses)] for agent in agents]
    assert numbers == [numbers[0]] * 3 and len(set(numbers[0])) == 2
    mine, theirs = numbers[0]
    driver.feed(agents[0], ProcessList(mine, (5, 6), ("Worker[0]", "Worker[1]")), ProcessList(theirs, (5,), ("w",)))
    driver.feed(agents[1], ProcessList(mine, (7,), ("Worker[0]",)), ProcessList(mine, (8,), ("twice",)))
    assert not driver.take(client, ProcessList)
    driver.feed(other, PeerLost("left"))
    driver.feed(agents[2], PeerLost("killed"))
    names = ("Worker[0]", "Worker[1]", "Worker[0]")
    expected = ProcessList(1, (5, 6, 7), names, (agents[0], agents[0], agents[1]), ("a", "a", "b"))
    assert driver.take(client, ProcessList) == [expected] and not driver.take(other, ProcessList)
    ids = [worker_id(agents[0], 5), worker_id(agents[0], 6), worker_id(b"unknown".ljust(16, b"."), 5)]
    driver.feed(client, ListProcesses(3, ids))
    told = [[list(asked.gone) for asked in driver.take(agent, ListProcesses)] for agent in agents[:2]]
    assert told == [[ids[:2]], [[]]], "each its own"
    driver.agent(b"full", 1)
    driver.feed(client, ListProcesses(2))
    for agent in (*agents[:2], b"full".ljust(16, b".")):
        [asked] = driver.take(agent, ListProcesses)
        driver.feed(agent, ProcessList(asked.request, range(40_000), ["w"] * 40_000))
    parts = driver.take(client, ProcessList)
    assert [(len(part.pids), part.left) for part in parts] == [(65_536, 54_464), (54_464, 0)]
    driver.feed(client, ListProcesses(3))
    for agent in (*agents[:2], b"full".ljust(16, b".")):
        [asked] = driver.take(agent, ListProcesses)
        driver.feed(agent, *[ProcessList(asked.request, (5,), ("w",), left=1)] * 3)
    assert [list(part.pids) for part in driver.take(client, ProcessList)] == [[5] * 3], "only a relay has more to say"
    with pytest.raises(ProtocolError, match="only a client"):
        driver.feed(agents[0], ListProcesses(1))
    with pytest.raises(ProtocolError, match="only an agent"):
        driver.feed(client, ProcessList(1))
