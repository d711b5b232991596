"""Worker managers as sentences and fields."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from scaler_protocol.monitoring import EventKind, MonitorStatus, TaskEvents, TaskStep
from scaler_ui.model import cluster_views, text_view, views
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.reasons import why
from scaler_ui.model.tables import EVENTS_SHOWN, fields

if TYPE_CHECKING:
    from conftest import Publications

STATUS = MonitorStatus(
    1, 5.0, managers=["grid"], manager_kinds=["slurm"], manager_hosts=["here"], manager_maximums=[-1],
    manager_desired=[8], manager_joined=[4], manager_starting=[4], manager_draining=[0],
    manager_reasons=["90 s of work"], manager_failures=[""], manager_pauses=[0.0],
)  # fmt: skip


def test_a_task_that_waits_for_a_unit_is_told_what_the_managers_do(publications: Publications) -> None:
    columns = {name: getattr(STATUS, name) for name in STATUS.__slots__ if name.startswith("manager")}
    model = publications.model_of(
        replace(publications.status(), **columns),
        publications.groups((9, "f", 7, 0, "gpu", ""), (8, "f", 7, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, 1),
        publications.batch(TaskStep.WAITING, 8, 2),
    )
    assert why(model, 1) == ["it waits: no worker offers gpu", "worker manager grid starts 4 workers: 90 s of work"]
    assert len(why(model, 2)) == 1, "there are workers for it"


@pytest.mark.parametrize(
    ("offers", "says"),
    [
        ([("gpu=1", "")], "worker manager grid starts 4 workers: 90 s of work"),
        ([("", ""), ("gpu=2", "Python 3.11")], "worker manager grid starts 4 workers: 90 s of work"),
        ([("fpga=1", "")], "worker manager grid starts no workers with gpu"),
        ([("gpu=1", "Python 3.12")], "worker manager grid starts no workers with Python 3.11"),
    ],
)
def test_managers_that_cannot_start_a_worker_for_a_task_are_told_apart(
    offers: list[tuple[str, str]], says: str, publications: Publications
) -> None:
    columns = {name: getattr(STATUS, name) for name in STATUS.__slots__ if name.startswith("manager")}
    columns["offer_managers"] = ["grid"] * len(offers)
    columns["offer_capabilities"], columns["offer_runtimes"] = zip(*offers, strict=True)
    model = publications.model_of(
        replace(publications.status(), **columns),
        publications.groups((9, "f", 7, 0, "gpu", "Python 3.11")),
        publications.batch(TaskStep.WAITING, 9, 1),
    )
    assert why(model, 1)[1:] == [says]


def test_screens_and_pages_show_them() -> None:
    model = MonitorModel()
    assert cluster_views.managers(model, PageRequest()).rows == []
    model.take(STATUS, 0.0)
    (row,) = cluster_views.managers(model, PageRequest()).rows
    assert (row["manager"], row["maximum"], row["desired"], row["pause"]) == ("grid", "no limit", 8, "")
    (shown,) = fields(model, 0.0)["managers"]
    assert (shown["manager"], shown["desired"], shown["joined"], shown["starting"]) == ("grid", 8, 4, 4)


def test_many_events_of_one_kind_do_not_push_out_others(publications: Publications) -> None:
    noon = datetime(2026, 3, 1, 12, 0, 0)
    kinds = [EventKind.WORKER, *[EventKind.RUN] * 500, *[EventKind.FAILURE] * 500]
    count = len(kinds)
    flood = TaskEvents(
        text_numbers=range(1, count + 1), text_kinds=kinds, text_subjects=["vm"] * count, text_tasks=[0] * count,
        text_times=[(noon - timedelta(days=1)).timestamp(), *[noon.timestamp()] * (count - 1)],
        text_levels=[30] * count, texts=["Worker[0] was killed", *["a run was lost"] * 500, *["ValueError: no"] * 500],
    )  # fmt: skip
    model = publications.model_of(publications.status(at=noon.timestamp() + 60), flood)
    shown = fields(model, 50.0)
    assert [event["kind"] for event in shown["events"]] == [EventKind.WORKER, *[EventKind.RUN] * EVENTS_SHOWN]
    lines = text_view.event_lines(shown, 4)
    assert lines == [*["12:00:00 a run was lost"] * 3, "2026-02-28 12:00:00 Worker[0] was killed"]
    (row,) = views.events(model, PageRequest(order="time", kind="worker")).rows
    assert (row["kind"], row["text"], row["host"]) == ("worker", "Worker[0] was killed", "vm")
    assert views.events(model, PageRequest(order="time")).total == count
