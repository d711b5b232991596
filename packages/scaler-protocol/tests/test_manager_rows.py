"""What worker managers have, want and wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaler_protocol.manager_rows import ManagerRow, manager_rows
from scaler_protocol.monitoring import MonitorStatus

GRID = ManagerRow("grid", "slurm", "here", -1, 8, 4, 4, 0, "90 s of work", "", 0.0)
STATUS = MonitorStatus(
    1, 5.0, managers=["grid"], manager_kinds=["slurm"], manager_hosts=["here"], manager_maximums=[-1],
    manager_desired=[8], manager_joined=[4], manager_starting=[4], manager_draining=[0],
    manager_reasons=["90 s of work"], manager_failures=[""], manager_pauses=[0.0],
)  # fmt: skip


def test_rows_have_the_fields_of_the_status() -> None:
    assert manager_rows(STATUS) == [GRID] and manager_rows(MonitorStatus(1, 5.0)) == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (GRID, "worker manager grid starts 4 workers: 90 s of work"),
        (replace(GRID, starting=1), "worker manager grid starts 1 worker: 90 s of work"),
        (replace(GRID, starting=0, desired=1), "worker manager grid wants 1 worker: 90 s of work"),
        (replace(GRID, failure="no quota", pause=12.0), "worker manager grid is paused for 12.0 s: no quota"),
        (replace(GRID, starting=0), "worker manager grid wants 8 workers: 90 s of work"),
        (
            replace(GRID, starting=0, desired=0, reason="", failure="no quota"),
            "worker manager grid wants 0 workers: no decision; last failure: no quota",
        ),
    ],
)
def test_what_a_manager_does_is_one_sentence(row: ManagerRow, said: str) -> None:
    assert row.standing == said
