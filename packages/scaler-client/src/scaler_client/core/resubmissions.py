"""Resubmissions: tasks that failed because an input object was lost, and are run again. Pure, no IO.

A restarted storage server has lost all objects. The client stores those again that it can rebuild, and then submits
the failed tasks again. Until then such a task stays outstanding, and its failure is kept here instead of delivered. A
requested node of a graph is rerun with all its inputs (`graph_state`), since an intermediate node that failed has
failed its consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from scaler_client.core.graph_state import GraphPiece
from scaler_client.core.records import OutstandingCall, is_call_known
from scaler_protocol.errors import ObjectNotFoundError, StorageLostError, restore
from scaler_protocol.messages import Done, Status

RESUBMISSION_LIMIT: Final = 2
"""How often a task is run again because an object was lost."""


class Resubmissions:
    """The failures of tasks that will be submitted again, and the number of resubmissions of each task."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._failures: dict[int, bytes] = {}

    def keep_failures(self, done: Done, outstanding: Mapping[int, OutstandingCall]) -> Sequence[int]:
        """Keep the failures of a batch after which a task is to be submitted again; returns these tasks.

        Intermediate nodes of graphs are not among them.
        """
        if Status.FAILED not in done.statuses:
            self.forget(done.tasks)
            return ()
        kept = []
        for task, status, payload in zip(done.tasks, done.statuses, done.results, strict=True):
            count, known = self._counts.pop(task, 0), self._failures.pop(task, None)
            # A restarted scheduler sends outcomes again that were not released: a failure that is kept is counted.
            limit = RESUBMISSION_LIMIT if known is None else RESUBMISSION_LIMIT + 1
            if status != Status.FAILED or count >= limit or not _is_loss(payload):
                continue
            call = outstanding.get(task)
            if call is not None and is_call_known(call) and not isinstance(call, GraphPiece):
                self._counts[task] = count + (known is None)
                self._failures[task] = bytes(payload)
                kept.append(task)
        return kept

    def forget(self, tasks: Iterable[int]) -> None:
        """Drop what is known of tasks that have ended."""
        for task in tasks if self._counts else ():
            self._counts.pop(task, None)
            self._failures.pop(task, None)

    def failure(self, task: int) -> bytes | None:
        """The failure of a task that will be submitted again."""
        return self._failures.get(task)

    def take_failures(self, tasks: Sequence[int]) -> Mapping[int, bytes]:
        """Remove and return the failures of these tasks."""
        return {task: self._failures.pop(task) for task in tasks if task in self._failures}


def _is_loss(payload: bytes) -> bool:
    return isinstance(restore(payload), ObjectNotFoundError | StorageLostError)
