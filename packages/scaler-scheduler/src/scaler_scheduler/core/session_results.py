"""SessionResults: the outcomes of named sessions, kept until they are too old or too many. Pure, no IO.

An outcome is kept for the retention time after it came or was last sent to a client. Beyond the byte limit outcomes are
dropped: first those that a client has received, the oldest first. If no client has received the outcome, its task stays
in the session and fails with ResultDroppedError. A result in object storage counts with the 24 bytes of its reference;
storage has its own limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scaler_protocol.errors import ResultDroppedError, describe
from scaler_protocol.ids import count_of
from scaler_protocol.messages import Status
from scaler_protocol.objects import OBJECT_ID_BYTES
from scaler_protocol.profiles import NO_PROFILE
from scaler_scheduler.core.named_session_record import SessionTask
from scaler_scheduler.core.records import SessionRecord, TaskRecord
from scaler_scheduler.core.task_states import KeptOutcome, Outcome

ENTRY_BYTES = 256
"""Bytes that an outcome counts besides its payload."""


class SessionResults:
    """The kept outcomes of all named sessions; `delete` deletes objects of the session of this number in storage."""

    def __init__(self, retention_seconds: float, limit: int, delete: Callable[[int, list[bytes]], None]) -> None:
        self.bytes = 0
        """Bytes of all kept outcomes."""
        self.limit = limit
        self.dropped = 0
        """Outcomes dropped because of the limit, since the start."""
        self._retention = retention_seconds
        self._delete = delete
        self._received: dict[SessionTask, None] = {}
        self._unreceived: dict[SessionTask, None] = {}
        """Both ordered by `since`."""

    def __len__(self) -> int:
        return len(self._received) + len(self._unreceived)

    def enter(self, session: SessionRecord, records: Iterable[TaskRecord]) -> None:
        """The client of a named session has submitted tasks, new ones or again."""
        named = session.named
        if named is None:
            return
        counts = []
        for record in records:
            if (known := named.tasks.get(record.id)) is not None:
                self._remove(known)
                known.ended = None
            else:
                group = record.group
                named.tasks[record.id] = SessionTask(named, record.id, group.function, group.group.encoding)
            counts.append(count_of(record.id))
        named.use(counts)

    def keep(self, task: SessionTask, ended: KeptOutcome, now: float) -> None:
        """A task has ended."""
        self._remove(task)
        task.ended, task.since = ended, now
        task.size = ENTRY_BYTES + len(ended[0][1])
        self._unreceived[task] = None
        self.bytes += task.size

    def received(self, task: SessionTask, now: float) -> None:
        """A client has received the outcome."""
        if task.outcome is None:
            return
        self._unreceived.pop(task, None)
        self._received.pop(task, None)
        task.since = now
        self._received[task] = None

    def forget(self, task: SessionTask) -> None:
        """Drop a task, with its outcome if it has one."""
        self._remove(task)
        task.session.tasks.pop(task.id, None)

    def drop(self, task: SessionTask) -> None:
        """Forget an outcome that nobody wants, and delete its object."""
        outcome = task.outcome
        self.forget(task)
        self._delete_object(task, outcome)

    def _remove(self, task: SessionTask) -> None:
        if task in self._received or task in self._unreceived:
            self.bytes -= task.size
            self._received.pop(task, None)
            self._unreceived.pop(task, None)

    def _delete_object(self, task: SessionTask, outcome: Outcome | None) -> None:
        if outcome is not None and outcome[2]:
            self._delete(task.session.number, [outcome[1][:OBJECT_ID_BYTES]])

    def settle(self, now: float) -> list[SessionTask]:
        """Drop outcomes that are too old, or beyond the limit; returns the tasks that were dropped with them."""
        lost: list[SessionTask] = []
        for kept in (self._received, self._unreceived):
            while kept and (task := next(iter(kept))).since + self._retention <= now:
                self.drop(task)
                lost.append(task)
        while self.bytes > self.limit and self._received:
            task = next(iter(self._received))
            self.drop(task)
            self.dropped += 1
            lost.append(task)
        while self.bytes > self.limit and self._unreceived:
            self._fail(next(iter(self._unreceived)), now)
        return lost

    def _fail(self, task: SessionTask, now: float) -> None:
        """Replace an outcome that no client has received by ResultDroppedError."""
        outcome, self.dropped = task.outcome, self.dropped + 1
        self._remove(task)
        self._delete_object(task, outcome)
        error = ResultDroppedError(
            f"the results kept for named sessions exceeded {self.limit:,} bytes, and this one was the oldest:"
            " see --result-limit of scaler_scheduler"
        )
        task.ended, task.size = ((Status.FAILED, describe(error), False), NO_PROFILE, ""), 0
        self._received[task] = None

    def due(self) -> float | None:
        """When the oldest outcome is too old."""
        oldest = [next(iter(kept)).since for kept in (self._received, self._unreceived) if kept]
        return min(oldest) + self._retention if oldest else None

    def check(self) -> None:
        """Assert the invariants; for tests."""
        assert self.bytes == sum(task.size for task in (*self._received, *self._unreceived))
        assert self._received.keys().isdisjoint(self._unreceived)
        for task in (*self._received, *self._unreceived):
            assert task.outcome is not None and task.session.tasks[task.id] is task
