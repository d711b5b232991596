"""Which worker sees which GPU, and which one may have a run that requires one. Pure.

A worker that starts is given a GPU that no other worker sees, if there is one. A worker whose task waits for its
children does not count, so that the worker that takes over sees its GPU, and nesting never runs out of them. So two
workers may see one GPU; it is used by the runs that require one only one at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from scaler_protocol.gpus import GPU
from scaler_worker.agent.core.records import GROUP, Entry, WorkerRecord


class Gpus:
    """The GPUs of an agent, by what CUDA_VISIBLE_DEVICES names them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def __bool__(self) -> bool:
        return bool(self._names)

    def unseen(self, workers: Iterable[WorkerRecord]) -> list[str]:
        """The GPUs that none of these workers sees, but for those whose tasks wait for their children."""
        seen = {worker.gpu for worker in workers if not worker.blocked}
        return [name for name in self._names if name not in seen]

    def free(self, workers: Iterable[WorkerRecord]) -> set[str]:
        """The GPUs that no present run of these workers has."""
        taken = {worker.gpu for worker in workers if (entry := worker.next_entry()) and self.is_needed(entry)}
        return {name for name in self._names if name not in taken}

    def is_needed(self, entry: Entry) -> bool:
        """Whether a run must be given to a worker that sees a GPU."""
        return bool(self._names) and any(name == GPU for name, _ in entry[GROUP].takes)

    def least_needed_first(self, idle: Iterable[WorkerRecord], running: Iterable[WorkerRecord]) -> list[WorkerRecord]:
        """Idle workers in the order in which they are best ended: whose GPU others see, without one, with one."""
        if not self._names:
            return list(idle)
        seen = Counter(worker.gpu for worker in (*idle, *running))
        order: tuple[list[WorkerRecord], ...] = ([], [], [])
        for worker in idle:
            if worker.gpu and seen[worker.gpu] > 1:
                seen[worker.gpu] -= 1
                order[0].append(worker)
            else:
                order[2 if worker.gpu else 1].append(worker)
        return [*order[0], *order[1], *order[2]]
