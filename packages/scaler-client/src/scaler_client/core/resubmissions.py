"""Resubmissions: tasks that failed because an input object was lost, and are run again. Pure, no IO.

A restarted storage server has lost all objects. The client rebuilds the objects that it can, stores them, and then
submits the failed tasks again, however many servers are lost, but a limited number of times for each. Until then such a
task stays outstanding, and its failure is kept here, not delivered. A requested node of a graph is rerun with all its
inputs (`graph_state`), because the failure of an intermediate node has made its consumers fail, too.

A restarted scheduler reports outcomes again that were not released, and consumers fail again with the earlier failures
of their inputs. A loss names the run that has met it, whoever fails with it. So a failure that a new scheduler reports
is counted unless its run was known when the task was submitted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from scaler_client.core.graph_state import GraphPiece
from scaler_client.core.records import OutstandingCall, is_call_known
from scaler_protocol.errors import ScalerError, is_loss, restore
from scaler_protocol.messages import Done, Status

RESUBMISSION_LIMIT: Final = 2
"""How often a task is run again for each storage server because an object was lost."""


class Resubmissions:
    """The failures of tasks that will be submitted again, and the number of resubmissions of each task."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._failures: dict[int, bytes] = {}
        self._runs: dict[int, int] = {}
        """Runs that have met a loss, numbered in the order in which they became known."""
        self._known_runs: dict[int, int] = {}
        """By task, how many of them were known when it was submitted again last."""
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
        for task, status, payload in zip(done.tasks, done.statuses, done.results, strict=True):
            error = restore(payload) if status == Status.FAILED else None
            if error is None or not is_loss(error):
                self.forget((task,))
                continue
            is_counted = self._is_counted(task, error)
            count = self._counts.get(task, 0) + (not is_counted)
            self.forget((task,))
            call = outstanding.get(task)
            if count > RESUBMISSION_LIMIT or call is None or not is_call_known(call) or isinstance(call, GraphPiece):
                continue
            self._counts[task], self._failures[task] = count, bytes(payload)
            kept.append(task)
        return kept

    def _is_counted(self, task: int, loss: ScalerError) -> bool:
        """Whether the failure is known already; a scheduler reports one without a run as it reports a new one."""
        run, number = loss.details.get("run"), len(self._runs)
        if isinstance(run, int):
            number = self._runs.setdefault(run, number)
        is_known = number < self._known_runs.get(task, 0)
        return task in self._failures or (is_known and task in self._told_again)

    def forget(self, tasks: Iterable[int]) -> None:
        """Drop what is known of tasks that have ended."""
        for task in tasks if self._counts else ():
            self._counts.pop(task, None)
            self._failures.pop(task, None)
            self._known_runs.pop(task, None)
            self._told_again.discard(task)

    def clear(self) -> None:
        """No task is outstanding: drop everything that is known of runs."""
        self.forget(list(self._counts))
        self._runs.clear()

    def failure(self, task: int) -> bytes | None:
        """The failure of a task that will be submitted again."""
        return self._failures.get(task)

    def take_failures(self, tasks: Sequence[int]) -> Mapping[int, bytes]:
        """Remove and return the failures of these tasks, which are submitted again, or end with them."""
        self._known_runs.update(dict.fromkeys(tasks, len(self._runs)))
        return {task: self._failures.pop(task) for task in tasks if task in self._failures}
