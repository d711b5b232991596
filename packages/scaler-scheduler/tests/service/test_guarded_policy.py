"""A plug-in that breaks its promises, or raises, changes nothing and is reported."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from scaler_scheduler.requirements import WorkerClass
from scaler_scheduler.scaling.capacity import CapacitySnapshot, Manager, Offer, Target
from scaler_scheduler.service.guarded_policy import GuardedPolicy

OFFER = Offer(worker_class=WorkerClass((), None), unit_size=2)
SNAPSHOT = CapacitySnapshot(managers=(Manager(id="a", maximum=8, offers=(OFFER,)),))


NUMBER = "a whole number from 0 to 4,294,967,295"
TEXT = "a text of at most 32,768 bytes of UTF-8"


class _UnprintableError(Exception):
    def __str__(self) -> str:
        return str(1 / 0)


class _Scripted:
    """A plug-in that answers what it was told to, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def decide(self, snapshot: CapacitySnapshot, now: float) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def test_a_list_of_numbers_is_as_good_as_a_tuple() -> None:
    policy = GuardedPolicy("odd", _Scripted([Target("a", [4], "because")]))  # type: ignore[arg-type]
    assert policy.decide(SNAPSHOT, 0) == [Target("a", (4,), "because")]


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
        ([Target("a", (-2,), "")], f"ValueError: the number of workers of a is -2, not {NUMBER}"),
        ([Target("a", (2**70,), "")], f"ValueError: the number of workers of a is {2**70}, not {NUMBER}"),
        ([Target("a", (2.0,), "")], f"ValueError: the number of workers of a is 2.0, not {NUMBER}"),  # type: ignore[arg-type]
        ([Target("a", (2,), 5)], f"ValueError: the reason for a is 5, not {TEXT}"),  # type: ignore[arg-type]
        (
            [Target("a", None, "\ud800")],
            "ValueError: the reason for a is '\\ud800', which UTF-8 cannot write: it holds a surrogate",
        ),
        (None, "TypeError: 'NoneType' object is not iterable"),
        (SystemExit(3), "SystemExit: 3"),
        (ValueError("x" * 100_000), f"ValueError: {'x' * 32_726}…"),
        (_UnprintableError(), "_UnprintableError, whose text cannot be shown: ZeroDivisionError"),
        ([Target("a", (10,), "")], "ValueError: 10 workers of a are more than its maximum of 8"),
    ],
)
def test_a_failing_plug_in_leaves_all_as_it_is(
    answer: list[Target] | BaseException | None, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = _Scripted(answer)
    policy = GuardedPolicy("odd", plugin)
    with caplog.at_level(logging.ERROR, "scaler"):
        for now in range(3):
            assert policy.decide(SNAPSHOT, now) == [Target("a", None, f"scaling policy odd failed: {message}")]
    assert [record.getMessage() for record in caplog.records] == [f"Scheduler: scaling policy odd failed: {message}"]
    plugin.answer = [Target("a", (4,), "because")]
    assert policy.decide(SNAPSHOT, 3) == plugin.answer
