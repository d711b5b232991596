"""Ids for the tasks of one session: no id is given out twice, whichever threads ask."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

from scaler_protocol.ids import LAST_COUNT, first_task


class TaskIds:
    """Single ids count up from the session's first, blocks of consecutive ids come down from its last."""

    def __init__(self, session: int) -> None:
        self.next_task: Callable[[], int] = count(first_task(session) + 1).__next__
        self._blocks_from: int = first_task(session) + LAST_COUNT + 1
        self._lock = threading.RLock()  # a signal handler may submit in the middle of a submission

    def next_tasks(self, size: int) -> int:
        """The first of `size` consecutive ids."""
        with self._lock:
            first: int = self._blocks_from - size
            self._blocks_from = first
            return first
