"""HistoryFile: what is kept of a model, in one SQLite file that belongs to one process at a time. Blocks."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from scaler_io.private_files import open_private
from scaler_protocol.errors import ScalerError
from scaler_ui.model.failed_task import FAILURES
from scaler_ui.model.kept import TASKS, Kept, KeptFailure, KeptTask
from scaler_ui.model.minutes import Minute
from scaler_ui.model.workloads import DurationCounts, Workload

APPLICATION: Final = 0x5CA1E401
"""What the header of a file of ours says, at the offset where SQLite has the id of the application."""
VERSION: Final = 2
IN_USE: Final = "another process has it, another scaler_ui for example: end that one, or name another file"
_MAGIC: Final = b"SQLite format 3\x00"
_HEADER_BYTES: Final = 100
_UNSIGNED: Final = 2**64 - 1
_MOST: Final = 2**63 - 1
_SCHEMA: Final = (
    f"PRAGMA application_id = {APPLICATION - 2**32 * (APPLICATION >= 2**31)}",
    f"PRAGMA user_version = {VERSION}",
    "CREATE TABLE tasks (number INTEGER PRIMARY KEY, task INTEGER, function TEXT, session INTEGER, status INTEGER, "
    "agent TEXT, host TEXT, pid INTEGER, worker INTEGER, attempt INTEGER, submitted REAL, assigned REAL, ended REAL, "
    "duration INTEGER, cpu INTEGER, memory INTEGER, fetch INTEGER, store INTEGER)",
    "CREATE TABLE failures (number INTEGER PRIMARY KEY, task INTEGER, function TEXT, session INTEGER, status INTEGER, "
    "agent TEXT, host TEXT, ended REAL, error TEXT)",
    "CREATE TABLE clients (session INTEGER PRIMARY KEY, name TEXT)",
    "CREATE TABLE workloads (number INTEGER PRIMARY KEY, function TEXT, ended REAL, workload TEXT)",
    "CREATE TABLE minutes (at INTEGER PRIMARY KEY, rate REAL, latency REAL, waiting REAL, queued REAL, running REAL, "
    "cpu REAL, rss REAL)",
)


class ForeignFileError(ScalerError, OSError):
    """The file is no history of scaler_ui."""


class RemovedFileError(ScalerError, OSError):
    """The file was removed while it was in use."""


class DamagedFileError(ScalerError, ValueError):
    """The history is damaged."""


class HistoryFile:
    """At most `tasks` tasks and FAILURES failures, the last ones, and nothing that is older than `days`."""

    def __init__(self, path: Path, days: int, tasks: int = TASKS) -> None:
        self.path = path
        self.days = days
        self.damaged: Path | None = None
        """Where the last damaged file was moved to."""
        self._tasks = tasks
        self._database: sqlite3.Connection | None = None
        self._place: tuple[int, int] | None = None
        """Device and number of the file that is open."""
        self._size = 0
        self._log: int | None = None
        """The number of the file of SQLite's log beside it, which has what was written last."""
        self._unread = 0
        """Workloads of the file have numbers up to this one, and were not loaded: new ones are numbered after them."""

    @property
    def is_unread(self) -> bool:
        """Whether the file has more than its reader knows: it could not be read at the start."""
        return self._unread > 0

    def open(self) -> None:
        """Open the file, or create it; raises sqlite3.Error or OSError.

        That is ForeignFileError for a file of another program, which stays as it is.
        """
        if self._database is not None:
            self._check_there()
            return
        _check_ours(self.path)
        # Of relative ones SQLite takes `:memory:` for no file, and `file:…` for an address.
        path = self.path.absolute()
        database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            _begin_alone(database)
            if not database.execute("PRAGMA user_version").fetchone()[0]:
                for statement in _SCHEMA:
                    database.execute(statement)
            database.execute("COMMIT")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            self._unread = database.execute("SELECT ifnull(max(number), 0) FROM workloads").fetchone()[0]
        except BaseException:
            database.close()
            raise
        self._database = database
        found = os.stat(self.path)
        self._place, self._size = (found.st_dev, found.st_ino), found.st_size
        self._log = self._log_number()

    def _log_number(self) -> int | None:
        try:
            return os.stat(f"{self.path}-wal").st_ino
        except FileNotFoundError:
            return None

    def _check_there(self) -> None:
        """Raise RemovedFileError or sqlite3.DatabaseError for a file that others have removed or cut off."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._place:
            self.close()
            raise RemovedFileError("it was removed while it was in use")
        if self._log_number() != self._log:
            self.close()  # SQLite has the log open, and moves it to the file
            raise RemovedFileError(f"{self.path.name}-wal was removed while it was in use")
        if found.st_size < self._size:
            raise sqlite3.DatabaseError("it was cut off while it was in use")
        self._size = found.st_size

    def load(self) -> Kept:
        """What the file has; raises sqlite3.Error, or DamagedFileError."""
        self.open()
        try:
            kept = self._read()
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise DamagedFileError(f"a row cannot be read: {error}") from error
        self._unread = 0
        return kept

    def write(self, kept: Kept) -> None:
        """Add or replace these rows, and remove what is too old or too much, all or nothing."""
        self.open()
        database = self._opened()
        database.execute("BEGIN")
        try:
            self._add(database, kept)
            self._trim(database, kept.at)
            database.execute("COMMIT")
        except BaseException:
            # A full disk has ended the transaction already.
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the file."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def set_aside(self) -> None:
        """Rename the damaged file, so that a new one can be begun; raises OSError."""
        self.close()
        self.damaged = self.path.with_name(f"{self.path.name}.damaged")
        os.replace(self.path, self.damaged)
        for suffix in ("-wal", "-shm", "-journal"):  # they belong to the damaged file
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def _opened(self) -> sqlite3.Connection:
        assert self._database is not None
        return self._database

    def _read(self) -> Kept:
        def rows(table: str, columns: Iterable[str], order: str = "number") -> list[Any]:
            with closing(self._opened().execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}")) as found:
                return found.fetchall()

        return Kept(
            [KeptTask(task & _UNSIGNED, *others) for task, *others in rows("tasks", KeptTask._fields)],
            [_failure(row) for row in rows("failures", KeptFailure._fields)],
            {int(session): str(name) for session, name in rows("clients", ("session", "name"), "session")},
            [read_workload(text) for (text,) in rows("workloads", ("workload",))],
            [],
            [_minute(row) for row in rows("minutes", Minute._fields, "at")],
        )

    def _add(self, database: sqlite3.Connection, kept: Kept) -> None:
        def add(table: str, columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> None:
            places = ", ".join("?" * len(columns))
            database.executemany(f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({places})", rows)

        add("tasks", KeptTask._fields, (_signed_task(task) for task in kept.tasks))
        add("failures", KeptFailure._fields, (_signed(failure) for failure in kept.failures))
        add("clients", ("session", "name"), kept.clients.items())
        workloads = [replace(each, number=each.number + self._unread) for each in kept.workloads]
        rows = ((each.number, each.function, each.ended, write_workload(each)) for each in workloads)
        add("workloads", ("number", "function", "ended", "workload"), rows)
        forgotten = ((number + self._unread,) for number in kept.forgotten)
        database.executemany("DELETE FROM workloads WHERE number = ?", forgotten)
        add("minutes", Minute._fields, kept.minutes)

    def _trim(self, database: sqlite3.Connection, now: float) -> None:
        oldest = now - 86_400 * self.days
        for table, limit in (("tasks", self._tasks), ("failures", FAILURES)):
            database.execute(f"DELETE FROM {table} WHERE number <= (SELECT max(number) FROM {table}) - ?", (limit,))
            # Numbers grow with the time of the end, so that what is too old is found from the front.
            young = f"SELECT number FROM {table} WHERE ended >= ? ORDER BY number LIMIT 1"
            beyond = f"SELECT max(number) + 1 FROM {table}"
            database.execute(f"DELETE FROM {table} WHERE number < ifnull(({young}), ({beyond}))", (oldest,))
        database.execute("DELETE FROM workloads WHERE ended < ?", (oldest,))
        database.execute("DELETE FROM minutes WHERE at < ?", (oldest,))


def _begin_alone(database: sqlite3.Connection) -> None:
    """Begin a transaction; raise sqlite3.OperationalError if another process has the file."""
    try:
        database.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        raise sqlite3.OperationalError(IN_USE) from error


def _check_ours(path: Path) -> None:
    """Raise ForeignFileError if another program has made this file; a new one is created for this user alone."""
    if not os.path.lexists(path):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        return
    with open(path if sys.platform == "win32" else open_private(path, os.O_RDONLY), "rb") as file:
        header = file.read(_HEADER_BYTES)
    if not header:
        return
    if not header.startswith(_MAGIC) or int.from_bytes(header[68:72], "big") != APPLICATION:
        raise ForeignFileError("it is a file of another program: name another one")
    if (version := int.from_bytes(header[60:64], "big")) != VERSION:
        raise ForeignFileError(f"it has version {version} of the history, not {VERSION}: name another file")


def _failure(row: tuple[Any, ...]) -> KeptFailure:
    task, function, session, status, agent, host, ended, error = row
    names = str(agent), str(host)
    return KeptFailure(
        task & _UNSIGNED, str(function), int(session), int(status), *names, float(ended), str(error)
    )  # fmt: skip


def _minute(row: tuple[Any, ...]) -> Minute:
    at, rate, latency, *others = row
    return Minute(int(at), float(rate), None if latency is None else float(latency), *map(float, others))


def _signed(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row with numbers that SQLite can hold: its first column, the id of a task, is made signed."""
    return (row[0] - 2 * (row[0] & 2**63), *row[1:])


def _signed_task(task: KeptTask) -> tuple[Any, ...]:
    # Agents report what they like as costs.
    return (*_signed(task[:12]), *(min(cost, _MOST) for cost in task[12:]))


def write_workload(workload: Workload) -> str:
    """A workload as JSON."""
    # `asdict` would copy each number of its counts, which takes ten times as long.
    return json.dumps(workload, default=_values, separators=(",", ":"))


def _values(counted: Workload | DurationCounts) -> dict[str, Any]:
    return {each.name: getattr(counted, each.name) for each in fields(counted)}


def read_workload(text: str) -> Workload:
    """A workload from JSON; raises ValueError, TypeError, KeyError or AttributeError if it is none."""
    read = json.loads(text)
    runs, waits = (
        DurationCounts(float(each["total"]), float(each["longest"]), _counts(each["buckets"]))
        for each in (read.pop("runs"), read.pop("waits"))
    )
    return Workload(
        int(read["number"]), str(read["function"]), int(read["session"]), float(read["began"]), float(read["ended"]),
        _counts(read["endings"]), runs, waits, float(read["cpu"]), int(read["memory"]),
        {str(name): int(count) for name, count in read["exceptions"].items()}, float(read["transfers"]),
    )  # fmt: skip


def _counts(read: dict[str, int]) -> dict[int, int]:
    """Counts by whole numbers, which are texts in JSON."""
    return {int(number): int(count) for number, count in read.items()}
