"""Rows of a monitor's table of tasks."""

from __future__ import annotations

from collections.abc import Collection

from scaler_ui.model.task_table import TaskTable


def live_rows(tasks: TaskTable) -> Collection[int]:
    """The rows of tasks that have not ended."""
    return [row for _, row in tasks._live.items()]
