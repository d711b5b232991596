"""Batches of tasks that wait to be sent to monitors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scaler_protocol.byte_planes import EXPANDED, RECORDS, from_planes
from scaler_protocol.codec import decode, encode
from scaler_protocol.messages import MESSAGE_IDS
from scaler_protocol.monitoring import PACKED_BATCH, PACKED_ID, TaskEvents, TaskStep
from scaler_protocol.profiles import PROFILE
from scaler_scheduler.core import recorded_steps
from scaler_scheduler.core.recorded_steps import TOGETHER, RecordedSteps

if TYPE_CHECKING:
    from conftest import SchedulerDriver


def columns(taken: dict[str, Any]) -> tuple[list[tuple[int, ...]], list[int], list[int], bytes, bytes]:
    """Batches, ids, runs, statuses and profiles of what was taken."""
    ids, runs = (
        [number for (number,) in PACKED_ID.iter_unpack(from_planes(taken[name], PACKED_ID.size))]
        for name in ("tasks", "runs")
    )
    batches = list(PACKED_BATCH.iter_unpack(from_planes(taken["batches"], PACKED_BATCH.size)))
    return batches, ids, runs, from_planes(taken["statuses"], 1), from_planes(taken["profiles"], PROFILE.size)


def test_no_column_of_a_message_is_longer_than_monitors_accept() -> None:
    most = max(TOGETHER, MESSAGE_IDS)
    assert most * max(PACKED_BATCH.size, PACKED_ID.size, PROFILE.size) <= EXPANDED and most <= RECORDS


def test_what_does_not_fit_into_one_message_goes_on_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_steps, "TOGETHER", 4)
    steps = RecordedSteps()
    steps.add(TaskStep.WAITING, 1, [1, 2, 3], 0.0)
    steps.add(TaskStep.ASSIGNED, 2, [1], 0.0)
    steps.add_run(71)
    steps.add(TaskStep.ASSIGNED, 2, [2, 3], 1e-6)
    steps.add_run(72)
    for status, task in enumerate((1, 2)):
        steps.add(TaskStep.ENDED, 2, [task], 2e-6)
        steps.add_outcomes([status], bytes([status]) * PROFILE.size)
    steps.add(TaskStep.WAITING, 1, range(10, 16), 3e-6)
    steps.add(TaskStep.CANCELLED, 0, [3], 4e-6)
    found = []
    while steps:
        found.append(columns(steps.take()))
    assert found == [
        ([(TaskStep.WAITING, 1, 3, 0), (TaskStep.ASSIGNED, 2, 1, 0)], [1, 2, 3, 1], [71], b"", b""),
        (
            [(TaskStep.ASSIGNED, 2, 2, 1), (TaskStep.ENDED, 2, 1, 2), (TaskStep.ENDED, 2, 1, 2)],
            [2, 3, 1, 2], [72], b"\0\1", bytes(PROFILE.size) + b"\1" * PROFILE.size,
        ),
        ([(TaskStep.WAITING, 1, 6, 3)], [10, 11, 12, 13, 14, 15], [], b"", b""),
        ([(TaskStep.CANCELLED, 0, 1, 4)], [3], [], b"", b""),
    ]  # fmt: skip


def test_a_snapshot_of_more_runs_than_one_message_may_have_is_read_whole(
    make_driver: type[SchedulerDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that do not follow each other are batches of their own: 1.6 million were too many for one message."""
    monkeypatch.setattr(recorded_steps, "TOGETHER", 8)
    driver = make_driver()
    agents = [driver.agent(name, 3) for name in (b"one", b"two")]
    tasks = driver.submit(driver.client(), 20)
    assigned = sum(len(driver.core.state.agents[agent].runs) for agent in agents)
    event_log = driver.core.state.event_log
    driver.core.start_events(driver.now)
    parts: list[TaskEvents] = []
    text = "an event"
    event_log.add_text(20, 0, text)
    while (part := event_log.take(0.0)) is not None:
        read = decode([bytes(frame) for frame in encode(part)])
        assert isinstance(read, TaskEvents)
        parts.append(read)
    assert len(parts) > 2 and [part.goes_on for part in parts] == [True] * (len(parts) - 1) + [False]
    assert [len(part.group_numbers) for part in parts] == [1] + [0] * (len(parts) - 1)
    assert [list(part.texts) for part in parts] == [[]] * (len(parts) - 1) + [[text]]
    ids = [number for part in parts for (number,) in PACKED_ID.iter_unpack(from_planes(part.tasks, PACKED_ID.size))]
    assert set(ids) == set(tasks) and len(ids) == len(tasks) + assigned
