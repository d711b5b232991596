"""Failures after which a task is run again are counted, each once."""

from __future__ import annotations

from scaler_client.core.records import CallGroup
from scaler_client.core.resubmissions import RESUBMISSION_LIMIT, Resubmissions
from scaler_protocol.errors import ObjectNotFoundError, describe, of_run
from scaler_protocol.messages import Done, Group, Status
from scaler_protocol.payloads import Payloads

TASK, INPUT = 5, 4
LOST = describe(ObjectNotFoundError("object ab is not there"))


class Call:
    """A call that can be submitted again."""

    _group = CallGroup(Group(b"f" * 16), (), bytes, bytes)


def is_kept(counts: Resubmissions, run: int) -> bool:
    """Tell that the task failed because this run missed an object; 0: none is named. Whether that is kept back."""
    done = Done([TASK], [Status.FAILED], Payloads([of_run(LOST, run) if run else LOST]))
    return TASK in counts.keep_failures(done, {TASK: Call()})  # type: ignore[dict-item]


def is_repeated(counts: Resubmissions, run: int) -> bool:
    """Tell of a failure, and have the task submitted again if that is allowed."""
    is_allowed = is_kept(counts, run)
    counts.take_failures([TASK] if is_allowed else [])
    return is_allowed


def test_a_task_is_run_again_as_often_as_allowed() -> None:
    counts = Resubmissions()
    assert [is_repeated(counts, run) for run in range(1, 4)] == [True] * RESUBMISSION_LIMIT + [False]


def test_a_task_is_run_again_after_each_loss_of_a_server() -> None:
    counts = Resubmissions()
    for server in range(1, 3 * RESUBMISSION_LIMIT):
        assert is_repeated(counts, server)
        counts.restored(server)
    for run in range(RESUBMISSION_LIMIT):
        assert is_repeated(counts, 10 + run)
        counts.restored(server)
    assert not is_repeated(counts, 20), "nothing was lost meanwhile"


def test_a_failure_that_a_new_scheduler_tells_again_is_counted_once() -> None:
    counts = Resubmissions()
    for run in range(1, RESUBMISSION_LIMIT + 1):
        assert is_repeated(counts, run)
        counts.scheduler_changed()
        assert is_repeated(counts, run), "the scheduler did not know that it runs again"
    assert not is_repeated(counts, RESUBMISSION_LIMIT), "but it is told so once"
    counts.clear()
    assert not any((counts._counts, counts._failures, counts._known_runs, counts._told_again, counts._runs))


def test_failures_that_name_no_run_are_counted_each() -> None:
    counts = Resubmissions()
    for _ in range(RESUBMISSION_LIMIT):
        assert is_repeated(counts, 0)
        counts.scheduler_changed()
    assert not is_repeated(counts, 0)


def test_what_a_new_scheduler_tells_again_may_be_the_failure_of_another_input() -> None:
    counts = Resubmissions()
    done = Done([INPUT], [Status.FAILED], Payloads([of_run(LOST, 1)]))
    assert not counts.keep_failures(done, {}), "an intermediate node"
    assert is_repeated(counts, 2) and is_repeated(counts, 3)
    counts.scheduler_changed()
    assert is_repeated(counts, 1), "it was told before the task ran again"


def test_a_new_failure_is_counted_whatever_a_new_scheduler_may_tell_again() -> None:
    counts = Resubmissions()
    for run in range(1, RESUBMISSION_LIMIT + 1):
        assert is_repeated(counts, run)
    counts.scheduler_changed()
    assert not is_repeated(counts, RESUBMISSION_LIMIT + 1)


def test_a_failure_of_which_only_its_input_was_told_before_is_counted() -> None:
    counts = Resubmissions()
    for run in range(1, RESUBMISSION_LIMIT + 1):
        assert is_repeated(counts, run)
    latest = RESUBMISSION_LIMIT + 1
    counts.keep_failures(Done([INPUT], [Status.FAILED], Payloads([of_run(LOST, latest)])), {})
    counts.scheduler_changed()
    assert not is_repeated(counts, latest), "the input had failed after the task was submitted again"


def test_a_failure_is_counted_once_until_the_task_is_submitted_again() -> None:
    counts = Resubmissions()
    assert all(is_kept(counts, run) for run in range(1, RESUBMISSION_LIMIT + 3))
    counts.take_failures([TASK])
    assert is_repeated(counts, 10) and not is_repeated(counts, 11)
