"""A journal in memory that outlives schedulers.

It takes time to commit, and the last batches of a scheduler that is killed may be lost.
"""

from __future__ import annotations

from collections.abc import Callable

from scaler_io.simulation.network import MemoryNetwork
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.core import SchedulerCore
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_states import DONE
from scaler_scheduler.journal.commits import Commits
from scaler_scheduler.journal.ledger import Ledger
from scaler_scheduler.journal.records import Batch, RecordKind, Row
from scaler_scheduler.journal.replay import Replay

COMMIT_SECONDS = 0.002


class Disk:
    """What is committed; all that a new scheduler finds."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}

    def write(self, batch: Batch) -> None:
        """Commit a batch."""
        for row in batch.rows:
            self.rows[row.number] = row
        for number in batch.deleted:
            self.rows.pop(number, None)

    def restore(self, core: SchedulerCore, now: float) -> Ledger:
        """Tell a new core all of it."""
        ledger = Ledger(core.state)
        unreadable = Replay(core.restoration, ledger).tell([self.rows[number] for number in sorted(self.rows)])
        assert not unreadable, f"{unreadable} rows cannot be read"
        core.restored(now)
        core.check()
        return ledger

    def task_rows(self) -> list[Row]:
        """Rows about tasks."""
        others = (RecordKind.SESSION, RecordKind.AGENT, RecordKind.FUNCTIONS)
        return [row for row in self.rows.values() if row.kind not in others]


class MemoryJournal:
    """The journal of one life of a scheduler."""

    def __init__(
        self,
        network: MemoryNetwork,
        disk: Disk,
        core: SchedulerCore,
        is_alive: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        self._network = network
        self._disk = disk
        self._core = core
        self._is_alive = is_alive
        self._wake = wake
        self._lost = False
        self._waiting: list[tuple[int, Batch]] = []
        self.ledger = disk.restore(core, network.now)
        core.state.recorder = self.ledger
        self.commits = Commits(self.ledger, self._put)

    def _put(self, ticket: int, batch: Batch) -> None:
        self._waiting.append((ticket, batch))
        self._network.at(self._network.now + COMMIT_SECONDS, self._commit)

    def _commit(self) -> None:
        ticket, batch = self._waiting.pop(0)
        if not self._is_alive():  # the kernel may have had it
            self._lost = self._lost or self._network.random.random() < 0.5
        if not self._lost:
            self._disk.write(batch)
            self.commits.committed(ticket)
            if self._is_alive():
                self._wake()

    def check(self) -> None:
        """Assert that another scheduler would know what this one knows, if all were committed."""
        copy = Disk()
        copy.rows.update(self._disk.rows)
        self.commits.put()
        for _, batch in self._waiting:
            copy.write(batch)
        core = SchedulerCore(1, SchedulerConfig())
        copy.restore(core, self._network.now)
        assert _tasks(core.state) == _tasks(self._core.state)

    def check_nothing_is_held(self) -> None:
        """No row is left of tasks that have ended."""
        before = -1
        while len(self.ledger) != before:  # a Submit keeps the rows of those whose results it needs until it is gone
            before = len(self.ledger)
            self.ledger.tidy()
        self.commits.put()
        while self._waiting:
            self._disk.write(self._waiting.pop(0)[1])
        assert not self._disk.task_rows(), self._disk.task_rows()


def _tasks(state: SchedulerState) -> dict[int, dict[int, bool]]:
    """Which tasks have ended, by session."""
    return {
        number: {task: record.state == DONE for task, record in session.tasks.items()}
        for number, session in state.sessions.items()
        if not session.nested
    }
