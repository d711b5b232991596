"""Where a server's segments are, and how much it may keep there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
_SUFFICES = 0.5
"""Of the memory limit: tmpfs with less room is not worth being bound by."""


def default_place(limit: int, memory: Path = MEMORY, disk: Path | None = None) -> Path:
    """Memory where it is enough, else a disk."""
    return memory if free_bytes(memory) >= _SUFFICES * limit else disk or Path(tempfile.gettempdir())


def free_bytes(directory: Path) -> int:
    """The room that is left there; 0 where there is nothing that this user can write to."""
    if not os.access(directory, os.W_OK):
        return 0
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize
