"""When a run is late, by the runs before it."""

from __future__ import annotations

import math

from scaler_scheduler.core.run_times import LATE_SECONDS, LATEST_RUNS, MEASURED_RUNS, SHARE, RunTimes


def test_few_runs_tell_nothing() -> None:
    times = RunTimes()
    for _ in range(MEASURED_RUNS - 1):
        times.measured(1.0)
    assert times.late_after == math.inf
    times.measured(1.0)
    assert times.late_after == 2.0 + LATE_SECONDS


def test_slow_hosts_do_not_make_others_late_later() -> None:
    times = RunTimes()
    for at in range(LATEST_RUNS):
        times.measured(10.0 if at % 5 == 0 else 1.0)
    assert times.expected == 1.0


def test_a_function_that_often_takes_long_may_do_so() -> None:
    times = RunTimes()
    for at in range(LATEST_RUNS):
        times.measured(10.0 if at % 3 == 0 else 1.0)
    assert times.late_after == 20.0 + LATE_SECONDS


def test_only_the_latest_runs_count() -> None:
    times = RunTimes()
    for seconds in [10.0] * LATEST_RUNS + [1.0] * LATEST_RUNS:
        times.measured(seconds)
    assert times.late_after == 2.0 + LATE_SECONDS
    assert times.share == SHARE * (11.0 * LATEST_RUNS)


def test_what_is_spent_and_the_longest_of_it() -> None:
    times = RunTimes()
    for seconds in (1.0, 3.0, 2.0):
        times.spend(seconds)
    assert (times.spent, times.longest) == (6.0, 3.0)
