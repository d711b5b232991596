"""Outcomes are kept until they are released, and bounded in age and bytes."""

from __future__ import annotations

import pytest

from scaler_protocol.messages import Status
from scaler_worker.agent.core import kept_outcomes
from scaler_worker.agent.core.kept_outcomes import KeptOutcomes
from scaler_worker.agent.core.result_buffer import DoneRow


def row(run: int, payload: bytes) -> DoneRow:
    return (run, Status.VALUE, payload, b"", False)


def test_they_are_kept_until_they_are_released_or_too_old() -> None:
    kept = KeptOutcomes()
    kept.keep((1, 2), (row(1, b"one"), row(2, b"two")), 6)
    kept.release((1,))
    assert list(kept) == [2] and kept.get(2) == row(2, b"two") and kept.get(1) is None
    kept.rotate()
    assert list(kept) == [2], "not older than a retention period yet"
    kept.rotate()
    assert not len(kept)
    kept.check()


def test_beyond_the_limit_the_oldest_go_and_the_newest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_outcomes, "KEPT_LIMIT", 10)
    kept = KeptOutcomes()
    for task in range(4):
        kept.keep((task,), (row(task, bytes(4)),), 4)
    assert list(kept) == [2, 3]
    kept.keep((9,), (row(9, bytes(100)),), 100)
    assert list(kept) == [9]
    kept.check()
