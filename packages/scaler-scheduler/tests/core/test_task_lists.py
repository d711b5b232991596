"""The list of the tasks of a named session."""

from __future__ import annotations

import pytest

from scaler_protocol.ids import first_task
from scaler_protocol.messages import Status
from scaler_protocol.sessions import give_name
from scaler_scheduler.core import task_lists
from scaler_scheduler.core.function_record import FunctionRecord
from scaler_scheduler.core.named_session_record import NamedSession, SessionTask
from scaler_scheduler.core.records import SessionRecord
from scaler_scheduler.core.task_states import DONE


def test_a_long_list_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_lists, "PIECE_TASKS", 4)
    named = NamedSession(5, "nightly", b"k")
    session = SessionRecord(5, b"", named=named)
    for number in range(1, 11):
        task = SessionTask(named, first_task(5) + number, FunctionRecord(b"f", "math:sqrt"), since=90.0)
        task.ended = (Status.RAISED, b"oh", number == 10), b"", "w"
        named.tasks[task.id] = task
    for name in ("two", "zwei"):
        give_name(named.labels, name, first_task(5) + 2)
    pieces = list(task_lists.task_lists(7, session, named, 100.0, results=True))
    assert [(len(piece.tasks), piece.left, piece.request) for piece in pieces] == [(4, 7, 7), (4, 3, 7), (3, 0, 7)]
    assert list(pieces[0].labels) == ["", "two", "zwei", ""] and set(pieces[0].functions) == {"math:sqrt"}
    assert set(pieces[1].states) == {DONE} and set(pieces[1].ages) == {10.0}
    assert list(pieces[2].results) == [b"oh"] * 3 and list(pieces[2].stored) == [2]
    [empty] = task_lists.task_lists(8, session, NamedSession(5, "x", b""), 0.0, results=False)
    assert not empty.tasks and not empty.left
