"""What tasks print."""

from __future__ import annotations

from typing import Final


class StreamOutput:
    """What becomes of what a task prints."""

    NO: Final = 0
    """It goes to the output of its cluster."""
    PLAIN: Final = 1
    """It goes to the client, as it is."""
    PREFIXED: Final = 2
    """It goes to the client, each line behind its task, worker and host."""
