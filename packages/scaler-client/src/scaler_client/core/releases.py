"""Releases: tells the scheduler in batches which outcomes it need not keep. Pure, no IO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scaler_protocol.messages import Release, pieces_of

RELEASE_SECONDS: Final = 0.05
RELEASE_TASKS: Final = 1024


class Releases:
    """Tasks whose outcomes have arrived and are not released yet."""

    def __init__(self) -> None:
        self._tasks: list[int] = []
        self.due: float | None = None
        """The latest time to release them (time.monotonic); None if there are none."""

    def add(self, tasks: Sequence[int], now: float) -> None:
        """Note that the outcomes of these tasks have arrived."""
        if tasks and not self._tasks:
            self.due = now + RELEASE_SECONDS
        self._tasks += tasks

    def take(self, now: float) -> list[Release]:
        """The messages to send now."""
        if self.due is None or (now < self.due and len(self._tasks) < RELEASE_TASKS):
            return []
        return self.take_with(())

    def take_with(self, tasks: Sequence[int]) -> list[Release]:
        """The messages that release all of them now, and `tasks`."""
        released = [*self._tasks, *tasks]
        self._tasks, self.due = [], None
        return list(map(Release, pieces_of(released)))
