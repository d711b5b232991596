"""The file of the journal: a table of rows in SQLite, with a write-ahead log."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scaler_protocol.errors import ScalerError
from scaler_scheduler.journal.records import Batch, Row

APPLICATION_ID: Final = 0x53434A4C
BALLAST_BYTES: Final = 16 * 1024 * 1024
"""Room on the disk that is reserved for records that must be written although the disk is full."""
CHECKPOINT_BYTES: Final = 4 * 1024 * 1024
"""Bytes written to the write-ahead log after which it is moved into the table; the ballast has room for that."""
ROOM_BYTES: Final = 2 * CHECKPOINT_BYTES
"""Room beside the ballast that a disk which was full must have."""
VACUUM_PAGES: Final = 2048
"""Most free pages returned to the file system with a checkpoint."""
_ROWS = 64
"""Most rows of one statement: sqlite3 releases the GIL, and acquires it again, once per statement."""
_TABLE = """CREATE TABLE IF NOT EXISTS log(
    number INTEGER PRIMARY KEY, kind INTEGER NOT NULL, session INTEGER NOT NULL, crc INTEGER NOT NULL,
    body BLOB NOT NULL)"""


class JournalError(ScalerError):
    """The journal cannot be used: another scheduler has it, it is damaged, or the file is not a journal."""


class JournalFile:
    """One open journal. All methods but the first reading are for one thread at a time."""

    def __init__(self, path: Path, sync: str) -> None:
        """`sync` is `normal` or `full`. Raises JournalError."""
        self.path = path = path.resolve()  # as SQLite does for its log: all its files are side by side
        self.damaged = 0
        """Rows that were skipped, since their checksum is wrong."""
        self._ballast = path.with_name(f"{path.name}-ballast")
        self._unsaved = 0
        self._lock = _lock(path)
        try:
            self._connection = _open(path, sync)
        except sqlite3.Error as error:
            remedy = f"{error}; name another file, or move it away"
            if not self.has_room():
                remedy = "the disk is full: make room, or name a file on another disk"
            os.close(self._lock)
            raise JournalError(f"journal {path} cannot be opened: {remedy}") from None
        except BaseException:
            os.close(self._lock)
            raise

    def rows(self) -> Iterator[Row]:
        """All rows in order; raises JournalError if the file is damaged."""
        try:
            for number, kind, session, crc, body in self._connection.execute(
                "SELECT number, kind, session, crc, body FROM log ORDER BY number"
            ):
                if zlib.crc32(body) == crc:
                    yield Row(number, kind, session, body)
                else:
                    self.damaged += 1
        except sqlite3.DatabaseError as error:
            raise JournalError(f"journal {self.path} is damaged: {error}; move it away to begin a new one") from None

    def write(self, batch: Batch) -> None:
        """Commit a batch; raises sqlite3.Error, and changes nothing, if that fails."""
        execute = self._connection.execute
        single = len(batch.rows) <= _ROWS and not batch.deleted
        if not single:
            execute("BEGIN IMMEDIATE")
        try:
            for at in range(0, len(batch.rows), _ROWS):
                part = batch.rows[at : at + _ROWS]
                values = [
                    value
                    for number, kind, session, body in part
                    for value in (number, kind, session, zlib.crc32(body), body)
                ]
                execute(f"INSERT OR REPLACE INTO log VALUES {_places('(?,?,?,?,?)', len(part))}", values)
            for at in range(0, len(batch.deleted), _ROWS):
                numbers = batch.deleted[at : at + _ROWS]
                execute(f"DELETE FROM log WHERE number IN ({_places('?', len(numbers))})", numbers)
            if not single:
                execute("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise
        self._unsaved += sum(len(row.body) for row in batch.rows) + 100 * len(batch.deleted)
        if self._unsaved >= CHECKPOINT_BYTES:
            with contextlib.suppress(sqlite3.OperationalError):  # a full disk: the log keeps what is committed
                self.checkpoint()

    def checkpoint(self) -> None:
        """Move the write-ahead log into the table, and give free pages back; raises sqlite3.Error."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._unsaved = 0
        self._connection.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")  # execute frees one page only

    def take_ballast(self) -> bool:
        """Reserve room on the disk for later; whether there was enough."""
        try:
            with open(self._ballast, "ab") as file:
                if file.tell() < BALLAST_BYTES:
                    os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)
        except OSError:
            self.drop_ballast()
            return False
        return True

    def has_room(self) -> bool:
        """Whether the disk has room beside the ballast for more than what was written when it was full."""
        disk = os.fstatvfs(self._lock)
        return disk.f_bavail * disk.f_frsize >= ROOM_BYTES

    def is_in_place(self) -> bool:
        """Whether the next scheduler would find this file: it was neither removed, nor replaced by another one."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._lock))
        except OSError:
            return False

    def drop_ballast(self) -> None:
        """Use the reserved room."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; another scheduler may open it then."""
        with contextlib.suppress(sqlite3.Error):
            self.checkpoint()
        self._connection.close()
        os.close(self._lock)


def _places(place: str, count: int) -> str:
    return ",".join([place] * count)


def _lock(path: Path) -> int:
    """Open the file, making it if need be, and lock it; raises JournalError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        remedy = "make its directory first" if error.errno == errno.ENOENT else "name another file"
        raise JournalError(f"journal {path} cannot be opened: {error.strerror}; {remedy}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EWOULDBLOCK:
            raise JournalError(
                f"journal {path} is in use by another scheduler: stop it, or name another file"
            ) from None
        raise JournalError(f"journal {path} cannot be locked: {error.strerror}") from None
    return descriptor


def _open(path: Path, sync: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=2 * _ROWS + 16)
    try:
        execute = connection.execute
        execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()  # first, or reading makes a further file, which needs room
        found = execute("PRAGMA application_id").fetchone()[0]
        if found != APPLICATION_ID and (found or execute("SELECT count(*) FROM sqlite_master").fetchone()[0]):
            raise JournalError(f"{path} is a database of another program: name another file for the journal")
        settings = ["journal_mode=WAL", f"synchronous={sync.upper()}", "wal_autocheckpoint=0"]
        if not found:  # one that is there is opened without writing, for its disk may be full
            settings = ["auto_vacuum=INCREMENTAL", *settings, f"application_id={APPLICATION_ID}"]
        for setting in settings:
            execute(f"PRAGMA {setting}").fetchall()
        execute(_TABLE)
    except BaseException:
        connection.close()
        raise
    return connection
