"""Results that the scheduler asks for while they are still to come."""

from __future__ import annotations

import pickle
from typing import Any

from scaler_client.core.pending_inputs import PendingInputs
from scaler_client.core.records import CallGroup, OutstandingCall, ResentCall
from scaler_protocol.messages import Group, NeedInputs, Status

GROUP = CallGroup(Group(b"f"), (), pickle.loads, pickle.dumps)


class Need:
    """A Dependency that counts how often its outcome is made, which may mean to pickle a value."""

    def __init__(self, task_id: int) -> None:
        self.task_id = task_id
        self.made = 0
        self.done = False

    def outcome(self) -> tuple[int, bytes] | None:
        self.made += self.done
        return (Status.VALUE, b"value") if self.done else None


def test_nothing_is_written_for_a_task_that_is_not_wanted_any_more() -> None:
    need, awaited = Need(1), PendingInputs()
    outstanding: dict[int, OutstandingCall] = {task: ResentCall(task, GROUP, 4, b"call", [need]) for task in (2, 3)}
    awaited.ask(NeedInputs([2, 3], [1, 1]), outstanding)
    assert awaited.answer(outstanding) is None and awaited
    need.done = True
    del outstanding[2]
    inputs: Any = awaited.answer(outstanding)
    assert (list(inputs.tasks), list(inputs.needs), need.made) == ([3], [1], 1) and not awaited
