"""How much work there is, and what the law remembers."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from scaler_scheduler.requirements import Requirement
from scaler_scheduler.scaling.capacity import Demand
from scaler_scheduler.scaling.control_law import (
    LONGEST_KEEP_SECONDS,
    PROBE_WORKERS,
    TARGET_SECONDS,
    PendingAges,
    RecentPeak,
    keep_seconds,
    outstanding_seconds,
)

ANY = Requirement((), None)


def test_work_is_what_waits_and_what_running_tasks_still_need() -> None:
    assert outstanding_seconds(Demand(requirement=ANY, tasks=15, seconds=90, running=2, running_seconds=5)) == 95


def test_an_unmeasured_task_costs_the_target() -> None:
    assert outstanding_seconds(Demand(requirement=ANY, tasks=15, unmeasured=15)) == 15 * TARGET_SECONDS


def test_unmeasured_tasks_are_probed_by_few_workers_until_one_of_them_has_run_for_the_target() -> None:
    probing = Demand(requirement=ANY, tasks=1000, unmeasured=1000, elapsed=TARGET_SECONDS - 1)
    assert outstanding_seconds(probing) == PROBE_WORKERS * TARGET_SECONDS
    long = Demand(requirement=ANY, tasks=1000, unmeasured=1000, elapsed=100)
    assert outstanding_seconds(long) == 1000 * 100


def test_slow_units_are_kept_longer_but_not_for_ever() -> None:
    assert keep_seconds(30, 1) == 30
    assert keep_seconds(30, 60) == 120
    assert keep_seconds(30, 7200) == LONGEST_KEEP_SECONDS
    assert keep_seconds(600, 7200) == 600


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20)), min_size=1), st.integers(0, 15))
def test_the_peak_is_the_maximum_of_the_last_seconds(steps: Sequence[tuple[int, int]], seconds: int) -> None:
    peak, seen, now = RecentPeak(), list[tuple[int, int]](), 0
    for passed, value in steps:
        now += passed
        seen.append((now, value))
        assert peak.add(value, now, seconds) == max(value for then, value in seen if then >= now - seconds)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20)), min_size=1), st.integers(0, 30))
def test_those_that_have_been_starting_longest_join_first(steps: Sequence[tuple[int, int]], limit: int) -> None:
    ages, starts, now = PendingAges(), list[int](), 0
    for passed, starting in steps:
        now += passed
        starts = starts[max(0, len(starts) - starting) :] + [now] * (starting - len(starts))
        ages.observe(starting, now)
        assert ages.oldest(now) == (now - starts[0] if starts else 0)
        mean = sum(min(now - start, limit) for start in starts) / len(starts) if starts else 0
        assert abs(ages.mean(now, limit) - mean) < 1e-9
