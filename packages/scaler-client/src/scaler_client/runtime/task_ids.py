"""Task ids of one session, each given out once. Thread-safe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from scaler_io.reentrant_lock import ReentrantLock
from scaler_protocol.errors import SessionExhaustedError
from scaler_protocol.ids import LAST_COUNT, first_task

SINGLES: Final = 4096
"""Single ids are reserved in ranges of this size; the rest of the last range stays unused."""


class TaskIds:
    """Single ids count up from the session's first, blocks of consecutive ids come down from its last.

    When they meet, `on_end` is called and SessionExhaustedError, which names `remedy`, is raised.
    """

    def __init__(
        self,
        session: int,
        remedy: str = "make another Client and use that one",
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self.session = session
        self._remedy, self._on_end = remedy, on_end
        self._singles: list[int] = []
        """Reserved single ids, the next one last."""
        self._singles_from = first_task(session) + 1
        self._blocks_from = first_task(session) + LAST_COUNT + 1
        self._lock = ReentrantLock()  # a signal handler may submit in the middle of a submission

    def resume(self, session: int, unused: tuple[int, int]) -> None:
        """Continue a session of an earlier process before any id was given out; `unused` are the counts left."""
        self.session = session
        self._singles_from = first_task(session) + max(1, unused[0])
        self._blocks_from = first_task(session) + unused[1] + 1

    def next_task(self) -> int:
        """One id."""
        while True:
            try:
                return self._singles.pop()  # atomic, also without the GIL
            except IndexError:
                self._reserve_singles()

    def _reserve_singles(self) -> None:
        with self._lock:
            if self._singles:  # another thread has come first
                return
            # A signal handler that submits comes between calls, so not between reading a counter and writing it.
            first: int = self._singles_from
            self._singles_from = first + SINGLES
            if self._singles_from > self._blocks_from:
                self._singles_from -= SINGLES
                self._refuse(1)
            self._singles = list(range(first + SINGLES - 1, first - 1, -1))

    def next_tasks(self, size: int) -> int:
        """The first of `size` consecutive ids."""
        with self._lock:
            first: int = self._blocks_from - size
            self._blocks_from = first
            if first < self._singles_from:
                self._blocks_from += size
                self._refuse(size)
            return first

    def _refuse(self, size: int) -> NoReturn:
        self._on_end()
        raise SessionExhaustedError(
            f"no task ids are left for {size:,} more task{'s' if size > 1 else ''}: a session has {LAST_COUNT:,} task"
            f" ids; {self._remedy} (running calls and finished futures stay valid)"
        )
