"""Durations: histograms of runs and waits, and how exactly waits are known."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from scaler_protocol.monitoring import DURATION_BOUNDS, MonitorStatus
from scaler_protocol.profiles import NO_PROFILE, Profile
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.durations import Durations
from scaler_scheduler.core.lane_ages import AGE_SECONDS, AGE_SHARE, LaneAges
from scaler_scheduler.core.snapshot import ProcessStats

if TYPE_CHECKING:
    from conftest import SchedulerDriver

LONG = 2**40
"""Microseconds, more than 32 bits and beyond the last bound."""


def status(driver: SchedulerDriver) -> MonitorStatus:
    return driver.core.snapshot(ProcessStats("", 0.0, 0.0, 0.0, 0), driver.now)


@given(st.lists(st.sampled_from([0, 1, 999, 1000, 1001, 3000, 10**6, 30_000 * 10**6, LONG])))
def test_runs_and_waits_are_counted_alike(microseconds: list[int]) -> None:
    runs, waits = Durations(), Durations()
    runs.add_runs(b"".join([Profile(each, 5, 7, 4711, 1, 1).packed() + NO_PROFILE for each in microseconds]))
    waits.add_waits([(-each / 1e6, 1) for each in microseconds], 0.0)
    buckets, count, seconds = runs.read()
    assert (buckets, count) == waits.read()[:2] and abs(seconds - sum(microseconds) / 1e6) < 1e-3
    assert count == len(microseconds) == sum(buckets) + microseconds.count(LONG)
    assert buckets[0] == sum(each <= 1000 for each in microseconds)


def test_waits_end_when_they_are_told() -> None:
    durations = Durations()
    durations.add_waits([(1.0, 2)], 2.0)
    durations.add_waits([(1.0, 1), (2.5, 1), (9.0, 1)], 3.0)
    buckets, count, seconds = durations.read()
    assert (count, seconds) == (5, 4.5), "one begins after its end, for which it counts as nothing"
    assert [buckets[DURATION_BOUNDS.index(bound)] for bound in (0.001, 1.0, 3.0)] == [1, 3, 1]
    assert durations.read() == (buckets, count, seconds)


def test_runs_that_nobody_reads_are_counted_without_a_bound_on_their_number() -> None:
    durations, profile = Durations(), Profile(2000, 0, 0, 1, 0, 1).packed()
    for _ in range(100):
        durations.add_runs(profile * 1000)
    assert len(durations._profiles) < 2**21
    buckets, count, _ = durations.read()
    assert count == buckets[1] == 100_000


def test_waits_and_runs_are_measured_if_somebody_wants_to_know(make_driver: type[SchedulerDriver]) -> None:
    driver = make_driver()
    client, agent = driver.client(), driver.agent()
    driver.submit(client, 8)
    driver.done(agent, driver.runs(agent), seconds=0.5)
    before = status(driver)
    assert before.runs == before.waits == 0, "nobody listens"
    assert (before.function_runs, before.function_run_seconds) == ([1], [0.5])
    driver.core.start_events(driver.now)
    driver.later(20.0)
    while runs := driver.runs(agent):
        driver.done(agent, runs, seconds=0.5)
    driver.core.stop_events()
    told = status(driver)
    assert (told.runs, told.run_seconds) == (7, 3.5)
    assert sum(told.run_buckets) == told.run_buckets[DURATION_BOUNDS.index(1.0)] == 7
    assert told.waits == told.wait_buckets[DURATION_BOUNDS.index(30.0)] > 0
    assert (told.function_runs, told.function_run_seconds) == ([8], [4.0])


def test_metrics_measure_without_monitors(make_driver: type[SchedulerDriver]) -> None:
    driver = make_driver(config=SchedulerConfig(measured=True))
    client, agent = driver.client(), driver.agent()
    for _ in range(2):
        driver.submit(client)
        driver.done(agent, driver.runs(agent), seconds=0.5)
        assert driver.core.take_events(0.0) is None
        driver.core.start_events(driver.now)
        driver.core.stop_events()
    assert (status(driver).runs, status(driver).waits) == (2, 2)


def test_tasks_wait_by_the_capabilities_that_they_need(make_driver: type[SchedulerDriver]) -> None:
    driver = make_driver()
    client = driver.client()
    driver.submit(client, 3)
    driver.submit(client, 2, capability_names=("gpu",), capability_values=(1,), priority=1)
    driver.submit(client, 4, capability_names=("gpu",), capability_values=(1,), priority=2)  # in another lane
    told = status(driver)
    assert dict(zip(told.waiting_capabilities, told.waiting_tasks, strict=True)) == {"gpu=1": 6, "": 3}


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.004, 0.02, 1.0, 50.0]), st.integers(0, 3), st.integers(0, 4))))
def test_the_age_of_tasks_is_known_about(steps: list[tuple[float, int, int]]) -> None:
    """Against a list that knows the time of each task; tasks come in and leave in order."""
    ages, waiting, now = LaneAges(), deque[float](), 0.0
    for seconds, added, taken in steps:
        now += seconds
        if added:
            ages.added(added, len(waiting), now)
            waiting.extend([now] * added)
        told = [at for at, count in ages.first(min(taken, len(waiting)), len(waiting)) for _ in range(count)]
        true = [waiting.popleft() for _ in range(min(taken, len(waiting)))]
        assert len(told) == len(true)
        for at, since in zip(told, true, strict=True):
            assert at <= since <= at + AGE_SECONDS + now / AGE_SHARE
        if waiting:
            assert ages.oldest(len(waiting)) <= waiting[0]


def test_a_lane_that_waits_for_a_day_has_few_entries() -> None:
    ages = LaneAges()
    for second in range(86_400):
        ages.added(1, second, float(second))
    assert len(ages._batches) < 1500
