"""The event log: what monitors are sent about tasks."""

from __future__ import annotations

import pickle
import struct
from itertools import count
from typing import TYPE_CHECKING

import pytest

from scaler_protocol.byte_planes import from_planes
from scaler_protocol.codec import decode, encode
from scaler_protocol.errors import WorkerDiedError, describe
from scaler_protocol.ids import first_task, function_id
from scaler_protocol.messages import Done, Group, Run, Status, Submit
from scaler_protocol.monitoring import PACKED_BATCH, PACKED_EDGE, MonitorStatus, TaskEvents, TaskStep
from scaler_protocol.objects import Reference
from scaler_protocol.operations import Drain
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import PROFILE, Profile
from scaler_protocol.tracebacks import headline
from scaler_scheduler.core.history import TRACEBACK_LIMIT
from scaler_scheduler.core.snapshot import ProcessStats

if TYPE_CHECKING:
    from conftest import SchedulerDriver

LAST = 2**32 - 1
"""The last number of 32 bits: a group is numbered with each distinct function, say 2,000 a second for 25 days."""


@pytest.fixture
def driver(make_driver: type[SchedulerDriver]) -> SchedulerDriver:
    """A fresh scheduler; it is the tests that listen."""
    return make_driver()


@pytest.mark.parametrize("status", [Status.LOST, Status.RAISED])
def test_a_run_whose_task_runs_again_is_told_with_its_profile(driver: SchedulerDriver, status: int) -> None:
    event_log = driver.core.state.event_log
    event_log.start([], [])
    client, agent = driver.client(), driver.agent()
    (task,) = driver.submit(client, retries=1)
    (run,) = driver.take(agent, Run)
    profile = Profile(200_000, 10, 5_000_000, 103, 0, 1).packed()
    error = describe(WorkerDiedError("it was killed")) if status == Status.LOST else pickle.dumps(ValueError())
    driver.feed(agent, Done([task], [status], Payloads([error]), runs=[run.first_run], profiles=profile))
    told = event_log.take(0.0)
    assert told is not None
    steps = [step for step, *_ in PACKED_BATCH.iter_unpack(from_planes(told.batches, PACKED_BATCH.size))]
    assert steps[-3:] == [TaskStep.AGAIN, TaskStep.WAITING, TaskStep.ASSIGNED] and TaskStep.ENDED not in steps
    assert from_planes(told.statuses, 1) == bytes([status])
    assert from_planes(told.profiles, PROFILE.size) == profile


def test_numbers_of_groups_agents_and_graphs_go_beyond_32_bits(driver: SchedulerDriver) -> None:
    event_log, state = driver.core.state.event_log, driver.core.state
    event_log._numbers = count(LAST)
    event_log.start([], [])
    client = driver.client()
    agents = [driver.agent(name, workers=2) for name in (b"one", b"two")]
    first = first_task(client[0]) + 1000
    body = b"body"
    groups = (Group(function_id(body)), Group(function_id(body), priority=1))
    driver.feed(
        client,
        Submit(
            groups, (first, first + 1), Payloads([b"call"] * 2), task_groups=(0, 1), graph=first, graph_size=2,
            functions=(function_id(body),), names=("f",), bodies=Payloads([body]),
        ),
    )  # fmt: skip
    told = event_log.take(0.0)
    assert told is not None
    events = decode([bytes(frame) for frame in encode(told)])
    assert isinstance(events, TaskEvents)
    numbers = [state.agents[agent].number for agent in agents]
    batches = list(PACKED_BATCH.iter_unpack(from_planes(events.batches, PACKED_BATCH.size)))
    assert {subject for step, subject, *_ in batches if step == TaskStep.ASSIGNED} <= set(numbers)
    assert {subject for step, subject, *_ in batches if step == TaskStep.WAITING} == set(events.group_numbers)
    figures = ProcessStats("", 0.0, 0.0, 0.0, 0)
    status = decode([bytes(frame) for frame in encode(driver.core.snapshot(figures, driver.now))])
    assert isinstance(status, MonitorStatus)
    assert list(status.agents) == numbers and set(status.worker_agents) <= set(numbers)
    everything = [*numbers, *events.group_numbers, *status.graphs]
    assert sorted(everything) == list(range(LAST, LAST + 5))
    for number in numbers:
        assert decode([bytes(frame) for frame in encode(Drain(number, 1))]) == Drain(number, 1)


def test_what_nodes_of_graphs_need_is_told_while_somebody_listens_and_to_who_comes_late(
    driver: SchedulerDriver,
) -> None:
    event_log, client = driver.core.state.event_log, driver.client()
    first = first_task(client[0]) + 1000

    def piece(at: int, dependents: list[int], needs: list[int]) -> Submit:
        tasks = [first + at, first + at + 1]
        return Submit(
            (Group(function_id(b"body")),), tasks, Payloads([b"call"] * 2), graph=first, graph_size=2**63,
            dependents=dependents, needs=needs, consumers=[1, 1],
            functions=(function_id(b"body"),), names=("f",), bodies=Payloads([b"body"]),
        )  # fmt: skip

    driver.feed(client, piece(0, [], []))
    assert event_log.take(0.0) is None
    driver.core.start_events(driver.now)
    event_log.take(0.0)
    driver.feed(client, piece(2, [0, 1, 1], [first, first + 1, first + 2]))
    told = event_log.take(0.0)
    assert told is not None and [*told.edge_first_tasks, *told.edge_counts] == [first, 3]
    assert list(PACKED_EDGE.iter_unpack(from_planes(told.edges, PACKED_EDGE.size))) == [(2, 0), (3, 1), (3, 2)]
    driver.core.start_events(driver.now)
    late = event_log.take(0.0)
    assert late is not None and (late.edge_graphs, late.edges) == (told.edge_graphs, told.edges)
    (agent,) = [driver.agent(workers=1)]
    driver.done(agent, driver.runs(agent))
    assert driver.core.snapshot(ProcessStats("", 0.0, 0.0, 0.0, 0), driver.now).graphs == told.edge_graphs


def test_who_has_submitted_a_task_is_told_while_somebody_listens_and_to_who_comes_late(
    driver: SchedulerDriver,
) -> None:
    client, agent = driver.client(), driver.agent(workers=1)
    (parent,) = driver.submit(client)
    (run,) = driver.runs(agent).values()
    (early,) = driver.submit(agent, parent=run, session=2**31 + 77)
    driver.core.start_events(driver.now)
    event_log = driver.core.state.event_log

    def nested() -> dict[int, tuple[int, ...]]:
        told, at, found = event_log.take(0.0), 0, {}
        assert told is not None
        for step, subject, count_of, *_ in PACKED_BATCH.iter_unpack(from_planes(told.batches, PACKED_BATCH.size)):
            if step == TaskStep.NESTED:
                found[subject] = struct.unpack_from(f"<{count_of}Q", from_planes(told.tasks, 8), 8 * at)
            at += count_of
        return found

    assert nested() == {parent: (early,)}
    late = driver.submit(agent, 2, parent=run, session=2**31 + 77)
    assert nested() == {parent: tuple(late)}


def test_tasks_of_which_none_waits_for_another_run_while_somebody_listens(driver: SchedulerDriver) -> None:
    driver.core.state.event_log.start([], [])
    client, agent = driver.client(), driver.agent()
    task, body = first_task(client[0]) + 1, b"body"
    driver.feed(
        client,
        Submit(
            (Group(function_id(body)),), (task,), Payloads([Reference(bytes(16), 99).pack()]), stored=(0,),
            functions=(function_id(body),), names=("f",), bodies=Payloads([body]),
        ),
    )  # fmt: skip
    assert driver.runs(agent).keys() == {task}
    told = driver.core.state.event_log.take(0.0)
    assert told is not None
    steps = [step for step, *_ in PACKED_BATCH.iter_unpack(from_planes(told.batches, PACKED_BATCH.size))]
    assert steps == [TaskStep.WAITING, TaskStep.ASSIGNED]


def test_a_traceback_that_is_cut_begins_with_its_headline(driver: SchedulerDriver) -> None:
    event_log = driver.core.state.event_log
    event_log.start([], [])
    text = "Traceback (most recent call last):\n  in f\nValueError: long\n" + "more\n" * TRACEBACK_LIMIT
    client, agent = driver.client(), driver.agent()
    driver.submit(client)
    driver.done(agent, driver.runs(agent), Status.RAISED, pickle.dumps((None, text)))
    told = event_log.take(0.0)
    assert told is not None and len(told.texts[-1]) < 2 * TRACEBACK_LIMIT
    assert headline(told.texts[-1]) == "ValueError: long"
    assert list(driver.core.history(0.0).failures) == [told.texts[-1]]
