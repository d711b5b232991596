"""What code that runs in a task may know of it. Pure, no IO."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CurrentTask:
    """The task that the calling code is part of; `attempt` counts its runs from 1, `worker` names the process."""

    id: int
    attempt: int
    worker: str
    run: int = 0
