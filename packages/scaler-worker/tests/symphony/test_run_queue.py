"""The order of runs that wait for Symphony."""

from __future__ import annotations

from scaler_protocol.messages import Group
from scaler_worker.agent.core.records import Entry, FunctionKind, TaskGroup, run_ids
from scaler_worker.symphony.run_queue import RunQueue, depth_of


def entry(run: int, *, priority: int = 0, depth: int = 0) -> Entry:
    group = Group(b"f", priority=priority, depth=depth)
    return run, run, TaskGroup(group, FunctionKind(1, group), 0.0), b"", 1, 0


def test_priority_then_depth_then_age() -> None:
    queue = RunQueue()
    queue.extend([entry(1), entry(2, depth=1), entry(3, priority=1), entry(4), entry(5, depth=1)])
    assert run_ids(queue) == [3, 2, 5, 1, 4] and len(queue) == 5
    assert [found[0] for _ in range(5) if (found := queue.take()) is not None] == [3, 2, 5, 1, 4]
    assert queue.take() is None


def test_only_deeper_ones() -> None:
    queue = RunQueue()
    queue.extend([entry(1, priority=9), entry(2, depth=1), entry(3, depth=2, priority=-9)])
    found = queue.take(deeper_than=1)
    assert found is not None and found[0] == 3 and depth_of(found) == 2
    assert queue.take(deeper_than=1) is None


def test_the_newest_and_named_ones() -> None:
    queue = RunQueue()
    queue.extend([entry(1, priority=1), entry(2), entry(3)])
    assert run_ids(queue.take_newest(2)) == [3, 2]
    queue.extend([entry(4), entry(5)])
    assert run_ids(queue.remove([4, 9])) == [4]
    assert run_ids(queue) == [1, 5]
