"""Resubmissions: tasks that failed because an input object was lost, and are run again. Pure, no IO.

A restarted storage server has lost all objects. The client rebuilds the objects that it can, stores them, and then
submits the failed tasks again, however many servers are lost, but a limited number of times for each. Until then such a
task stays outstanding, and its failure is kept here, not delivered. A requested node of a graph is rerun with all its
inputs (`graph_state`), because the failure of an intermediate node has made its consumers fail, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from scaler_client.core.graph_state import GraphPiece
from scaler_client.core.records import OutstandingCall, is_call_known
from scaler_protocol.errors import ObjectNotFoundError, StorageLostError, restore
from scaler_protocol.messages import Done, Status
from scaler_protocol.profiles import NO_PROFILE, PROFILE

RESUBMISSION_LIMIT: Final = 2
"""How often a task is run again for each storage server because an object was lost."""


class Resubmissions:
    """The failures of tasks that will be submitted again, and the number of resubmissions of each task."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._failures: dict[int, bytes] = {}
        self._profiles: dict[int, bytes] = {}
        """By task, the profile of the run whose failure was counted last."""
        self._server = 0
        """The storage server at which objects were stored again last."""
        self._told_again: set[int] = set()
        """Tasks whose last failure a new scheduler may report again, because it may not know that they run again."""

    def scheduler_changed(self) -> None:
        """Another scheduler will report all outcomes that it knows; it may know less than the one before."""
        self._told_again = set(self._counts)

    def restored(self, server: int) -> None:
        """Objects are stored again, at this server: what tasks missed at servers that are lost counts no more."""
        if self._server not in (0, server):
            self._counts = dict.fromkeys(self._counts, 0)
        self._server = server

    def keep_failures(self, done: Done, outstanding: Mapping[int, OutstandingCall]) -> Sequence[int]:
        """Keep the failures of a batch after which a task is to be submitted again; returns these tasks.

        Intermediate nodes of graphs are not among them.
        """
        if Status.FAILED not in done.statuses:
            self.forget(done.tasks)
            return ()
        kept = []
        for position, (task, status, payload) in enumerate(zip(done.tasks, done.statuses, done.results, strict=True)):
            profile = done.profiles[position * PROFILE.size : (position + 1) * PROFILE.size]
            # A restarted scheduler sends outcomes again that were not released: such a failure is counted already.
            is_counted = task in self._failures or self._is_told_again(task, profile)
            count = self._counts.get(task, 0)
            self.forget((task,))
            limit = RESUBMISSION_LIMIT + is_counted
            if status != Status.FAILED or count >= limit or not _is_loss(payload):
                continue
            call = outstanding.get(task)
            if call is not None and is_call_known(call) and not isinstance(call, GraphPiece):
                self._counts[task] = count + (not is_counted)
                self._failures[task], self._profiles[task] = bytes(payload), profile
                kept.append(task)
        return kept

    def _is_told_again(self, task: int, profile: bytes) -> bool:
        """Whether this is the failure that was counted last. A failure that a task has from an input has no profile."""
        return task in self._told_again and profile == self._profiles[task] != NO_PROFILE

    def forget(self, tasks: Iterable[int]) -> None:
        """Drop what is known of tasks that have ended."""
        for task in tasks if self._counts else ():
            self._counts.pop(task, None)
            self._failures.pop(task, None)
            self._profiles.pop(task, None)
            self._told_again.discard(task)

    def failure(self, task: int) -> bytes | None:
        """The failure of a task that will be submitted again."""
        return self._failures.get(task)

    def take_failures(self, tasks: Sequence[int]) -> Mapping[int, bytes]:
        """Remove and return the failures of these tasks."""
        return {task: self._failures.pop(task) for task in tasks if task in self._failures}


def _is_loss(payload: bytes) -> bool:
    return isinstance(restore(payload), ObjectNotFoundError | StorageLostError)
