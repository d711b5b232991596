"""Which runs the scheduler is told to be blocked."""

from __future__ import annotations

from scaler_client.core.blocked_runs import BlockedRuns
from scaler_client.core.events import BlockingChanged
from scaler_protocol.messages import Blocked


def test_changes_that_cancel_each_other_are_not_sent() -> None:
    runs = BlockedRuns()
    for run, blocked in ((1, True), (2, True), (2, False)):
        runs.change(BlockingChanged(run, blocked), 0.0)
    assert runs and runs.take() == Blocked([1], [True]) and not runs
    runs.change(BlockingChanged(1, False), 0.0)
    assert runs.take() == Blocked([1], [False])
