"""Releases: tells the scheduler in batches which outcomes it need not keep, and what was let go of. Pure, no IO."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from scaler_client.core.held_results import FREED_BYTES, HeldResults
from scaler_protocol.messages import Release, pieces_of

RELEASE_SECONDS: Final = 0.05
RELEASE_TASKS: Final = 1024


class Releases:
    """Tasks whose outcomes have arrived and are not released yet."""

    def __init__(self, held: HeldResults) -> None:
        self._held = held
        self._tasks: list[int] = []
        self._alone_until = -math.inf
        """Until then releases do not join other messages, because some just did."""
        self.due: float | None = None
        """The latest time to release them (time.monotonic); None if there are none."""

    def add(self, tasks: Sequence[int], now: float) -> None:
        """Note that the outcomes of these tasks have arrived."""
        if tasks and not self._tasks:
            self.due = now + RELEASE_SECONDS
        self._tasks += tasks

    def take(self, now: float, *, beside_others: bool) -> list[Release]:
        """The messages to send now; `beside_others`: there are others, with which these wake no process."""
        is_due = self.due is not None and now >= (self._alone_until if beside_others else self.due)
        if is_due or len(self._tasks) >= RELEASE_TASKS:
            self._alone_until = now + RELEASE_SECONDS
            return self.take_with(())
        return [Release((), self._held.take())] if self._held.freed >= FREED_BYTES else []

    def take_with(self, tasks: Sequence[int]) -> list[Release]:
        """The messages that release all of them now, and `tasks`."""
        released = [*self._tasks, *tasks]
        self._tasks, self.due = [], None
        first, *others = pieces_of(released)
        return [Release(first, self._held.take()), *map(Release, others)]
