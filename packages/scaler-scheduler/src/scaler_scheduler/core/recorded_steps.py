"""Recorded steps: batches of tasks in order, in columns, until monitors are sent them. Pure, no IO."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final

from scaler_protocol.byte_planes import to_planes
from scaler_protocol.monitoring import PACKED_BATCH, PACKED_ID, TaskStep
from scaler_protocol.profiles import PROFILE

TOGETHER: Final = 2**19
"""Tasks of one message, if a single batch does not have more: its columns are then no longer than monitors accept."""
_WITH_OUTCOMES: Final = (TaskStep.ENDED, TaskStep.AGAIN)


def little_endian(column: array[int]) -> bytes:
    """The bytes of a column as messages have them."""
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


class RecordedSteps:
    """The batches that were not taken yet."""

    def __init__(self) -> None:
        self._batches: list[tuple[int, int, int, float]] = []
        """Step, subject, how many tasks, and when: packed when they are taken, many at once."""
        self._tasks: list[int] = []
        self._runs: list[int] = []
        """The run of the first task of each ASSIGNED batch."""
        self._statuses: list[int] = []
        self._profiles: list[bytes] = []
        """Those of each batch with outcomes."""

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, step: int, subject: int, tasks: Sequence[int], at: float) -> None:
        """Record that these tasks have made this step."""
        self._batches.append((step, subject, len(tasks), at))
        self._tasks += tasks

    def add_run(self, first_run: int) -> None:
        """The batch that was added last is ASSIGNED, and this is the run of its first task."""
        self._runs.append(first_run)

    def add_outcomes(self, statuses: Iterable[int], profiles: bytes) -> None:
        """The batch that was added last is ENDED or AGAIN, and these are the outcomes of its tasks."""
        self._statuses += statuses
        self._profiles.append(profiles)

    def take(self) -> dict[str, Any]:
        """The columns of the first batches, of at most TOGETHER tasks or a single one, which are forgotten."""
        batches = self._batches[: self._fitting()]
        tasks = sum(size for _, _, size, _ in batches)
        assigned = sum(step == TaskStep.ASSIGNED for step, _, _, _ in batches)
        outcomes = [size for step, _, size, _ in batches if step in _WITH_OUTCOMES]
        pack = PACKED_BATCH.pack
        packed = b"".join([pack(step, subject, size, int(1e6 * at)) for step, subject, size, at in batches])
        columns = {
            "batches": to_planes(packed, PACKED_BATCH.size),
            "runs": to_planes(little_endian(array("Q", self._runs[:assigned])), PACKED_ID.size),
            "tasks": to_planes(little_endian(array("Q", self._tasks[:tasks])), PACKED_ID.size),
            "statuses": to_planes(bytes(self._statuses[: sum(outcomes)]), 1),
            "profiles": to_planes(b"".join(self._profiles[: len(outcomes)]), PROFILE.size),
        }
        del self._batches[: len(batches)], self._tasks[:tasks], self._runs[:assigned]
        del self._statuses[: sum(outcomes)], self._profiles[: len(outcomes)]
        return columns

    def _fitting(self) -> int:
        """How many batches go into one message."""
        if len(self._tasks) <= TOGETHER:
            return len(self._batches)
        total = 0
        for place, (_, _, size, _) in enumerate(self._batches):
            total += size
            if total > TOGETHER:
                return max(1, place)
        return len(self._batches)
