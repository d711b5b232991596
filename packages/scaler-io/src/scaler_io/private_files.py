"""Files and directories that no other user can forge."""

from __future__ import annotations

import stat
from pathlib import Path


def parent_fault(directory: Path) -> str:
    """Why no program should keep files below this directory; "" if it may. Raises OSError."""
    mode = directory.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return "every user may replace what is in it: set its sticky bit (chmod +t), or name another directory"
    return ""
