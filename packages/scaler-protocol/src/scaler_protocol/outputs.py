"""Destinations of the output of tasks."""

from __future__ import annotations

from typing import Final

KEPT: Final = 2
"""Added to a stream in Output (1 stdout, 2 stderr): the scheduler keeps the text for monitors; no client gets it."""

TRACEBACK: Final = 5
"""A stream in Output: an excerpt of the traceback of a RAISED outcome that follows, which is too long for a message."""


class StreamOutput:
    """Where a task's stdout and stderr go."""

    NO: Final = 0
    """To the output of the cluster."""
    PLAIN: Final = 1
    """To the client, unchanged."""
    PREFIXED: Final = 2
    """To the client, each line with a prefix of task, worker and host."""
