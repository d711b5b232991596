"""How long outcomes wait while a scheduler is busy, and what hosts get meanwhile."""

from __future__ import annotations

import pytest

from scaler_protocol.coalescing import (
    MOST_TOGETHER,
    QUEUED_WAIT_SECONDS,
    QUEUED_WAIT_SHARE,
    TOGETHER_SECONDS,
    WAIT_SECONDS,
    WAIT_SHARE,
    most_ahead,
    pressure,
    tasks_ahead,
    tasks_together,
    told_load,
    wait_seconds,
)


@pytest.mark.parametrize(("busy", "expected"), [(0.0, 0.0), (0.5, 0.0), (0.75, 0.5), (1.0, 1.0)])
def test_pressure_begins_at_half_of_the_time(busy: float, expected: float) -> None:
    assert pressure(busy) == expected


@pytest.mark.parametrize(
    ("has_queued", "most", "share", "of_half"),
    [(False, WAIT_SECONDS, WAIT_SHARE, 1 / 2), (True, QUEUED_WAIT_SECONDS, QUEUED_WAIT_SHARE, 1 / 4)],
)
def test_a_wait_is_a_share_of_the_run_up_to_a_limit_and_follows_the_pressure(
    has_queued: bool, most: float, share: float, of_half: float
) -> None:
    """`of_half`: the share of the longest wait at half of the pressure."""
    assert wait_seconds(1.0, 0.1, has_queued=has_queued) == pytest.approx(share * 0.1)
    assert wait_seconds(1.0, 100.0, has_queued=has_queued) == most
    assert wait_seconds(0.5, 100.0, has_queued=has_queued) == most * of_half
    assert wait_seconds(0.0, 100.0, has_queued=has_queued) == 0.0


@pytest.mark.parametrize("seconds", [1e-6, 0.05, 0.5, 1.0, 10.0, 1e9])
@pytest.mark.parametrize("workers", [1, 16, 4000])
def test_as_many_tasks_are_sent_ahead_as_end_during_the_wait_and_no_more(seconds: float, workers: int) -> None:
    """One more would go before what is urgent, for as long as it runs."""
    assert tasks_ahead(0.0, seconds, workers) == 0
    ended = round(workers * wait_seconds(1.0, seconds, has_queued=True) / seconds, 9)
    assert ended - 1 < tasks_ahead(1.0, seconds, workers) <= ended


@pytest.mark.parametrize("strength", [0.0, 0.1, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("workers", [1, 16, 4000])
def test_runs_no_longer_than_the_longest_wait_have_the_most_tasks_ahead(strength: float, workers: int) -> None:
    most = most_ahead(strength, workers)
    assert tasks_ahead(strength, QUEUED_WAIT_SECONDS / 2, workers) == most
    assert all(tasks_ahead(strength, seconds, workers) <= most for seconds in (1e-6, 0.05, 3.0, 1e9))


@pytest.mark.parametrize("workers", [1, 16, 4000])
def test_tasks_sent_together_are_so_much_work_for_each_worker(workers: int) -> None:
    for seconds in (1e-3, 0.005, TOGETHER_SECONDS, 1.0):
        together = tasks_together(1.0, seconds, workers)
        assert together == min(MOST_TOGETHER, int(workers * TOGETHER_SECONDS / seconds))
        assert tasks_together(0.5, seconds, workers) <= together
        assert tasks_together(0.0, seconds, workers) == 0
    assert tasks_together(1.0, 0.0, workers) == MOST_TOGETHER


def test_the_load_that_is_told_follows_the_measured_one_fast_up_and_slowly_down() -> None:
    told = 0.0
    for _ in range(5):
        told = told_load(told, 1.0, 1.0)
    assert 0.8 < told < 1.0
    once, twice = told_load(told, 0.2, 2.0), told_load(told_load(told, 0.2, 1.0), 0.2, 1.0)
    assert once == pytest.approx(twice), "however often it is measured"
    assert told - 0.1 < once < told
    assert told_load(told, 0.0, 600.0) == pytest.approx(0.0), "a service without turns measures nothing"
    assert told_load(0.4, 0.4, 1.0) == 0.4
