"""Worker managers as sentences and fields."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from scaler_protocol.monitoring import MonitorStatus, TaskStep
from scaler_ui.model import cluster_views
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.reasons import why
from scaler_ui.model.tables import fields

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
