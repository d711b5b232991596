"""Stored payloads in the scheduler: it forwards references, and requests deletions of unneeded objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_protocol.errors import ProtocolError
from scaler_protocol.ids import function_id
from scaler_protocol.messages import Cancel, Done, Functions, Group, NeedFunctions, Run, Status, Submit
from scaler_protocol.objects import SHARED_BYTES, Reference
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import PROFILE, Profile
from scaler_protocol.storage import CopyReplicas, DeleteObjects
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.state import SendToStorage

if TYPE_CHECKING:
    from conftest import SchedulerDriver

NAME, OTHER = b"n" * 16, b"o" * 16
REFERENCE = Reference(NAME, 100_000).pack()
FUNCTION = function_id(REFERENCE, stored=True)


def submit(driver: SchedulerDriver, client: bytes, **group: int) -> int:
    """A task whose call and function are references."""
    task = (client[0] << 32) + 1
    message = Submit(
        [Group(FUNCTION, **group)],  # type: ignore[arg-type]
        [task],
        Payloads([REFERENCE]),
        stored=[0],
        functions=[FUNCTION],
        names=["f"],
        bodies=Payloads([REFERENCE]),
        bodies_stored=[0],
    )
    driver.feed(client, message)
    return task


def done(driver: SchedulerDriver, agent: bytes, task: int, run: int, status: int = Status.VALUE) -> None:
    """An outcome that is a reference."""
    profiles = Profile(1, 1, 1, 1, 0, 1).packed()
    driver.feed(agent, Done([task], [status], Payloads([REFERENCE]), runs=[run], stored=[0], profiles=profiles))


def test_references_are_passed_on_as_such(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    task = submit(driver, client)
    (run,) = driver.take(agent, Run)
    assert (run.stored, run.bodies_stored, list(run.bodies)) == ((0,), (0,), [REFERENCE])
    driver.feed(agent, NeedFunctions([FUNCTION], client[0]))
    (functions,) = driver.take(agent, Functions)
    assert (functions.bodies_stored, list(functions.bodies)) == ((0,), [REFERENCE])
    done(driver, agent, task, run.first_run)
    (told,) = driver.take(client, Done)
    assert told.stored == (0,) and not driver.take(client, DeleteObjects)


@pytest.mark.parametrize(("replicas", "status"), [(2, Status.VALUE), (2, Status.RAISED), (1, Status.VALUE)])
def test_storage_copies_big_results_that_somebody_has_requested_if_it_shall(
    make_driver: type[SchedulerDriver], replicas: int, status: int
) -> None:
    driver = make_driver(SchedulerConfig(replicas=replicas))
    client, agent = driver.client(), driver.agent(workers=4)
    big, small = Reference(NAME, SHARED_BYTES).pack(), Reference(OTHER, SHARED_BYTES - 1).pack()
    tasks = [(client[0] << 32) + number for number in range(1, 5)]
    submitted = Submit(
        [Group(FUNCTION)],
        tasks,
        Payloads([b"call"] * 4),
        dependents=[1],
        needs=tasks[:1],
        consumers=[1, 0, 0, 0],
        intermediate=[0],
        functions=[FUNCTION],
        names=["f"],
        bodies=Payloads([REFERENCE]),
        bodies_stored=[0],
    )
    driver.feed(client, submitted)
    runs = driver.runs(agent)
    profiles = bytes(PROFILE.size)
    for task, reference, ended in (
        (tasks[0], big, Status.VALUE),
        (tasks[3], small, Status.VALUE),
        (tasks[2], big, status),
    ):
        report = Done([task], [ended], Payloads([reference]), runs=[runs[task]], stored=[0], profiles=profiles)
        driver.feed(agent, report)
        told = [each.message for each in driver.others if isinstance(each, SendToStorage)]
        assert told == ([CopyReplicas([NAME])] if task == tasks[2] and replicas == 2 else [])


def test_an_outcome_that_nobody_takes_is_for_its_session_to_delete(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    task = submit(driver, client, retries=1)
    (first,) = driver.take(agent, Run)
    done(driver, agent, task, first.first_run, Status.RAISED)  # it is tried again
    assert driver.take(client, DeleteObjects) == [DeleteObjects((NAME,), client[0])]
    (second,) = driver.take(agent, Run)
    driver.feed(client, Cancel([task]))
    done(driver, agent, task, second.first_run)
    assert driver.take(client, DeleteObjects) == [DeleteObjects((NAME,), client[0])]
    done(driver, agent, task, second.first_run)  # of an agent that had given it up
    assert driver.take(client, DeleteObjects) == [DeleteObjects((NAME,), client[0])]
    assert not driver.take(client, Done)


def test_what_a_dead_worker_left_is_for_its_session_to_delete(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    driver.feed(agent, DeleteObjects([OTHER], client[0]), DeleteObjects([OTHER], 12345))
    assert driver.take(client, DeleteObjects) == [DeleteObjects((OTHER,), client[0])]
    with pytest.raises(ProtocolError):
        driver.feed(client, DeleteObjects([OTHER], client[0]))
