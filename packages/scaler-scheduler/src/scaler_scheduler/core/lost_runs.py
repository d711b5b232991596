"""Lost runs: which of them count for their task, and whether the task runs again."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from scaler_protocol.errors import MemoryLimitError, WorkerDiedError, describe, restore
from scaler_protocol.plurals import counted
from scaler_scheduler.core.pinned import is_pinned
from scaler_scheduler.core.records import TaskRecord
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.suspects import Blame


class LostRuns:
    """Counts the runs of tasks that were lost with their worker or their agent."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def is_repeated(self, record: TaskRecord, payload: bytes) -> bool:
        """Count a run that was lost with its worker; returns whether the task runs again.

        A run that used too much memory is not charged: the first time, the task runs again, alone on a host. Neither is
        one that had ended when its worker died.
        """
        notes, error = record.note(), restore(payload)
        notes.earlier_runs += 1
        if is_pinned(record):
            notes.lost_runs += 1
            return False
        if isinstance(error, MemoryLimitError):
            first, notes.exclusive = not notes.exclusive, True
            return first
        if error.details.get("charged") is False:
            return True
        notes.lost_runs += 1
        self._state.event_log.lost_runs += 1
        return self.is_below_limit(record)

    def count_with_agent(self, record: TaskRecord, blamed: Blame, on_workers: AbstractSet[int]) -> None:
        """Count a run that was lost with its agent."""
        notes = record.note()
        before = notes.lost_runs, notes.shared_losses, notes.earlier_runs
        self._state.event_log.lost_runs += record.run in blamed.running
        if record.run in on_workers:
            notes.earlier_runs += 1
            notes.counted = record.run
        if record.run in blamed.charged:
            notes.lost_runs += 1
            notes.charged, notes.suspect = record.run, True
        elif record.run in blamed.suspected:
            notes.shared_losses += record.run in blamed.running
            notes.suspect = True
        if self._state.recorder is not None and before != (notes.lost_runs, notes.shared_losses, notes.earlier_runs):
            self._state.recorder.attempts(record)

    def is_retried(self, record: TaskRecord, run: int) -> bool:
        """Count a run that was given up as lost and has raised after all, if the task has retries left."""
        if not (retries := record.group.group.retries) or (notes := record.note()).raised_runs >= retries:
            return False
        notes.raised_runs += 1
        notes.earlier_runs += notes.counted != run
        if notes.charged == run:
            notes.lost_runs -= 1
            notes.charged = 0
        notes.given_up = tuple(each for each in notes.given_up if each[0] != run)
        return True

    def is_below_limit(self, record: TaskRecord) -> bool:
        """Whether the task may run again after the runs that were charged to it."""
        return not is_pinned(record) and record.note().lost_runs < self._state.config.lost_run_limit


def too_often(record: TaskRecord, payload: bytes) -> bytes:
    """The error of a task whose run was lost, as `payload` says, and that does not run again."""
    error = restore(payload)
    if isinstance(error, MemoryLimitError):
        return payload
    if is_pinned(record):
        return payload
    runs = record.notes.lost_runs if record.notes else 1
    limit = WorkerDiedError(f"{error} ({counted(runs, 'run')} lost; that is the limit)")
    limit.details = {**error.details, "runs": runs}
    return describe(limit)
