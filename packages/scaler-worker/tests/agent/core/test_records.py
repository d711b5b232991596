"""What an agent tells a new scheduler fits into messages, however much it is."""

from __future__ import annotations

import pytest

from scaler_protocol.messages import MESSAGE_IDS, Group, Reconcile
from scaler_worker.agent.core.records import Entry, FunctionKind, TaskGroup, reconciles


@pytest.mark.parametrize("kept", [0, MESSAGE_IDS, MESSAGE_IDS + 1])
def test_all_is_said_in_messages_of_bounded_size(kept: int) -> None:
    group = Group(b"f" * 16)
    tasks = TaskGroup(group, FunctionKind(1, group), 0.0)
    entries: list[Entry] = [(run, 100 + run, tasks, b"", 1, 0) for run in range(3)]
    said = list(reconciles(entries, range(kept)))
    assert said[0].running == [100, 101, 102] and said[0].runs == [0, 1, 2]
    assert [task for message in said for task in message.finished] == list(range(kept))
    assert all(len(message.finished) <= MESSAGE_IDS for message in said)
    assert [message.more for message in said] == [True] * (len(said) - 1) + [False]


def test_an_agent_without_anything_says_so() -> None:
    assert list(reconciles([], ())) == [Reconcile([], [], (), ())]
