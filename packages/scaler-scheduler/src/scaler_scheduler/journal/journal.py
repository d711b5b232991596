"""Journal: the journal of a running scheduler, from its file to its core and back."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from scaler_protocol.plurals import counted
from scaler_scheduler.core.core import SchedulerCore
from scaler_scheduler.journal.commits import BEHIND_BYTES, Commits, Outgoing
from scaler_scheduler.journal.file import JournalFile
from scaler_scheduler.journal.ledger import Ledger
from scaler_scheduler.journal.replay import Replay
from scaler_scheduler.journal.writer import JournalWriter

LOGGER = logging.getLogger("scaler")
TIDY_SECONDS = 1.0
CLOSE_SECONDS = 10.0


class Journal:
    """Restores a core from a file, then records what happens to it; for the running loop of asyncio."""

    def __init__(self, path: Path, sync: str, core: SchedulerCore, key_limit: int | None = None) -> None:
        """`key_limit`: bytes that one key may have in it, by default a quarter of its disk. Raises JournalError."""
        self._core = core
        self._file = JournalFile(path, sync)
        self._ledger = Ledger(core.state, key_limit or shutil.disk_usage(path).total // 4)
        begun = time.monotonic()
        unreadable = Replay(core.restoration, self._ledger).tell(self._file.rows())
        core.restored(begun)
        core.state.recorder = self._ledger
        self._say_restored(path, time.monotonic() - begun, unreadable + self._file.damaged)
        self._loop = asyncio.get_running_loop()
        self._written: Callable[[], None] = lambda: None
        self._problem = self._said = ""
        self._writer = JournalWriter(self._file, self._on_commit, self._on_problem)
        self._commits = Commits(self._ledger, self._writer.put)
        self._timer = self._loop.call_later(TIDY_SECONDS, self._tidy)

    def hold(self, outgoing: Outgoing, cuts: list[bytes]) -> tuple[Outgoing, list[bytes]]:
        """`hold` of ServiceTurn."""
        ready = self._commits.hold(outgoing, cuts)
        self._say_problem()
        return ready

    def serve(self, written: Callable[[], None]) -> None:
        """Call `written` whenever outputs may leave."""
        self._written = written

    def close(self) -> None:
        """Commit what is left; outputs may leave then."""
        self._timer.cancel()
        self._written = lambda: None
        self._commits.put()
        if self._writer.close(CLOSE_SECONDS):
            self._commits.all_committed()

    def _tidy(self) -> None:
        self._timer = self._loop.call_later(TIDY_SECONDS, self._tidy)
        self._ledger.tidy()
        self._commits.put()

    def _on_commit(self, ticket: int) -> None:
        self._loop.call_soon_threadsafe(self._commit, ticket)

    def _commit(self, ticket: int) -> None:
        self._commits.committed(ticket)
        self._say_problem()
        if self._commits.is_waiting:
            self._written()

    def _on_problem(self, problem: str) -> None:
        self._loop.call_soon_threadsafe(self._note_problem, problem)

    def _note_problem(self, problem: str) -> None:
        self._problem = problem
        self._say_problem()

    def _say_problem(self) -> None:
        """Have the core refuse new work while the journal cannot be written, or not as fast as work comes."""
        behind = ""
        if self._commits.is_behind:  # it stays so until half of that waits
            most, least = BEHIND_BYTES // 2**20, BEHIND_BYTES // 2**21
            behind = (
                f"the journal's disk is too slow: {most:,} MiB waited for it; new work is taken below {least:,} MiB"
            )
        problem = self._problem or behind
        if problem != self._said:
            self._said = problem
            self._core.refuse_new_work(problem)

    def _say_restored(self, path: Path, seconds: float, unreadable: int) -> None:
        sessions = self._core.state.sessions.values()
        tasks = sum(len(session.tasks) for session in sessions)
        LOGGER.info(
            "Scheduler: journal %s: %s of %s, read in %.1f s",
            path, counted(tasks, "task"), counted(len(sessions), "client"), seconds,
        )  # fmt: skip
        if unreadable:
            LOGGER.error("Scheduler: journal %s: %s could not be read", path, counted(unreadable, "record"))
