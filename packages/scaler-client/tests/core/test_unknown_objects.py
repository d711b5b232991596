"""When unknown objects of a session are garbage."""

from __future__ import annotations

from scaler_client.core.unknown_objects import UnknownObjects


def test_they_are_garbage_once_all_tasks_have_ended_that_were_outstanding_when_they_were_listed() -> None:
    objects = UnknownObjects()
    assert not objects.become_garbage([])
    objects.listed([1, 2, 3])
    assert not objects.become_garbage({1, 2, 3, 4})
    assert not objects.become_garbage({2, 4})
    assert objects.become_garbage({4})
    assert not objects.become_garbage({4}), "once"
