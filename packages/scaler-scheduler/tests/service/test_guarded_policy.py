"""A plug-in that breaks its promises, or raises, changes nothing and is reported."""

from __future__ import annotations

import logging

import pytest

from scaler_scheduler.requirements import WorkerClass
from scaler_scheduler.scaling.capacity import CapacitySnapshot, Manager, Offer, Target
from scaler_scheduler.service.guarded_policy import GuardedPolicy

OFFER = Offer(worker_class=WorkerClass((), None), unit_size=2)
SNAPSHOT = CapacitySnapshot(managers=(Manager(id="a", maximum=8, offers=(OFFER,)),))


class _Scripted:
    """A plug-in that answers what it was told to, or raises it."""

    def __init__(self, answer: list[Target] | Exception) -> None:
        self.answer = answer

    def decide(self, snapshot: CapacitySnapshot, now: float) -> list[Target]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("workers", [(0,), (8,), None])
def test_good_targets_are_passed_on(workers: tuple[int, ...] | None) -> None:
    targets = [Target("a", workers, "because")]
    assert GuardedPolicy("odd", _Scripted(targets)).decide(SNAPSHOT, 0) == targets


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        ([], "ValueError: its targets are for [], the managers are ['a']"),
        ([Target("b", (2,), "")], "ValueError: its targets are for ['b'], the managers are ['a']"),
        ([Target("a", (2, 2), "")], "ValueError: 2 numbers of workers for the 1 offers of a"),
        ([Target("a", (3,), "")], "ValueError: 3 workers of a are no multiple of its unit of 2"),
        ([Target("a", (-2,), "")], "ValueError: -2 workers of a are no multiple of its unit of 2"),
        ([Target("a", (10,), "")], "ValueError: 10 workers of a are more than its maximum of 8"),
    ],
)
def test_a_failing_plug_in_leaves_all_as_it_is(
    answer: list[Target] | Exception, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = _Scripted(answer)
    policy = GuardedPolicy("odd", plugin)
    with caplog.at_level(logging.ERROR, "scaler"):
        for now in range(3):
            assert policy.decide(SNAPSHOT, now) == [Target("a", None, f"scaling policy odd failed: {message}")]
    assert [record.getMessage() for record in caplog.records] == [f"Scheduler: scaling policy odd failed: {message}"]
    plugin.answer = [Target("a", (4,), "because")]
    assert policy.decide(SNAPSHOT, 3) == plugin.answer
