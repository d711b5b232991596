"""How long object storage takes to answer, whatever the scheduler itself does meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scaler_protocol.addresses import Address
from scaler_protocol.monitoring import StorageStatus
from scaler_scheduler.monitoring import storage_watch
from scaler_scheduler.monitoring.storage_watch import StorageWatch

STATUS = StorageStatus(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("looks", "seconds"),
    [
        ((1.1,), 0.0),
        ((1.1, 1.2, 3.9, 4.0), 2.9),
        ((1.1, 21.0), 0.1),  # the scheduler stood still for 20 s, and found the answer then
        ((21.0,), 0.0),
    ],
)
def test_time_in_which_the_scheduler_stood_still_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, looks: tuple[float, ...], seconds: float
) -> None:
    clock = [0.0]
    answers: list[list[Any]] = [[] for _ in looks[1:]] + [[STATUS]]
    link = SimpleNamespace(is_up=True, joins=0, send=lambda message: None, turn=lambda: answers.pop(0))
    monkeypatch.setattr(storage_watch, "OperatorLink", lambda *_, **__: link)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    watch = StorageWatch(Address("127.0.0.1", 1))
    clock[0] = 1.0
    watch.ask()
    found = None
    for at in looks:
        clock[0] = at
        assert found is None
        found = watch.turn()
    assert found is not None and found.answer_seconds == pytest.approx(seconds)
