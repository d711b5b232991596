"""Tasks that used too much memory: tried once more, alone on the host with most memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_io.links.events import PeerJoined, PeerLost
from scaler_protocol.errors import MemoryLimitError, WorkerDiedError, describe, restore
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.messages import AgentStatus, Blocked, Cancel, Recall, Run, Status
from scaler_protocol.operations import Resized
from scaler_scheduler.core.snapshot import ProcessStats

if TYPE_CHECKING:
    from conftest import SchedulerDriver

EXCEEDED = describe(MemoryLimitError("too much", used_bytes=3, limit_bytes=2))


def agent(driver: SchedulerDriver, name: bytes, workers: int, lone_task_bytes: int) -> bytes:
    peer = driver.agent(name, workers=workers)
    driver.feed(peer, AgentStatus(lone_task_bytes=lone_task_bytes))
    return peer


def two_hosts(driver: SchedulerDriver) -> tuple[bytes, bytes, dict[int, int], dict[int, int], bytes]:
    """A small and a large agent with a run each, these runs, and the client."""
    small, large = agent(driver, b"small", 1, 10), agent(driver, b"large", 1, 20)
    client = driver.client()
    driver.submit(client, 2)
    return small, large, driver.runs(small), driver.runs(large), client


def test_it_waits_for_the_largest_host_and_is_alone_there(driver: SchedulerDriver) -> None:
    small, large, on_small, on_large, client = two_hosts(driver)
    (task,) = on_small
    driver.done(small, on_small, Status.LOST, EXCEEDED)
    assert not driver.runs(large) and not driver.runs(small), "the large host is not empty yet"
    told = driver.core.snapshot(ProcessStats("ipc:///x", 0.0, 1.0, 0.0, 0), driver.now)
    reserved = [told.agent_names[told.agents.index(number)] for number in told.reserved_agents]
    assert (told.held, told.exclusive, reserved) == (1, 1, ["large"])
    (other,) = driver.submit(client)
    assert list(driver.runs(small)) == [other], "others do not wait"
    driver.done(large, on_large)
    alone = driver.runs(large)
    assert list(alone) == [task]
    further = driver.submit(client, 2)
    assert not driver.runs(large), "the host is its own"
    driver.done(large, alone)
    assert driver.outcomes(client)[task] == (Status.VALUE, b"r")
    assert set(driver.runs(large)) <= set(further)


def test_a_second_excess_is_its_end_and_neither_is_a_lost_run(driver: SchedulerDriver) -> None:
    peer, client = agent(driver, b"agent", 2, 20), driver.client()
    (task,) = driver.submit(client)
    for _ in range(2):
        driver.done(peer, driver.runs(peer), Status.LOST, EXCEEDED)
    status, payload = driver.outcomes(client)[task]
    assert status == Status.FAILED and isinstance(restore(payload), MemoryLimitError)
    assert driver.core.state.event_log.lost_runs == 0


def test_losses_have_a_budget_of_their_own(driver: SchedulerDriver) -> None:
    peer, client = agent(driver, b"agent", 2, 20), driver.client()
    (task,) = driver.submit(client)
    for payload in (EXCEEDED, *[describe(WorkerDiedError("killed"))] * 2):
        driver.done(peer, driver.runs(peer), Status.LOST, payload)
    assert list(driver.runs(peer)) == [task], "two lost runs are not three"


def test_what_waits_on_the_reserved_host_is_recalled(driver: SchedulerDriver) -> None:
    peer, client = agent(driver, b"agent", 1, 10), driver.client()
    driver.submit(client)
    driver.done(peer, driver.runs(peer), seconds=0.0001)
    driver.submit(client, 20)
    given = driver.runs(peer)
    driver.done(peer, dict([given.popitem()]))
    given.update(driver.runs(peer))
    assert len(given) > 2
    driver.take(peer, Recall)
    driver.done(peer, dict([given.popitem()]), Status.LOST, EXCEEDED)
    (recall,) = driver.take(peer, Recall)
    assert recall.count == len(given) - 1 and not driver.runs(peer)


def test_a_reserved_host_still_runs_what_its_parents_wait_for(driver: SchedulerDriver) -> None:
    peer, client = agent(driver, b"agent", 2, 20), driver.client()
    parent, large = driver.submit(client, 2)
    runs = driver.runs(peer)
    driver.done(peer, {large: runs[large]}, Status.LOST, EXCEEDED)
    (child,) = driver.submit(peer, parent=runs[parent], session=2**31 + 7)
    assert not driver.runs(peer)
    driver.feed(peer, Blocked((runs[parent],), (True,)))
    nested = driver.runs(peer)
    assert list(nested) == [child]
    driver.done(peer, nested)
    driver.feed(peer, Blocked((runs[parent],), (False,)))
    driver.done(peer, {parent: runs[parent]})
    assert list(driver.runs(peer)) == [large]


def test_an_exclusive_task_may_wait_for_tasks_of_its_own(driver: SchedulerDriver) -> None:
    peer, client = agent(driver, b"agent", 2, 20), driver.client()
    (task,) = driver.submit(client)
    driver.done(peer, driver.runs(peer), Status.LOST, EXCEEDED)
    runs = driver.runs(peer)
    (child,) = driver.submit(peer, parent=runs[task], session=2**31 + 7)
    assert not driver.runs(peer)
    driver.feed(peer, Blocked((runs[task],), (True,)))
    assert list(driver.runs(peer)) == [child]


def test_a_reservation_ends_with_its_host(driver: SchedulerDriver) -> None:
    small, large, on_small, _, _ = two_hosts(driver)
    (task,) = on_small
    driver.done(small, on_small, Status.LOST, EXCEEDED)
    driver.feed(large, PeerLost("killed"))
    given = driver.runs(small)
    while task not in given:
        driver.done(small, given)
        given = driver.runs(small)
    assert list(given) == [task]


@pytest.mark.parametrize("retries", [0, 1])
def test_a_reservation_ends_with_its_task(driver: SchedulerDriver, retries: int) -> None:
    peer, client = agent(driver, b"agent", 1, 20), driver.client()
    (task,) = driver.submit(client, retries=retries)
    driver.done(peer, driver.runs(peer), Status.LOST, EXCEEDED)
    (other,) = driver.submit(client)
    driver.done(peer, driver.runs(peer), Status.RAISED)
    if retries:
        driver.done(peer, driver.runs(peer), Status.RAISED)
    assert driver.outcomes(client)[task][0] == Status.RAISED
    assert list(driver.runs(peer)) == [other]


def test_a_reservation_ends_when_its_task_is_cancelled(driver: SchedulerDriver) -> None:
    small, large, on_small, on_large, client = two_hosts(driver)
    driver.done(small, on_small, Status.LOST, EXCEEDED)
    driver.feed(client, Cancel(tuple(on_small)))
    driver.done(large, on_large)
    driver.submit(client, 2)
    assert driver.runs(large)


def test_a_reservation_ends_when_an_operator_cancels_its_task(driver: SchedulerDriver) -> None:
    small, large = agent(driver, b"small", 1, 10), agent(driver, b"large", 2, 20)
    operator, client = b"o" * 16, driver.client()
    driver.feed(operator, PeerJoined(Hello(Role.OPERATOR, operator, 1, name="o"), False))
    driver.submit(client, 3)
    (task,) = on_small = driver.runs(small)
    on_large = driver.runs(large)
    driver.done(small, on_small, Status.LOST, EXCEEDED)
    driver.done(large, dict([on_large.popitem()]), seconds=1.0)
    driver.submit(client, 2)
    assert len(driver.runs(small)) == 1 and not driver.runs(large)
    driver.feed(operator, Cancel((task,)))
    assert driver.runs(large)


def test_an_agent_of_which_the_reservation_went_to_another_takes_other_work(driver: SchedulerDriver) -> None:
    small, large, on_small, on_large, client = two_hosts(driver)
    driver.done(small, on_small, Status.LOST, EXCEEDED)
    tasks = driver.submit(client, 2)
    assert list(driver.runs(small)) == tasks[:1]
    driver.feed(large, Resized(0))
    driver.done(large, on_large)
    driver.feed(large, Resized(1))
    assert list(driver.runs(large)) == tasks[1:], "its task waits for the other host"


def test_a_reservation_that_ends_with_its_host_leaves_no_trace(driver: SchedulerDriver) -> None:
    peer, client = agent(driver, b"agent", 2, 20), driver.client()
    parent, large = driver.submit(client, 2)
    runs = driver.runs(peer)
    driver.submit(peer, parent=runs[parent], session=2**31 + 7)
    driver.done(peer, {large: runs[large]}, Status.LOST, EXCEEDED)
    driver.feed(client, Cancel((large,)))
    driver.feed(peer, PeerLost("killed"))
    driver.submit(client)
    assert list(driver.runs(driver.agent(b"other"))) == [parent]


@pytest.mark.parametrize("nested", [False, True])
def test_an_exclusive_nested_task_may_be_lost_with_the_host_of_its_parent(
    driver: SchedulerDriver, nested: bool
) -> None:
    peer, client = agent(driver, b"agent", 2, 20), driver.client()
    (parent,) = driver.submit(client)
    runs = driver.runs(peer)
    (child,) = driver.submit(peer, parent=runs[parent], session=2**31 + 7)
    driver.done(peer, driver.runs(peer), Status.LOST, EXCEEDED)
    if nested:
        driver.feed(peer, Blocked((runs[parent],), (True,)))
    driver.feed(peer, PeerLost("killed"))
    assert list(driver.runs(driver.agent(b"other"))) == [parent]
    assert driver.core.state.find(child) is None


def test_an_exclusive_task_waits_while_there_is_no_host(driver: SchedulerDriver) -> None:
    peer, client = agent(driver, b"agent", 2, 20), driver.client()
    tasks = driver.submit(client, 2)
    runs = driver.runs(peer)
    driver.done(peer, {tasks[0]: runs[tasks[0]]}, Status.LOST, EXCEEDED)
    driver.feed(peer, PeerLost("killed"))
    assert not driver.take(peer, Run)
    other = agent(driver, b"other", 1, 20)
    given = driver.runs(other)
    driver.done(other, given)
    assert sorted([*given, *driver.runs(other)]) == tasks
