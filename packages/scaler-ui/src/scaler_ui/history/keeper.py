"""HistoryKeeper: writes what becomes known to a model into its file, from a thread of its own."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import Final

from scaler_protocol.errors import ScalerError
from scaler_ui.history.file import HistoryFile
from scaler_ui.model.kept import Changes, HistoryState, Kept, restore
from scaler_ui.model.model import MonitorModel

UNWRITTEN_ROWS: Final = 500_000
"""Rows that wait for the disk; what comes when there are more is not kept."""
END_SECONDS: Final = 10.0
"""How long the end of the program waits for the disk."""
_FAULTS = (sqlite3.Error, OSError, ScalerError, MemoryError)
_log = logging.getLogger(__name__)


class HistoryKeeper:
    """Not thread-safe; only `_run` is another thread's. A fault of the file is told, and tried again: nothing ends."""

    def __init__(self, file: HistoryFile, model: MonitorModel) -> None:
        self._file = file
        self._model = model
        self._fault = ""
        self._left_out = self._handed = self._done = 0
        self._queue: SimpleQueue[Kept | None] = SimpleQueue()
        self._unwritten: deque[Kept] = deque()
        self._restore()
        self._changes = Changes(model)
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    @property
    def state(self) -> HistoryState:
        """How it goes."""
        damaged = self._file.damaged
        path, days = str(self._file.path), self._file.days
        damaged_to = str(damaged) if damaged else ""
        return HistoryState(path, days, self._fault, damaged_to, self._left_out, self._file.is_unread)

    @property
    def is_idle(self) -> bool:
        """Whether all that was handed over is written."""
        return self._done == self._handed

    def turn(self) -> None:
        """Hand over what has become known since the last turn. Does not block."""
        kept = self._changes.take()
        kept.at = min(kept.at, time.time())  # a clock that is ahead makes nothing old
        if self._handed - self._done + len(kept) > UNWRITTEN_ROWS:
            self._left_out += len(kept)
            kept = Kept()
        if len(kept) or self._fault:
            self._handed += len(kept)
            self._queue.put(kept)

    def close(self) -> None:
        """Write the rest, and end; a disk that does not answer is waited for END_SECONDS."""
        self.turn()
        self._queue.put(None)
        self._thread.join(END_SECONDS)

    def _restore(self) -> None:
        try:
            try:
                restore(self._model, self._file.load())
            except (sqlite3.DatabaseError, TypeError, ValueError, OverflowError) as error:
                self._set_aside(error)
        except _FAULTS as error:
            self._tell(error)

    def _run(self) -> None:
        while (kept := self._queue.get()) is not None:
            self._unwritten.append(kept)
            try:
                self._write()
            except _FAULTS as error:
                self._tell(error)
            else:
                self._tell(None)
        self._file.close()

    def _write(self) -> None:
        try:
            self._write_all()
        except sqlite3.DatabaseError as error:
            self._set_aside(error)
            self._write_all()

    def _write_all(self) -> None:
        while self._unwritten:
            self._file.write(self._unwritten[0])
            self._done += len(self._unwritten.popleft())

    def _set_aside(self, error: Exception) -> None:
        """Begin a new file if this one is damaged; otherwise raise the error."""
        # Of a file that it cannot reach SQLite raises subclasses of DatabaseError; of a damaged one that itself.
        if isinstance(error, sqlite3.DatabaseError) and type(error) is not sqlite3.DatabaseError:
            raise error
        self._file.set_aside()
        _log.warning(_DAMAGED, self._file.path, self._file.damaged, error)

    def _tell(self, error: Exception | None) -> None:
        fault = "" if error is None else _described(error)
        if fault and not self._fault:
            _log.warning("the history is not kept, which is tried again: %s: %s", self._file.path, fault)
        elif self._fault and not fault:
            _log.warning("the history is kept again: %s", self._file.path)
        self._fault = fault


def _described(error: Exception) -> str:
    """What is wrong, and what helps, where the error does not say so itself."""
    if isinstance(error, MemoryError):
        return "there is too little memory: raise the limit of scaler_ui, or end other programs"
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return next((f"{said}: {remedy}" for part, remedy in _REMEDIES.items() if part in said.lower()), said)


_REMEDIES: Final = {
    "is full": "make room on its disk",
    "no space": "make room on its disk",
    "quota": "make room on its disk",
    "disk i/o error": "look whether its disk is full or broken, or name another file",
    "no such file": "make its folder, or name another file",
    "unable to open": "let scaler_ui write in its folder, or name another file",
    "read-only": "let scaler_ui write there, or name another file",
    "readonly": "let scaler_ui write there, or name another file",
    "permission denied": "let scaler_ui write there, or name another file",
}
"""What helps, by a part of what SQLite or the system says."""
_DAMAGED: Final = "the history %s was damaged: it is now %s, and a new one begins: %s"
