"""Calls that are to be sent: their order, the credit, and those that are sent again."""

from __future__ import annotations

import pytest

from scaler_client.core.call_queue import CallQueue
from scaler_client.core.records import CallBlock, CallGroup, OutstandingCall, ResentCall
from scaler_protocol.messages import Group

GROUP = CallGroup(Group(b"f"), (), bytes, bytes)


@pytest.fixture
def queue() -> CallQueue:
    queue = CallQueue()
    queue.credit = 10
    return queue


def call(task: int, size: int = 4) -> ResentCall:
    return ResentCall(task, GROUP, size, bytes(size), ())


def taken(queue: CallQueue) -> list[int] | None:
    batch = queue.take()
    return list(batch.tasks) if batch is not None else None


def test_calls_are_taken_in_order_as_far_as_the_credit_goes(queue: CallQueue) -> None:
    calls: dict[int, OutstandingCall] = {task: call(task) for task in range(4)}
    queue.add([call(task) for task in calls])
    assert taken(queue) == [0, 1] and taken(queue) is None
    assert queue.tasks() == queue.new_tasks() == {2, 3}
    del calls[0]
    queue.return_credit(4)
    assert taken(queue) == [2] and taken(queue) is None and queue
    queue.check(calls)
    queue.clear()
    assert not queue and queue.take() is None
    queue.check({})


def test_a_call_that_exceeds_the_credit_is_taken_alone(queue: CallQueue) -> None:
    queue.add([call(1, 50), call(2)])
    assert taken(queue) == [1] and taken(queue) is None
    queue.return_credit(50)
    assert taken(queue) == [2]


def test_what_is_sent_again_returns_its_credit_until_it_is_sent(queue: CallQueue) -> None:
    calls: dict[int, OutstandingCall] = {task: call(task) for task in (1, 2)}
    queue.add([call(1), call(2)])
    assert taken(queue) == [1, 2]
    for task in (1, 2, 2):
        queue.resend(task, calls[task])
    assert queue.tasks() == {1, 2} and queue.new_tasks() == set()
    queue.check(calls)
    queue.stop_resending([2, 3])
    queue.check(calls)
    assert taken(queue) == [1]
    queue.check(calls)
    queue.resend(2, calls[2])
    queue.stop_all_resending()
    assert not queue
    queue.check(calls)


def test_cancelled_tasks_leave_the_queue_and_those_sent_are_named(queue: CallQueue) -> None:
    block = CallBlock(10, GROUP, [b"ab"] * 3, lambda: None)
    sent, resent, unsent = call(1), call(2), call(3, 8)
    queue.add([sent, resent])
    assert taken(queue) == [1, 2]
    queue.add([unsent, block])
    queue.resend(2, resent)
    calls: dict[int, OutstandingCall] = {1: sent, 2: resent, 3: unsent, **dict.fromkeys(block.tasks, block)}
    queue.check(calls)
    assert queue.cancel({task: calls.pop(task) for task in (1, 2, 3)}) == [1, 2]
    queue.check(calls)
    assert queue.cancel({task: calls.pop(task) for task in block.tasks}) == [] and not queue
    queue.check({})
