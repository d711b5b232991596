"""JournalWriter: a thread that commits batches to the journal's file. Those that come meanwhile are the next one."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

from scaler_scheduler.journal.file import BALLAST_BYTES, ROOM_BYTES, JournalFile
from scaler_scheduler.journal.records import Batch

LOGGER = logging.getLogger("scaler")
RETRY_SECONDS = 0.5
"""Time between attempts to write to a disk that is full, or to get the reserved room back."""
Ticketed = tuple[int, Batch]


class JournalWriter:
    """Owns the file until it is closed. Calls back from its thread."""

    def __init__(self, file: JournalFile, committed: Callable[[int], object], refused: Callable[[str], object]) -> None:
        """`committed` is told the ticket of the last batch on disk; `refused` why no new work can be taken, or ""."""
        self._file = file
        self._committed = committed
        self._refused = refused
        self._queue: SimpleQueue[Ticketed | None] = SimpleQueue()
        self._problem = ""
        self._look_at = 0.0
        self._failed = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def put(self, ticket: int, batch: Batch) -> None:
        """Commit a batch soon; tickets ascend."""
        self._queue.put((ticket, batch))

    def close(self, timeout: float) -> bool:
        """Commit the waiting batches, for at most `timeout` seconds, and close the file; whether all are on disk."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join(timeout)
        if not self._failed and not self._thread.is_alive():
            return True
        reason = self._problem or "its disk hangs"
        LOGGER.error("Scheduler: the journal could not be written to the end: %s", reason)
        return False

    def _run(self) -> None:
        self._look_for_room()
        for ticket, batch in self._batches():
            if self._write(batch):
                self._committed(ticket)
                if not self._file.is_in_place():
                    self._say(self._gone)
            else:
                self._failed = True
        self._file.close()

    def _batches(self) -> Iterator[Ticketed]:
        """Commit all waiting batches as one, repeatedly, until the end."""
        while True:
            if self._problem and time.monotonic() >= self._look_at:
                self._look_for_room()
            try:
                first = self._queue.get(timeout=RETRY_SECONDS if self._problem else None)
            except Empty:
                continue
            waiting = [first]
            while not self._queue.empty():
                waiting.append(self._queue.get())
            batches = [entry for entry in waiting if entry is not None]
            if batches:
                rows = [row for _, batch in batches for row in batch.rows]
                yield batches[-1][0], Batch(rows, [number for _, batch in batches for number in batch.deleted])
            if None in waiting:
                return

    def _write(self, batch: Batch) -> bool:
        """Write until that succeeds; False if the journal was closed meanwhile."""
        while True:
            try:
                self._file.write(batch)
            except Exception as error:  # without the thread nothing would leave the scheduler
                is_new = not self._problem
                self._say(self._reason(error))
                self._file.drop_ballast()
                if not is_new:
                    if self._closing.is_set():
                        return False
                    time.sleep(RETRY_SECONDS)
            else:
                return True

    def _look_for_room(self) -> None:
        """Reserve room on the disk; new work is taken only with it."""
        self._look_at = time.monotonic() + RETRY_SECONDS
        if self._problem:
            with contextlib.suppress(sqlite3.Error):
                self._file.checkpoint()
        if not self._file.is_in_place():
            self._say(self._gone)
        elif not self._file.take_ballast():
            self._say(self._full)
        elif self._file.has_room():
            self._say("")

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._refused(problem)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, sqlite3.OperationalError) and "full" in str(error):
            return self._full
        return f"the journal {self._file.path} cannot be written: {error}"

    @property
    def _full(self) -> str:
        needed = (BALLAST_BYTES + ROOM_BYTES) // 2**20
        return f"the journal's disk is full: {needed} MiB must be free for {self._file.path}"

    @property
    def _gone(self) -> str:
        return f"the journal {self._file.path} was removed or replaced: restart the scheduler, which makes a new one"
