"""Workloads: which calls belong together, and how long they took."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from scaler_protocol.ids import new_session
from scaler_protocol.messages import Status
from scaler_protocol.monitoring import EventKind, TaskStep
from scaler_protocol.profiles import Profile
from scaler_ui.model import workload_views
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.kept import Changes
from scaler_ui.model.minutes import MOMENTS, Minutes
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.moments import Moment
from scaler_ui.model.workloads import (
    BREAK_SECONDS,
    EXCEPTIONS,
    FORGOTTEN,
    LONGEST_SECONDS,
    OTHERS,
    DurationCounts,
    WorkloadTable,
)

if TYPE_CHECKING:
    from conftest import Publications

EVERYTHING = PageRequest(order="last")


def test_quantiles_are_right_within_two_percent_whatever_is_counted() -> None:
    drawn = random.Random(1)
    seconds = sorted(drawn.lognormvariate(0, 3) for _ in range(5000))
    durations = DurationCounts()
    for each in seconds:
        durations.add(each)
    assert durations.count == 5000 and durations.longest == seconds[-1]
    assert durations.mean == pytest.approx(sum(seconds) / 5000)
    for share in (0.001, 0.5, 0.95, 1.0):
        assert durations.quantile(share) == pytest.approx(seconds[round(5000 * share) - 1], rel=0.021)
    assert DurationCounts().quantile(0.5) is None and DurationCounts().mean is None
    durations.add(0.0)
    assert durations.quantile(0.0) == pytest.approx(1e-6, rel=0.02)


def test_a_break_and_a_day_begin_another_workload_and_so_does_another_client() -> None:
    table = WorkloadTable()

    def ended(session: int, at: float) -> int:
        return table.ended("f", session, Status.VALUE, at - 1, at).number

    assert [ended(1, 10), ended(1, 11), ended(2, 12)] == [1, 1, 2]
    assert ended(1, 11 + BREAK_SECONDS) == 1 and ended(1, 12 + 2 * BREAK_SECONDS) == 3
    at = 12.0 + 2 * BREAK_SECONDS
    while at < 11 + 2 * BREAK_SECONDS + LONGEST_SECONDS:
        assert ended(1, at) == 3
        at += BREAK_SECONDS
    assert ended(1, at) == 4
    nested = [ended(new_session(nested=True), at) for _ in range(2)]
    assert nested == [5, 5] and table.rows[5].session == 0


def test_the_session_with_most_workloads_loses_its_oldest_first() -> None:
    table = WorkloadTable(limit=5)
    table.ended("nightly", 1, Status.VALUE, 1, 2)
    for number in range(100):
        table.ended(f"flood {number}", 2, Status.VALUE, 10, 11)
    assert [each.function for each in table.rows.values()] == [
        "nightly",
        *(f"flood {number}" for number in range(96, 100)),
    ]
    assert table.changed == set(table.rows) and len(table.forgotten) == 96


def test_few_types_of_exceptions_are_counted() -> None:
    table = WorkloadTable()
    table.failed("f", 1, "ValueError")  # of a task whose end was not heard
    table.ended("f", 1, Status.RAISED, 1, 2)
    for number in range(EXCEPTIONS + 5):
        table.failed("f", 1, f"Error{number}")
    assert len(table.rows[1].exceptions) == EXCEPTIONS + 1 and table.rows[1].exceptions[OTHERS] == 5


def two_nights(publications: Publications) -> MonitorModel:
    """Two workloads of one function, a day apart; of the second one a task raised, and one was cancelled."""
    model = publications.model_of(
        publications.status(client_sessions=(7, 8), client_names=("monday", "tuesday"), at=1000.0),
        publications.groups((1, "jobs:price", 7, 0, "", ""), (2, "jobs:price", 8, 0, "", "")),
    )
    for night, group, took in ((1000.0, 1, 2_000_000), (87_400.0, 2, 3_000_000)):
        tasks = [group * 100 + number for number in range(10)]
        model.take(publications.batch(TaskStep.WAITING, group, *tasks, time=night), 50.0)
        model.take(publications.batch(TaskStep.ASSIGNED, 1, *tasks, time=night + 1), 50.0)
        profiles = Profile(took, 1_000_000, 2_000_000, 77, 0, 1).packed() * 10
        model.take(publications.batch(TaskStep.ENDED, 1, *tasks, time=night + 6, profiles=profiles), 50.0)
    model.take(publications.batch(TaskStep.WAITING, 2, 300, 301, time=87_400.0), 50.0)
    model.take(publications.batch(TaskStep.CANCELLED, 0, 301, time=87_407.0), 50.0)
    text: dict[str, Any] = {
        "text_numbers": (1,), "text_times": (87_406.0,), "text_levels": (40,), "text_kinds": (EventKind.FAILURE,),
        "text_tasks": (300,), "text_subjects": ("",), "texts": ("Traceback (most recent call last):\nValueError: no",),
    }  # fmt: skip
    model.take(publications.batch(TaskStep.ENDED, 1, 300, time=87_406.0, statuses=bytes([Status.RAISED]), **text), 50.0)
    return model


def test_two_nights_are_compared(publications: Publications) -> None:
    model = two_nights(publications)
    page = workload_views.workloads(model, EVERYTHING)
    assert [(row["workload"], row["client"], row["tasks"], row["failures"], row["change"]) for row in page.rows] == [
        (2, "tuesday", 12, 1, "+36%"),
        (1, "monday", 10, 0, ""),
    ]
    for order in (PageRequest(order="change", descending=True), PageRequest(order="change")):
        assert [row["workload"] for row in workload_views.workloads(model, order).rows] == [2, 1][
            :: order.descending or -1
        ]
    assert (
        page.rows[1] | {"mean": "2.0 s", "p50": "2.0 s", "p95": "2.0 s", "wait": "4.0 s", "cpu": "1.0 s"}
        == page.rows[1]
    )
    rows = workload_views.comparison(model, "2", "", PageRequest()).rows
    assert rows == workload_views.comparison(model, "2", "1", PageRequest()).rows
    lines = {row["name"]: (row["this"], row["other"], row["change"]) for row in rows}
    assert lines["tasks"] == ("12", "10", "+20%") and lines["raised"] == ("1", "0", "")
    assert lines["failures: ValueError"] == ("1", "0", "") and lines["cancelled"] == ("1", "0", "")
    assert lines["run, longest"] == ("3.0 s", "2.0 s", "+50%") and lines["cpu, in all"][1] == "10.0 s"
    back = {row["name"]: row["change"] for row in workload_views.comparison(model, "1", "2", PageRequest()).rows}
    assert back["tasks"] == "-17%"
    facts = workload_views.workload_facts(model, "2")
    assert facts is not None and [fact.links for fact in facts if fact.name == "client, the other"] == [
        (("monday", "/client/monday"),)
    ]
    others = workload_views.others(model, "2", PageRequest(order="last"))
    assert [(row["compared"], row["shown"]) for row in others.rows] == [("compare with 1", "2")]


def test_the_workload_before_ended_last_before_or_else_began_before() -> None:
    table = WorkloadTable()
    for session, (function, since, at) in enumerate(
        (("f", 1.0, 9.0), ("f", 2.0, 5.0), ("f", 6.0, 7.0), ("f", 10.0, 11.0), ("g", 6.0, 8.0), ("f", 3.0, 20.0)), 1
    ):
        table.ended(function, session, Status.VALUE, since, at)
    expected = {2: 1, 3: 2, 4: 1, 6: 1}
    assert {number: before.number for number, before in table.before_each().items()} == expected
    assert {n: before.number for n, each in table.rows.items() if (before := table.before(each))} == expected


def test_a_first_workload_is_shown_alone_and_unknown_ones_are_unknown(publications: Publications) -> None:
    model = two_nights(publications)
    facts = workload_views.workload_facts(model, "1")
    assert facts is not None and facts[-1].text.startswith("none: there is no earlier workload")
    assert {row["other"] for row in workload_views.comparison(model, "1", "", PageRequest()).rows} == {""}
    for names in (("3", ""), ("1", "3"), ("x", ""), ("1", "²"), ("9" * 30, "")):
        assert workload_views.workload_facts(model, *names) is None
        assert workload_views.comparison(model, *names, PageRequest()).rows == []
    assert workload_views.others(model, "3", PageRequest()).rows == []


def test_a_client_that_leaves_before_a_status_names_it_has_its_name(publications: Publications) -> None:
    described = replace(publications.groups((1, "jobs:price", 77, 0, "", "")), group_clients=("nightly",))
    model = publications.model_of(
        publications.status(),
        described,
        publications.batch(TaskStep.WAITING, 1, 5),
        publications.batch(TaskStep.ENDED, 1, 5),
    )
    assert [row["client"] for row in workload_views.workloads(model, EVERYTHING).rows] == ["nightly"]


def test_figures_of_minutes_are_means_and_are_interrupted_where_nothing_was_heard(publications: Publications) -> None:
    model = MonitorModel()
    for at, ended in ((0, 0), (30, 300), (59, 590), (60, 600), (119, 1190), (600, 1200), (659, 1200), (660, 0)):
        waiting = 4 if at < 60 else 8
        model.take(publications.status(at=6000.0 + at, succeeded=ended, waiting=waiting, incarnation=5), 1.0)
    assert [(minute.at, round(minute.rate), minute.waiting) for minute in model.minutes.rows] == [
        (6000, 10, 4.0),
        (6060, 10, 8.0),
        (6600, 0, 8.0),
    ]
    points = workload_views.minute_lines(model, 1)
    assert points["waiting and held"] == [[6_000_000, 4.0], [6_060_000, 8.0], [6_599_999, None], [6_600_000, 8.0]]
    assert len({tuple(at for at, _ in line) for line in points.values()}) == 1
    assert workload_views.minute_lines(MonitorModel(), 1)["cpu"] == []


def test_what_a_thread_writes_does_not_change_meanwhile(publications: Publications) -> None:
    model = publications.model_of(publications.status(), publications.groups((9, "m:f", 7, 0, "", "")))
    changes, taken = Changes(model), []
    for task in (1, 2):
        model.take(publications.batch(TaskStep.WAITING, 9, task), 50.0)
        model.take(publications.batch(TaskStep.ENDED, 1, task), 50.0)
        taken += changes.take().workloads
    assert [sum(workload.endings.values()) for workload in taken] == [1, 2]


def test_numbers_of_forgotten_workloads_are_bounded_where_nobody_keeps_them() -> None:
    table = WorkloadTable(limit=3)
    for number in range(3 * FORGOTTEN):
        table.ended(f"f{number}", 7, Status.VALUE, 1.0, 2.0)
    assert len(table.rows) == 3 and len(table.forgotten) <= FORGOTTEN


def test_a_minute_that_never_ends_is_bounded() -> None:
    minutes = Minutes()
    for number in range(5 * MOMENTS):
        minutes.add(Moment(600.0, number, 4, 0, 0, 0.0, 0, 0, 0.0), follows=True)
    minutes.add(Moment(610.0, 5 * MOMENTS, 4, 0, 0, 0.0, 0, 0, 0.0), follows=True)
    assert len(minutes._open) == MOMENTS
    minutes.add(Moment(660.0, 5 * MOMENTS, 4, 0, 0, 0.0, 0, 0, 0.0), follows=True)
    [minute] = minutes.rows
    assert (minute.rate, minute.waiting) == (5 * MOMENTS / 10, 4.0), "what ended in it counts completely"
