"""Outcomes wait for company while the scheduler is busy."""

from __future__ import annotations

from scaler_protocol.coalescing import QUEUED_WAIT_SECONDS, WAIT_SECONDS, WAIT_SHARE
from scaler_protocol.messages import Done, Output, Status
from scaler_protocol.profiles import Profile
from scaler_worker.agent.core.result_buffer import FEW, DoneRow, ResultBuffer

TASK = 1 << 32


def alone(session: int) -> bool:
    return False


def together(session: int) -> bool:
    return True


def row(seconds: float, status: int = Status.VALUE) -> DoneRow:
    return 7, status, b"result", Profile(int(seconds * 1e6), 0, 0, 0, 0, 1).packed(), False


def waiting(busy: float, *rows: DoneRow) -> tuple[ResultBuffer, float]:
    """A buffer with these outcomes, one by one, and how long it waits from the first on."""
    buffer = ResultBuffer("host")
    buffer.wait(busy)
    for number, each in enumerate(rows):
        buffer.append(TASK + number, each)
        due = buffer.due(100.0, alone)
    return buffer, due - 100.0


def test_nothing_waits_for_an_idle_scheduler() -> None:
    for busy in (0.0, 0.3, 0.5):
        assert waiting(busy, row(10.0))[1] == 0.0


def test_the_wait_grows_with_the_load_and_is_a_small_share_of_the_run() -> None:
    assert abs(waiting(1.0, row(10.0))[1] - WAIT_SECONDS) < 1e-9
    assert abs(waiting(0.75, row(10.0))[1] - WAIT_SECONDS / 2) < 1e-9
    assert abs(waiting(1.0, row(0.1))[1] - 0.1 * WAIT_SHARE) < 1e-9
    assert abs(waiting(1.0, row(10.0), row(0.1))[1] - 0.1 * WAIT_SHARE) < 1e-9


def test_the_wait_begins_with_the_first_outcome() -> None:
    buffer, _ = waiting(1.0, row(10.0))
    buffer.append(TASK + 1, row(10.0))
    assert abs(buffer.due(100.015, alone) - 100.0 - WAIT_SECONDS) < 1e-9
    (done,) = buffer.take()
    assert isinstance(done, Done)
    assert len(done.tasks) == 2
    buffer.append(TASK + 2, row(10.0))
    assert abs(buffer.due(200.0, alone) - 200.0 - WAIT_SECONDS) < 1e-9


def test_they_wait_longer_while_runs_are_queued_and_no_longer_than_that() -> None:
    buffer, _ = waiting(1.0, row(10.0))
    assert buffer.due(100.01, together) == 100.0 + QUEUED_WAIT_SECONDS
    assert buffer.due(100.1, alone) == 100.0 + WAIT_SECONDS, "the last queued run has started"


def test_one_that_none_will_join_sends_the_others_with_it() -> None:
    buffer, _ = waiting(1.0, row(10.0))
    buffer.append(2 << 32, row(10.0))
    assert buffer.due(100.01, lambda session: session == 1) == 100.0 + WAIT_SECONDS
    assert buffer.due(100.01, together) == 100.0 + QUEUED_WAIT_SECONDS


def test_what_is_urgent_takes_the_others_with_it() -> None:
    buffer, _ = waiting(1.0, row(10.0))
    buffer.hurry()
    buffer.append(TASK + 1, row(10.0))
    assert buffer.due(100.01, together) == 100.01
    assert len(list(buffer.take())) == 1
    buffer.append(TASK + 2, row(10.0))
    assert buffer.due(200.0, together) == 200.0 + QUEUED_WAIT_SECONDS


def test_failures_output_and_many_outcomes_do_not_wait() -> None:
    assert waiting(1.0, row(10.0), row(10.0, Status.RAISED))[1] == 0.0
    buffer, _ = waiting(1.0, row(10.0))
    buffer.write(TASK, 1, b"text")
    assert buffer.due(100.0, alone) == 100.0
    assert [type(message) for message in buffer.take()] == [Output, Done]
    many = FEW + 1
    profiles = [Profile(10_000_000, 0, 0, 0, 0, 1).packed()] * many
    buffer.extend(range(TASK, TASK + many), range(many), [0] * many, [b""] * many, profiles, (), 0)
    assert buffer.due(100.0, alone) == 100.0
