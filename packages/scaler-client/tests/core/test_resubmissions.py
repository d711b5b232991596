"""Failures after which a task is run again are counted, each once."""

from __future__ import annotations

from scaler_client.core.records import CallGroup
from scaler_client.core.resubmissions import RESUBMISSION_LIMIT, Resubmissions
from scaler_protocol.errors import ObjectNotFoundError, describe
from scaler_protocol.messages import Done, Group, Status
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import NO_PROFILE, Profile

TASK = 5
LOST = describe(ObjectNotFoundError("object ab is not there"))


class Call:
    """A call that can be submitted again."""

    _group = CallGroup(Group(b"f" * 16), (), bytes, bytes)


def is_repeated(counts: Resubmissions, run: int) -> bool:
    """Tell of a failure, and have the task submitted again if that is allowed."""
    profile = Profile(run, run, 0, 1, 1, 1).packed() if run else NO_PROFILE
    done = Done([TASK], [Status.FAILED], Payloads([LOST]), profiles=profile)
    kept = counts.keep_failures(done, {TASK: Call()})  # type: ignore[dict-item]
    counts.take_failures(kept)
    return list(kept) == [TASK]


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
    assert not counts._counts and not counts._profiles and not counts._told_again


def test_failures_that_name_no_run_are_counted_each() -> None:
    counts = Resubmissions()
    for _ in range(RESUBMISSION_LIMIT):
        assert is_repeated(counts, 0)
        counts.scheduler_changed()
    assert not is_repeated(counts, 0)
