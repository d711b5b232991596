"""Resubmissions: tasks that failed because an object of theirs was not to be had, and are run again. Pure, no IO.

Storage that is started again has lost everything; what this process still holds is put there once more. Until that is
done the outcome is held back here, and its task counts as under way. A requested node of a graph goes with all that it
takes (`graph_records`): an inner one that failed has failed those that take it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from scaler_client.core.graph_state import GraphPiece
from scaler_client.core.records import OutstandingCall
from scaler_protocol.errors import ObjectNotFoundError, StorageLostError, restore
from scaler_protocol.messages import Done, Status

RESUBMISSION_LIMIT: Final = 2
"""How often a task is run again for this."""


class Resubmissions:
    """Which failures are held back, and how often a task had one."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._held: dict[int, bytes] = {}

    def hold(self, done: Done, known: Mapping[int, OutstandingCall]) -> Sequence[int]:
        """The tasks of an outcome, of those that are known, that are to be run again; inner nodes go with others."""
        if Status.FAILED not in done.statuses:
            self.forget(done.tasks)
            return ()
        held = []
        for task, status, payload in zip(done.tasks, done.statuses, done.results, strict=True):
            count = self._counts.pop(task, 0)
            if status != Status.FAILED or count >= RESUBMISSION_LIMIT or not _is_loss(payload):
                continue
            if task in known and not isinstance(known[task], GraphPiece):
                self._counts[task] = count + 1
                self._held[task] = bytes(payload)
                held.append(task)
        return held

    def forget(self, tasks: Iterable[int]) -> None:
        """These have ended."""
        for task in tasks if self._counts else ():
            self._counts.pop(task, None)
            self._held.pop(task, None)

    def take(self, tasks: Sequence[int]) -> Mapping[int, bytes]:
        """Of these, what was held back."""
        return {task: self._held.pop(task) for task in tasks if task in self._held}


def _is_loss(payload: bytes) -> bool:
    return isinstance(restore(payload), ObjectNotFoundError | StorageLostError)
