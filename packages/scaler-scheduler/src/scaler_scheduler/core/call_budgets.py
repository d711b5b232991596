"""CallBudgets: how much memory unfinished tasks may take in the scheduler. Pure, no IO.

A client knows its credit, and sends no more bytes of calls than that, except for graphs. Calls beyond twice the credit
are refused, and graphs beyond a share of the scheduler's memory. When all sessions together use up that memory, the
sessions of each key that has more than an equal share of it are refused more; without keys each session has a share.

Results that are kept for other tasks of the session count, too. No result is refused, but later tasks may be.

The bytes of a session are estimated by adding up what it submits: one addition per message, and never too little. Only
when an estimate exceeds a budget are the tasks of the session counted one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scaler_protocol.errors import ProtocolError, SubmitRefusedError
from scaler_protocol.handshake import SESSION_CREDIT
from scaler_protocol.messages import Submit
from scaler_scheduler.core.node_columns import NodeColumns
from scaler_scheduler.core.records import HeldNodes, SessionRecord, TaskBlock

LEAST_CREDIT: Final = SESSION_CREDIT // 16
"""Bytes of unfinished calls that any client may have, however many there are."""
CALLS_LIMIT: Final = 2 * SESSION_CREDIT
"""Bytes of unfinished calls outside of graphs that a session may have."""
TASK_BYTES: Final = 512
"""Approximate bytes of a task without its call."""
RECOUNT_SECONDS: Final = 0.1
"""Minimum time between two counts of one session."""
_RECOUNT_SHARE: Final = 16
"""All sessions are counted again when 1/_RECOUNT_SHARE of the memory was submitted since the last count."""


class CallBudgets:
    """Refuses tasks that exceed the budgets."""

    def __init__(self, sessions: Mapping[int, SessionRecord], session_bytes: int, total_bytes: int) -> None:
        """`session_bytes` limits the tasks and calls of one session, `total_bytes` those of all sessions."""
        self._sessions = sessions
        self._session_bytes, self._total_bytes = session_bytes, total_bytes
        self._total = 0
        """Bytes that all sessions had at the last count, and those submitted since."""
        self._recount_at = total_bytes

    def credit(self, sessions: int) -> int:
        """Bytes of unfinished calls that the last one of so many sessions may have.

        Each later one may have less, so that all together hardly exceed the memory: their sum grows as the logarithm of
        their number.
        """
        return max(LEAST_CREDIT, min(SESSION_CREDIT, self._total_bytes // (4 * max(1, sessions))))

    def take(self, session: SessionRecord, event: Submit, now: float) -> None:
        """Count the tasks of a message, or count nothing and raise.

        Raises ProtocolError if the client has ignored its credit, and SubmitRefusedError for the other budgets, which
        it does not know.
        """
        size = sum(event.calls.lengths)
        calls = 0 if event.graph else size
        size += TASK_BYTES * len(event.tasks)
        if session.call_bytes + calls > CALLS_LIMIT or session.task_bytes + size > self._session_bytes:
            if now >= session.counted_at + RECOUNT_SECONDS:
                session.counted_at = now
                _count(session)
            self._check(session, calls, size)
        if self._total + size > self._recount_at:
            self._count_all()
        if self._total + size > self._total_bytes:
            self._check_share(session, size)
        session.call_bytes += calls
        session.task_bytes += size
        self._total += size

    def keep(self, session: SessionRecord, payload: bytes) -> None:
        """Count a result that is kept for other tasks of the session; it is never refused."""
        session.task_bytes += len(payload)
        self._total += len(payload)

    def calls_of(self, session: SessionRecord, *, exact: bool) -> int:
        """Bytes of a session's unfinished calls outside of graphs: an upper bound, or if `exact` the number."""
        if exact:
            _count(session)
        return session.call_bytes

    def _check(self, session: SessionRecord, calls: int, size: int) -> None:
        """Raise if the session may not have `calls` more bytes of calls, or `size` more bytes in all."""
        if session.call_bytes + calls > CALLS_LIMIT:
            raise ProtocolError(
                f"session {session.number} has {session.call_bytes:,} bytes of calls that have not ended, and its "
                f"credit is {SESSION_CREDIT:,}: its client must wait before it submits more"
            )
        if session.task_bytes + size > self._session_bytes:
            raise SubmitRefusedError(
                f"session {session.number} has {len(session.tasks):,} tasks, which take {session.task_bytes:,} bytes "
                f"in the scheduler, and may take {self._session_bytes:,}: submit fewer tasks, or give the scheduler "
                "more with --max-session-bytes"
            )

    def _check_share(self, session: SessionRecord, size: int) -> None:
        """The memory for tasks is in use: raise SubmitRefusedError if the session's key has more than its share."""
        sessions = self._sessions.values()
        share = self._total_bytes // max(1, len({each.share for each in sessions}))
        of_key = sum(each.task_bytes for each in sessions if each.share is session.share)
        if of_key + size > share:
            raise SubmitRefusedError(
                f"the tasks of {len(sessions):,} sessions take {self._total:,} bytes in the scheduler, which is all "
                f"they may take; session {session.number} has {session.task_bytes:,} of them, all sessions of its key "
                f"have {of_key:,}, and their share is {share:,}: submit again when tasks have ended"
            )

    def _count_all(self) -> None:
        for session in self._sessions.values():
            _count(session)
        self._total = sum(session.task_bytes for session in self._sessions.values())
        self._recount_at = max(self._total_bytes, self._total + self._total_bytes // _RECOUNT_SHARE)


def _count(session: SessionRecord) -> None:
    """Set the estimates of a session to the numbers."""
    calls = graphs = 0
    results: dict[int, int] = {}
    """Sizes of results by the identity of their bytes: a task and its consumers share one bytes object."""
    groups = {*session.groups.values(), *(task.group for task in session.tasks.values())}
    blocks: set[TaskBlock] = set()
    columns: set[NodeColumns] = set()
    for task in session.tasks.values():
        if isinstance(task, TaskBlock):
            blocks.add(task)
        elif isinstance(task, HeldNodes):
            columns.add(task.columns)
        elif task.extra is not None and task.extra.graph is not None:
            graphs += task.call_bytes
        else:
            calls += task.call_bytes
        if task.extra is not None:
            results.update((id(payload), len(payload)) for payload in task.extra.results())
    for each in columns:
        results.update((id(payload), len(payload)) for payload in each.results())
    calls += sum(block.call_bytes for block in blocks)
    graphs += sum(each.call_bytes for each in columns)
    session.call_bytes = calls
    others = TASK_BYTES * len(session.tasks) + sum(group.weight for group in groups) + sum(results.values())
    session.task_bytes = calls + graphs + others
