"""What pages show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_protocol.messages import Status
from scaler_protocol.monitoring import EventKind, TaskEvents, TaskStep
from scaler_protocol.profiles import NO_PROFILE, Profile
from scaler_ui.model import subjects, views
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.tables import fields

if TYPE_CHECKING:
    from conftest import Publications


@pytest.fixture
def model(publications: Publications) -> MonitorModel:
    return publications.square_roots()


def test_tasks_in_pages(model: MonitorModel) -> None:
    page = views.tasks(model, PageRequest(count=5, order="since", descending=True))
    assert page.total == 70 and {row["function"] for row in page.rows} == {"time:sleep"}
    page = views.tasks(model, PageRequest(first=30, count=5, order="id", descending=False, text="SQRT"))
    assert page.total == 60 and [row["id"] for row in page.rows] == ["1f", "20", "21", "22", "23"]
    assert [row["state"] for row in page.rows] == ["raised", *["waiting"] * 4]
    assert (page.rows[0]["duration"], page.rows[0]["agent"], page.rows[1]["duration"]) == ("1.5 ms", "vm:1", "")
    assert views.tasks(model, PageRequest(state="raised")).total == 1
    assert views.tasks(model, PageRequest(text="1f")).rows[0]["id"] == "1f"


def test_tasks_say_what_is_known_of_them(publications: Publications) -> None:
    """CPU time comes with the end of a run; a task that needs one that raised has no error of its own."""
    model = publications.model_of(
        publications.groups((9, "f", 7, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, 1, 2),
        publications.batch(TaskStep.ASSIGNED, 1, 1, first_run=501),
        publications.batch(TaskStep.ENDED, 0, 2, statuses=bytes([Status.RAISED]), profiles=NO_PROFILE),
        publications.status(at=1000.0, worker_runs=(501, *[0] * 5)),
    )
    running, raised = views.tasks(model, PageRequest(order="id", descending=False)).rows
    assert (running["state"], running["pid"] != "", running["cpu"]) == ("running", True, "")
    assert (raised["state"], raised["error"]) == ("raised", "a task that it needs raised")


def test_workers_in_pages(model: MonitorModel, publications: Publications) -> None:
    model.take(publications.batch(TaskStep.ASSIGNED, 1, 40, first_run=501), 50.0)
    page = views.workers(model, PageRequest(first=50, order="rss", descending=False), 50.0)
    assert page.total == 80 and len(page.rows) == 30
    page = views.workers(model, PageRequest(order="worker", descending=False, text="RUNNING"), 50.0)
    assert [row["worker"] for row in page.rows] == ["vm:1-100"] and page.rows[0]["silence"] == "0 s"
    assert views.workers(model, PageRequest(text="ram=4"), 50.0).rows[0]["silence"] == "12 s (stale)"
    assert [page.rows[0][name] for name in ("task", "function")] == ["28", "math:sqrt"]


def test_clients_functions_and_events(model: MonitorModel) -> None:
    assert [row["name"] for row in views.clients(model, PageRequest(order="tasks")).rows] == ["Client|a", "(in a task)"]
    (function,) = views.functions(model, PageRequest(order="calls")).rows
    assert (function["function"], function["calls"], function["success"], function["raised"]) == (
        "math:sqrt",
        31,
        30,
        1,
    )
    assert (function["mean"], function["memory"]) == ("1.5 ms", "1.9 MiB")
    rows = views.events(model, PageRequest(order="number")).rows
    assert [(row["level"], row["task"], row["text"]) for row in rows] == [
        ("warning", "1f", "a run was lost"),
        ("info", "", "came"),
    ]
    died = "vm:1: Worker[3] was killed by SIGKILL while it ran task 704a5b2c00000001, and 2 others were lost"
    model.take(
        TaskEvents(
            text_numbers=(3,), text_kinds=(EventKind.WORKER,), text_subjects=("vm",), text_times=(3.0,),
            text_levels=(30,), text_tasks=(0,), texts=(died,),
        ),
        50.0,
    )  # fmt: skip
    assert views.events(model, PageRequest(order="number")).rows[0]["task"] == "704a5b2c00000001"


def test_the_overview(model: MonitorModel) -> None:
    shown = views.figures(model)
    assert set(shown) == {*views.LARGE_FIGURES, *views.SMALL_FIGURES}
    assert (shown["tasks/s"], shown["workers"], shown["clients"], shown["lag"]) == ("50", "80", "1", "1.0 ms")
    lines = views.lines(model)
    assert lines["tasks/s"] == [[1_002_000, 50.0]] and lines["latency"] == [[1_002_000, 1000.0]]
    assert shown["latency"] == "1.0 s"
    assert views.figures(MonitorModel(tasks=10)) == {}


def test_lines_share_their_times_and_are_interrupted_where_nothing_was_heard(publications: Publications) -> None:
    times = [*range(0, 601), *range(700, 1300)]
    model = publications.model_of(*(publications.status(1, at=float(at), succeeded=3 * at, held=2) for at in times))
    lines = views.lines(model)
    figures = views.figures(model)
    assert lines["waiting and held"][-1][1] == int(figures["waiting"]) + int(figures["held"]) == 6
    assert {tuple(at for at, _ in line) for line in lines.values()} == {tuple(at for at, _ in lines["cpu"])}
    model = publications.model_of(*(publications.status(1, at=float(at), succeeded=3 * at) for at in times[300:900]))
    rates = [rate for _, rate in views.lines(model)["tasks/s"]]
    assert rates.count(None) == 1 and set(rates) == {None, 3.0} and len(rates) < 2 * views.POINTS


@pytest.mark.parametrize("status", [Status.FAILED, Status.RAISED])
def test_nothing_is_said_of_what_was_not_measured(publications: Publications, status: int) -> None:
    """All runs of a function were lost with their workers, or what its tasks need has raised."""
    model = publications.model_of(
        publications.status(1, at=1000.0),
        publications.groups((9, "poison", 7, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, 1),
        publications.batch(TaskStep.ENDED, 1, 1, statuses=bytes([status]), profiles=NO_PROFILE),
    )
    (row,) = views.functions(model, PageRequest()).rows
    assert (row["calls"], row["failed"] + row["raised"]) == (1, 1)
    assert model.workloads.rows[1].runs.count == 0 and not model.run_figures.runs
    assert {row[name] for name in ("mean", "longest", "cpu", "transfers", "memory")} == {""}
    assert not {fact.name for fact in subjects.function_facts(model, "poison") or []} & {"mean", "peak memory"}


def test_a_worker_of_short_tasks_has_the_function_that_it_ran_last(publications: Publications) -> None:
    """The task that its host has reported has ended meanwhile."""
    model = publications.model_of(
        publications.status(1, at=1000.0),
        publications.groups((9, "short", 7, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, 1, 2),
        publications.batch(TaskStep.ASSIGNED, 1, 1, 2, time=1001.0, first_run=501),
        publications.batch(TaskStep.ENDED, 1, 1, profiles=Profile(1500, 900, 1, 100, 0, 1).packed()),
        publications.status(1, at=1003.0),
    )
    busy, idle = sorted(views.workers(model, PageRequest(), 50.0).rows, key=lambda row: row["state"] == "idle")
    assert (busy["state"], busy["task"], busy["function"]) == ("running", "", "short")
    assert (idle["state"], idle["task"], idle["function"]) == ("idle", "", "")
    (on_host, _) = sorted(subjects.runners(model, "vm", PageRequest()).rows, key=lambda row: row["state"] == "idle")
    assert (on_host["function"], on_host["elapsed"]) == ("short", "")
    assert [row["function"] for row in fields(model, 50.0)["workers"]] == ["short", ""]


def test_there_is_no_filter_for_a_state_that_no_task_has() -> None:
    told = ("waiting", "held", "queued", "running", "success", "raised", "failed", "cancelled", "unknown")
    assert sorted(views.TASK_STATES) == sorted(told)
