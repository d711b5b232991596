"""LongResults: which results above INLINE_LIMIT may travel by messages instead of object storage. Pure, no IO.

Theory. By message a result of some ten KiB takes a quarter of the CPU time. But the scheduler, which forwards it, and
the client, which holds it until it is read, keep such results in memory that has no disk behind it. So a client names a
credit in its Hello. A run is *granted* a size if its function has returned results above the limit, and if what is
granted, under way and held fits into the credit; its worker puts every larger result into object storage. A grant ends
with its run; from then on the result counts until the client says that it has let go of it. So a client that reads
nothing is sent its credit, and references after that. All clients together have MOST_BYTES.

Of a function whose results are mostly long, tasks beyond the credit are dispatched a few at a time
(`scaler_scheduler.core.dispatch`): they may be granted when the client has let go of earlier results.

Without a credit nothing is granted: sessions that outlive their clients, nested ones, and clients that do not know of
it. With a journal nothing is, because the bytes would be written to its disk, and to relays nothing is, because they
make runs of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from scaler_protocol.handshake import INLINE_LIMIT, RESULT_CREDIT
from scaler_protocol.messages import Done
from scaler_protocol.objects import OBJECT_ID_BYTES
from scaler_protocol.result_sizes import LARGEST_CLASS, class_of, limit_of
from scaler_scheduler.core.function_record import SMOOTHING, FunctionRecord
from scaler_scheduler.core.records import AgentRecord, GroupRecord, SessionRecord, TaskRecord

MOST_BYTES: Final = 16 * RESULT_CREDIT
"""So much is granted, under way and held of all clients."""


class LongResults:
    """What is granted to runs, and what clients hold."""

    def __init__(self) -> None:
        self._granted: dict[int, tuple[SessionRecord, int, FunctionRecord]] = {}
        """By run."""
        self._bytes = 0
        """Of all sessions."""
        self._expected = False
        """Whether any function has returned such a result."""

    def measured(self, function: FunctionRecord, reference: bytes) -> None:
        """A call of the function has returned a result that is in object storage."""
        size_class = class_of(int.from_bytes(reference[OBJECT_ID_BYTES:], "little"))
        if function.result_size < size_class <= LARGEST_CLASS:
            function.result_size, function.long_share, self._expected = size_class, 1.0, True

    def room(self, group: GroupRecord) -> int | None:
        """For how many runs of this group there is credit; None if most results are short, or the client has none."""
        size_class, session = group.function.result_size, group.session
        if not size_class or group.function.long_share < 0.5 or not session.result_credit:
            return None
        left = min(session.result_credit - session.result_bytes, MOST_BYTES - self._bytes)
        return max(0, left) // limit_of(size_class)

    def grant(self, agent: AgentRecord, tasks: Sequence[TaskRecord]) -> list[int]:
        """The classes of results that these runs, which are about to be sent, may return by message; empty: all 0."""
        if not self._expected or agent.relay_incarnation:
            return []
        classes = [self._grant(task) for task in tasks]
        return classes if any(classes) else []

    def _grant(self, task: TaskRecord) -> int:
        size_class, session = task.group.function.result_size, task.group.session
        if not size_class or task.extra is not None:  # other tasks may need its result, or it has failed before
            return 0
        size = limit_of(size_class)
        if session.result_bytes + size > session.result_credit or self._bytes + size > MOST_BYTES:
            return 0
        self._count(session, size)
        self._granted[task.run] = session, size, task.group.function
        return size_class

    def ended(self, report: Done) -> None:
        """The runs of this report have ended."""
        if self._granted:
            stored = set(report.stored)
            for position, (run, size) in enumerate(zip(report.runs, report.results.lengths, strict=True)):
                if (granted := self._granted.get(run)) is not None:
                    function, is_long = granted[-1], size > INLINE_LIMIT or position in stored
                    function.long_share += SMOOTHING * (is_long - function.long_share)
            self.over(report.runs)

    def over(self, runs: Iterable[int]) -> None:
        """These runs are at no agent any more."""
        if self._granted:
            for run in runs:
                if (granted := self._granted.pop(run, None)) is not None:
                    session, size, _ = granted
                    self.freed(session, size)

    def sent(self, session: SessionRecord, sizes: Sequence[int]) -> None:
        """Results of these sizes are on their way to the client of a session."""
        if max(sizes, default=0) > INLINE_LIMIT:
            self._count(session, sum(size for size in sizes if size > INLINE_LIMIT))

    def freed(self, session: SessionRecord, size: int) -> None:
        """So many bytes are not on their way, or held, any more. What a client says may be wrong."""
        self._count(session, -min(size, session.result_bytes))

    def session_over(self, session: SessionRecord) -> None:
        """Nothing is on its way to the client any more."""
        self.freed(session, session.result_bytes)

    def _count(self, session: SessionRecord, size: int) -> None:
        session.result_bytes += size
        self._bytes += size

    def check(self, agents: Iterable[AgentRecord], sessions: Iterable[SessionRecord]) -> None:
        """Assert that only runs of agents have grants, and only sessions bytes."""
        assert self._bytes == sum(session.result_bytes for session in sessions)
        if left := set(self._granted):
            for agent in agents:
                left -= agent.runs.keys()
        assert not left, f"runs {left} are over and have grants"
