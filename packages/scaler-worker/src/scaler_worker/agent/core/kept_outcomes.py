"""KeptOutcomes: outcomes of runs, kept until the client has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from scaler_protocol.messages import Status
from scaler_worker.agent.core.result_buffer import DoneRow

KEPT_LIMIT = 256 * 1024 * 1024
"""Bytes of kept outcomes; the oldest beyond are discarded (their tasks would run again)."""


class KeptOutcomes:
    """Outcomes by task until they are released, since a restarted scheduler asks for them.

    Discarded after one to two times the retention, and the oldest first beyond KEPT_LIMIT bytes.
    """

    __slots__ = ("_bytes", "_old", "_young")

    def __init__(self) -> None:
        self._young: dict[int, DoneRow] = {}
        self._old: dict[int, DoneRow] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __iter__(self) -> Iterator[int]:
        yield from self._old
        yield from self._young

    def keep(self, tasks: Sequence[int], rows: Iterable[DoneRow], size: int) -> None:
        """Keep outcomes of `size` bytes in total; each replaces an older one of the same task."""
        self.release(tasks)
        self._young.update(zip(tasks, rows, strict=True))
        self._bytes += size
        while self._bytes > KEPT_LIMIT and len(self) > 1:
            self.release([next(iter(self))])

    def release(self, tasks: Sequence[int]) -> None:
        """Discard the outcomes of these tasks, if they are kept."""
        young, old, freed = self._young, self._old, 0
        if young.keys().isdisjoint(tasks) and (not old or old.keys().isdisjoint(tasks)):
            return
        for task in tasks:
            row = young.pop(task, None) or old.pop(task, None)
            if row is not None:
                freed += len(row[2])
        self._bytes -= freed

    def get(self, task: int) -> DoneRow | None:
        """The outcome of a task, if it is kept."""
        return self._young.get(task) or self._old.get(task)

    def rotate(self) -> None:
        """Discard outcomes that are older than one retention period."""
        self._bytes -= sum(len(row[2]) for row in self._old.values())
        self._old, self._young = self._young, {}

    def check(self) -> None:
        """Assert that sizes and generations agree."""
        assert self._bytes == sum(len(row[2]) for row in (*self._young.values(), *self._old.values()))
        assert self._young.keys().isdisjoint(self._old)
        assert all(row[1] not in (Status.LOST, Status.CANCELLED) for row in self._young.values())
