"""Releases: which outcomes the scheduler need not keep any longer, said in batches. Pure, no IO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scaler_protocol.messages import Release

RELEASE_SECONDS: Final = 0.05
RELEASE_TASKS: Final = 1024


class Releases:
    """The tasks whose outcomes have arrived and were not released yet."""

    def __init__(self) -> None:
        self._tasks: list[int] = []
        self.due: float | None = None
        """When they are to be released at the latest; None where there are none."""

    def add(self, tasks: Sequence[int], now: float) -> None:
        """The outcomes of these have arrived."""
        if tasks and not self._tasks:
            self.due = now + RELEASE_SECONDS
        self._tasks += tasks

    def take(self, now: float) -> Release | None:
        """The message to send now, if one is due."""
        if self.due is None or (now < self.due and len(self._tasks) < RELEASE_TASKS):
            return None
        return self.take_with(())

    def take_with(self, tasks: Sequence[int]) -> Release:
        """The message that releases all of them at once, and these tasks."""
        release = Release([*self._tasks, *tasks])
        self._tasks, self.due = [], None
        return release
