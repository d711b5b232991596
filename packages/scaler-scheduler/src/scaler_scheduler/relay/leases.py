"""Leases: the tasks that a relay has from the scheduler above it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from scaler_protocol.ids import session_of


class Leases:
    """Tasks with the run ids of the scheduler, from their Run until their Release, Returned or Withdraw."""

    def __init__(self) -> None:
        self.runs: dict[int, int] = {}
        """The run of each task; the oldest first."""
        self.sessions: Counter[int] = Counter()
        """The number of tasks of each session."""
        self._tasks: dict[int, int] = {}

    def add(self, tasks: Sequence[int], runs: Sequence[int]) -> None:
        """The scheduler has leased these tasks; a task that it leases again has only the new run."""
        for task in [task for task in tasks if task in self.runs]:
            self.end(task)
        self.runs.update(zip(tasks, runs, strict=True))
        self._tasks.update(zip(runs, tasks, strict=True))
        self.sessions.update(map(session_of, tasks))

    def task_of(self, run: int) -> int | None:
        """The task of a run; None if the lease has ended."""
        return self._tasks.get(run)

    def end(self, task: int) -> int | None:
        """The lease has ended; returns its run, or None if there was none."""
        run = self.runs.pop(task, None)
        if run is not None:
            del self._tasks[run]
            self.sessions[session_of(task)] -= 1
        return run

    def by_session(self, tasks: Iterable[int]) -> dict[int, list[int]]:
        """Those of these tasks that are leased, by session."""
        found: dict[int, list[int]] = {}
        for task in tasks:
            if task in self.runs:
                found.setdefault(session_of(task), []).append(task)
        return found

    def check(self) -> None:
        """Assert that the tables agree; for tests."""
        assert {run: task for task, run in self.runs.items()} == self._tasks
        assert +self.sessions == Counter(map(session_of, self.runs))
