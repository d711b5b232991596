"""Resubmissions: tasks that failed because an input object was lost, and are run again. Pure, no IO.

Restarted storage has lost all objects; the client puts those it can rebuild there again. Until then the failure is held
back here, and its task stays outstanding. A requested node of a graph is rerun with all its inputs (`graph_state`),
since an intermediate node that failed has failed its consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from scaler_client.core.graph_state import GraphPiece
from scaler_client.core.records import OutstandingCall
from scaler_protocol.errors import ObjectNotFoundError, StorageLostError, restore
from scaler_protocol.messages import Done, Status

RESUBMISSION_LIMIT: Final = 2
"""How often a task is run again because an object was lost."""


class Resubmissions:
    """The failures held back, and the number of resubmissions of each task."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._held: dict[int, bytes] = {}

    def hold_back(self, done: Done, known: Mapping[int, OutstandingCall]) -> Sequence[int]:
        """The known tasks of a batch that failed because an object was lost, except intermediate nodes of graphs."""
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
        """Drop the counts of tasks that have ended."""
        for task in tasks if self._counts else ():
            self._counts.pop(task, None)
            self._held.pop(task, None)

    def take(self, tasks: Sequence[int]) -> Mapping[int, bytes]:
        """Remove and return the failures held back for these tasks."""
        return {task: self._held.pop(task) for task in tasks if task in self._held}


def _is_loss(payload: bytes) -> bool:
    return isinstance(restore(payload), ObjectNotFoundError | StorageLostError)
