"""A call whose outcome can not be delivered fails with the cause; all others get theirs."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from scaler_client.core.records import CallBlock, CallGroup, Deliver, RunReports
from scaler_client.futures.deliveries import deliver, fail
from scaler_client.futures.futures import ScalerFuture
from scaler_protocol.errors import ScalerError, restore
from scaler_protocol.messages import Group, Status

GROUP = CallGroup(Group(b"f"), (), pickle.loads, pickle.dumps)
VALUE = pickle.dumps(1)


class Desk:
    """A FutureOwner."""

    waiting: AbstractContextManager[object] = nullcontext()

    def cancel(self, tasks: Sequence[int]) -> None: ...

    def submit_again(self, *call: object) -> None: ...

    def call_soon(self, work: Callable[[], object]) -> None:
        work()


class BrokenError(Exception):
    """Raised on purpose."""


class Brittle(CallBlock):
    """A block that can not take values."""

    def take(self, task: int, status: int, payload: bytes) -> bool:
        if status == Status.VALUE:
            raise BrokenError
        return super().take(task, status, payload)


def future(task: int) -> ScalerFuture[int]:
    return ScalerFuture(Desk(), task, GROUP, b"call")


def outcomes(*calls: Any) -> Deliver:
    return Deliver(calls, range(len(calls)), [0] * len(calls), [VALUE] * len(calls), RunReports((), b""))


def test_a_block_that_raises_fails_alone() -> None:
    rung, good = threading.Event(), threading.Event()
    broken = Brittle(1, GROUP, [b"call"], rung.set)
    others = [future(0), future(2)]
    block = CallBlock(3, GROUP, [b"call"], good.set)
    deliver(outcomes(others[0], broken, others[1], block))
    assert [other.result() for other in others] == [1, 1] and block.results == [VALUE] and good.is_set()
    ((_, status, payload),) = broken.failures
    assert rung.is_set() and status == Status.FAILED and "BrokenError" in str(restore(payload))


def test_a_waiter_that_raises_costs_no_other_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [future(task) for task in range(3)]
    called: list[int] = []
    for call in calls:
        call.add_done_callback(lambda done: called.append(done.task_id))  # type: ignore[attr-defined]
    settle = ScalerFuture._settle

    def settle_others(self: ScalerFuture[int], status: int, *more: Any) -> bool:
        if self is calls[1] and status == Status.VALUE:
            raise BrokenError
        return settle(self, status, *more)

    monkeypatch.setattr(ScalerFuture, "_settle", settle_others)
    deliver(outcomes(*calls))
    assert calls[0].result() == calls[2].result() == 1
    assert isinstance(calls[1].exception(), ScalerError) and sorted(called) == [0, 1, 2]


def test_only_what_has_not_ended_fails() -> None:
    rung = threading.Event()
    ended, left = future(0), future(1)
    block = CallBlock(2, GROUP, [b"call"] * 2, rung.set)
    deliver(outcomes(ended, None, block))
    fail(outcomes(ended, left, block, block), BrokenError())
    assert ended.result() == 1 and isinstance(left.exception().__cause__, BrokenError)  # type: ignore[union-attr]
    assert [position for position, _, _ in block.failures] == [1] and rung.is_set()
