"""What is kept of tasks of named sessions, and for how long."""

from __future__ import annotations

import pytest

from scaler_protocol.errors import ResultDroppedError, restore
from scaler_protocol.ids import first_task
from scaler_protocol.messages import Status
from scaler_scheduler.core.function_record import FunctionRecord
from scaler_scheduler.core.named_session_record import NamedSession, SessionTask
from scaler_scheduler.core.session_results import ENTRY_BYTES, SessionResults

RETENTION = 100.0


class Kept:
    """Results of one session."""

    def __init__(self, limit: int = 10**6) -> None:
        self.session = NamedSession(5, "nightly", b"k")
        self.deleted: list[bytes] = []
        self.results = SessionResults(RETENTION, limit, lambda session, objects: self.deleted.extend(objects))

    def task(self, count: int, size: int = 100, *, stored: bool = False, now: float = 0.0) -> SessionTask:
        """A task that has ended."""
        task = SessionTask(self.session, first_task(5) + count, FunctionRecord(b"f"))
        self.session.tasks[task.id] = task
        self.results.keep(task, ((Status.VALUE, bytes([count]) * size, stored), b"", "w"), now)
        return task

    @property
    def left(self) -> list[int]:
        """The counts of the tasks of which something is kept."""
        self.results.check()
        return [task - first_task(5) for task in self.session.tasks]


def test_results_are_kept_for_the_retention_from_their_end_or_their_last_delivery() -> None:
    kept = Kept()
    first, _ = kept.task(1), kept.task(2, 24, stored=True)
    kept.results.received(first, 50.0)
    assert kept.results.due() == RETENTION
    kept.results.settle(RETENTION)
    assert kept.left == [1] and kept.deleted == [b"\2" * 16] and kept.results.due() == 50.0 + RETENTION
    kept.results.settle(50.0 + RETENTION)
    assert kept.left == [] and kept.results.bytes == 0 and kept.results.due() is None


def test_beyond_the_limit_received_results_go_first_and_others_become_failures() -> None:
    kept = Kept(limit=2 * (ENTRY_BYTES + 100))
    tasks = [kept.task(count) for count in range(3)]
    kept.results.received(tasks[2], 1.0)
    kept.results.settle(1.0)
    assert kept.left == [0, 1] and kept.results.dropped == 1
    kept.task(3)
    kept.results.settle(2.0)
    assert kept.left == [0, 1, 3] and kept.results.dropped == 2
    outcome = tasks[0].outcome
    assert outcome is not None and outcome[0] == Status.FAILED
    assert isinstance(restore(outcome[1]), ResultDroppedError) and "--result-limit" in str(restore(outcome[1]))


@pytest.mark.parametrize(
    ("counts", "unused"), [([1, 2, 3], (4, 2**32 - 1)), ([2**32 - 5, 7], (8, 2**32 - 6)), ([2**31], (0, 2**31 - 1))]
)
def test_ids_are_used_from_both_ends(counts: list[int], unused: tuple[int, int]) -> None:
    named = NamedSession(5, "nightly", b"k")
    named.use(counts)
    assert (named.ids_from, named.ids_to) == unused
