"""The states of tasks, and how tasks end."""

from __future__ import annotations

from enum import IntEnum


class TaskState(IntEnum):
    """The state of a task; `scaler_scheduler.core.core` shows the transitions."""

    WAITING = 0
    """In a lane, ready to run."""
    HELD = 1
    """Not in a lane: it lacks inputs, function bytes or its call, or is a suspect without an agent of its own."""
    ASSIGNED = 2
    """An agent has it, queued or running."""
    DONE = 3
    """Its owner was sent the outcome; the agent keeps it until the owner releases it."""
    GONE = 4
    """Nobody wants it; entries that it still has in a lane or on an agent are skipped."""
    SECOND = 5
    """Not a task, but the second run of one that is ASSIGNED: see `scaler_scheduler.core.speculation`."""


# Plain integers: an enum member costs a look-up and a comparison in Python wherever it is touched.
WAITING, HELD, ASSIGNED, DONE, GONE, SECOND = (int(state) for state in TaskState)

Outcome = tuple[int, bytes, bool]
"""Status, payload, and whether that is a reference."""
KeptOutcome = tuple[Outcome, bytes, str]
"""Outcome, profile, and the name of the agent."""
