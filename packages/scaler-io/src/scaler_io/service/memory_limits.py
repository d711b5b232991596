"""Where stored objects are kept on a host, and how much of its memory programs may use."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

if sys.platform != "linux":
    raise ImportError("servers of Scaler run on Linux only")

MEMORY = Path("/dev/shm")
_SUFFICES = 0.5
"""Of the memory limit: tmpfs with less room is not worth being bound by."""


def default_directory(limit: int, memory: Path = MEMORY, disk: Path | None = None) -> Path:
    """Memory where it is enough, else a disk."""
    return memory if free_bytes(memory) >= _SUFFICES * limit else disk or Path(tempfile.gettempdir())


def free_bytes(directory: Path) -> int:
    """The room that is left there; 0 where there is nothing that this user can write to."""
    if not os.access(directory, os.W_OK):
        return 0
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def allowed_bytes(root: Path = Path("/")) -> int:
    """The memory that this host and its control groups let us have; `root` is where proc and sys are mounted."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_group_limits(root)])


def _group_limits(root: Path) -> list[int]:
    """The memory limits of this process's control group and of every group above it, versions 1 and 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        folder = root / "sys/fs/cgroup" / top
        group = Path(path.lstrip("/"))
        limits += [limit for each in (group, *group.parents) if (limit := _read_limit(folder / each / name))]
    return limits


def _read_limit(path: Path) -> int:
    """0 where there is none."""
    try:
        text = path.read_text("utf-8").strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
