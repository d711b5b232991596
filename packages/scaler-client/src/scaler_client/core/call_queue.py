"""CallQueue: calls that are to be sent, in order, and the credit that bounds the bytes of sent ones. Pure, no IO.

A call whose objects are not uploaded yet, or which exceeds the credit, waits, and all later ones with it. The first
call is always sent while no credit is in use, however big it is.

Invariants (`check`): the credit in use is the total weight of the outstanding tasks that are not in the queue; a task
in the queue is outstanding, but for nodes of a piece, which is sent as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from scaler_client.core.graph_state import GraphPiece, GraphTasks
from scaler_client.core.records import CallBlock, OutstandingCall, ResentCall, WaitingCall
from scaler_client.core.submit_builder import SubmitBuilder, is_uploaded
from scaler_protocol.handshake import SESSION_CREDIT
from scaler_protocol.messages import MESSAGE_LIMIT, MESSAGE_TASKS


class CallQueue:
    """Calls submitted and not sent yet, and calls to be sent again because no process has their tasks."""

    def __init__(self) -> None:
        self.credit = SESSION_CREDIT
        """The limit, in bytes, of the calls that the scheduler has and that have not ended."""
        self._used = 0
        self._calls: deque[WaitingCall | GraphPiece] = deque()
        self._resending: dict[int, ResentCall] = {}
        """By task: those of the calls that were sent before."""
        self.is_held = False
        """Whether nothing is taken, since the scheduler may lack calls that come first."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def has_room(self, size: int, before: int) -> bool:
        """Whether a long call need not be stored; `before`: how many come first that are not added yet.

        Half of the credit is kept free for short calls. Calls that are not sent count as if they were as long. May be
        called by any thread.
        """
        return self._used + size * (1 + before + len(self._calls)) <= self.credit // 2

    def add(self, calls: Iterable[WaitingCall | GraphPiece]) -> None:
        """Append calls that were not sent before."""
        self._calls.extend(calls)

    def add_first(self, pieces: Sequence[GraphPiece]) -> None:
        """Put sent pieces of graphs, which the scheduler lacks, before all calls."""
        self._calls.extendleft(reversed(pieces))

    def resend(self, task: int, call: OutstandingCall) -> None:
        """Append a sent task again, and return its credit; does nothing if it is queued for that already."""
        if task not in self._resending:
            again = call.resent_call(task) if isinstance(call, GraphPiece) else ResentCall.of(call, task)
            self._resending[task] = again
            self._calls.append(again)
            self._used -= call._weight

    def stop_resending(self, tasks: Iterable[int]) -> None:
        """Remove those of these tasks that are to be sent again: they count as sent."""
        if not self._resending:
            return
        gone = {task for task in tasks if task in self._resending}
        if gone:
            self._used += sum(self._resending.pop(task)._weight for task in gone)
            self._calls = deque(call for call in self._calls if call.task_id not in gone)

    def stop_all_resending(self) -> None:
        """Remove all tasks that are to be sent again: they count as sent."""
        self.stop_resending(list(self._resending))

    def take(self) -> SubmitBuilder | GraphPiece | None:
        """Remove and return the calls of the next message; None if there are none, or the next call must wait."""
        if not self._calls or self.is_held:
            return None
        first = self._calls[0]
        size = first._weight * (len(first.calls) if type(first) is CallBlock else 1)
        if not is_uploaded(first) or (self._used and size and self._used + size > self.credit):
            return None
        batch: SubmitBuilder | GraphPiece
        if isinstance(first, GraphPiece):
            batch = first
            self._calls.popleft()
        else:
            batch = SubmitBuilder(first._group.parent, MESSAGE_TASKS)
            batch.fill(self._calls, min(MESSAGE_LIMIT, self.credit - self._used))
            self._used += batch.size
        if self._resending:
            for task in batch.tasks:
                self._resending.pop(task, None)
        return batch

    def return_credit(self, size: int) -> None:
        """Sent calls of this many bytes have ended."""
        self._used -= size

    def cancel(self, calls: Mapping[int, OutstandingCall]) -> list[int]:
        """Remove these tasks, and return the credit of those that were sent; returns the sent ones."""
        self.stop_resending(calls)
        unsent = set(self._calls)
        sent = [task for task, call in calls.items() if call not in unsent]
        self._used -= sum(calls[task]._weight for task in sent)
        if len(sent) < len(calls):
            self._calls = deque(call for call in self._calls if call.task_id not in calls)
        return sent

    def cancel_graph(self, graph: GraphTasks) -> None:
        """Remove the unsent pieces of this graph."""
        self._calls = deque(call for call in self._calls if getattr(call, "graph", None) is not graph)

    def clear(self) -> None:
        """Remove all calls; nothing is sent any more."""
        self._calls.clear()
        self._resending.clear()
        self.is_held = False
        self._used = 0

    def tasks(self) -> set[int]:
        """All tasks in the queue."""
        tasks: set[int] = set()
        for call in self._calls:
            tasks.update(call.tasks if isinstance(call, CallBlock | GraphPiece) else (call.task_id,))
        return tasks

    def new_tasks(self) -> set[int]:
        """The tasks in the queue that were not sent before."""
        return self.tasks() - self._resending.keys()

    def check(self, outstanding: Mapping[int, OutstandingCall]) -> None:
        """Assert the invariants."""
        queued = self.tasks()
        assert self._resending.keys() <= queued
        pieces = {task for call in self._calls if isinstance(call, GraphPiece) for task in call.tasks}
        assert queued - pieces <= outstanding.keys(), "a call that has ended is to be sent"
        assert self._used == sum(call._weight for task, call in outstanding.items() if task not in queued)
