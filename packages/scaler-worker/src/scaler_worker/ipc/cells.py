"""What the 64-bit cells of a worker in shared memory hold: their indexes, and how many there are."""

from __future__ import annotations

from typing import Final

RUN: Final = 0
"""The current run."""
STARTED: Final = 1
"""When it began, in nanoseconds of the monotonic clock."""
REVOKED: Final = 2
"""The agent writes it: the worker skips tasks of datagrams up to this sequence number."""
SAMPLE_UNTIL: Final = 3
"""The agent writes it: the end of the profile that is taken."""
CELLS: Final = 4
"""Cells per worker."""
