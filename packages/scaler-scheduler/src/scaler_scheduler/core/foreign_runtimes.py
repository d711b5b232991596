"""ForeignRuntimes: which tasks need a Python that no worker has had. Pure, no IO.

Such tasks fail, as a worker that joins later is unlikely to have it; but not at once: after a restart of the scheduler,
or a cut network, the first host to connect may be the only one with another Python.
"""

from __future__ import annotations

from typing import Final

from scaler_scheduler.core.records import LaneRecord
from scaler_scheduler.requirements import Runtime

PATIENCE_SECONDS: Final = 10.0
"""How long tasks wait for a worker with their Python while none is known."""
_MOST: Final = 1024
"""Runtimes that are remembered; agents may name any."""


class ForeignRuntimes:
    """The runtimes of all agents so far, and the lanes whose tasks need another one."""

    def __init__(self) -> None:
        self._known: set[Runtime] = {None}
        self._doubtful: dict[LaneRecord, float] = {}
        """When their tasks are to fail, the first ones first."""

    def joined(self, runtime: Runtime) -> None:
        """An agent has this runtime."""
        if len(self._known) < _MOST:
            self._known.add(runtime)

    def is_foreign(self, runtime: Runtime) -> bool:
        """Whether no agent has had it; tasks that need none have none."""
        return runtime not in self._known

    def doubt(self, lane: LaneRecord, now: float) -> None:
        """No worker can load the tasks of this lane."""
        self._doubtful.setdefault(lane, now + PATIENCE_SECONDS)

    def take_due(self, now: float) -> list[LaneRecord]:
        """The lanes that have waited long enough, and are still foreign."""
        due = [lane for lane, at in self._doubtful.items() if at <= now]
        for lane in due:
            del self._doubtful[lane]
        return [lane for lane in due if self.is_foreign(lane.requirement.runtime)]

    def due(self) -> float | None:
        """When to take lanes; None if none is in doubt."""
        return next(iter(self._doubtful.values()), None)
