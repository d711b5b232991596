"""How long outcomes wait while a scheduler is busy, and what hosts get meanwhile."""

from __future__ import annotations

import pytest

from scaler_protocol.coalescing import (
    QUEUED_WAIT_SECONDS,
    QUEUED_WAIT_SHARE,
    WAIT_SECONDS,
    WAIT_SHARE,
    pressure,
    tasks_ahead,
    wait_seconds,
)


@pytest.mark.parametrize(("busy", "expected"), [(0.0, 0.0), (0.5, 0.0), (0.75, 0.5), (1.0, 1.0)])
def test_pressure_begins_at_half_of_the_time(busy: float, expected: float) -> None:
    assert pressure(busy) == expected


@pytest.mark.parametrize(
    ("has_queued", "most", "share"), [(False, WAIT_SECONDS, WAIT_SHARE), (True, QUEUED_WAIT_SECONDS, QUEUED_WAIT_SHARE)]
)
def test_a_wait_is_a_share_of_the_run_up_to_a_limit_and_follows_the_pressure(
    has_queued: bool, most: float, share: float
) -> None:
    assert wait_seconds(1.0, 0.1, has_queued=has_queued) == pytest.approx(share * 0.1)
    assert wait_seconds(1.0, 100.0, has_queued=has_queued) == most
    assert wait_seconds(0.5, 100.0, has_queued=has_queued) == most / 2
    assert wait_seconds(0.0, 100.0, has_queued=has_queued) == 0.0


@pytest.mark.parametrize("seconds", [1e-6, 0.05, 0.5, 1.0, 10.0, 1e9])
@pytest.mark.parametrize("workers", [1, 16, 4000])
def test_as_many_tasks_are_sent_ahead_as_end_during_the_wait(seconds: float, workers: int) -> None:
    assert tasks_ahead(0.0, seconds, workers) == 0
    ended = workers * wait_seconds(1.0, seconds, has_queued=True) / seconds
    assert ended <= tasks_ahead(1.0, seconds, workers) < ended + 1
    assert ended <= QUEUED_WAIT_SHARE * workers + 1e-9
