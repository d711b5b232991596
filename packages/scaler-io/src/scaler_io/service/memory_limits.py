"""Memory limits: how much memory a host allows its programs, and where on it stored objects are kept."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

if sys.platform != "linux":
    raise ImportError("servers of Scaler run on Linux only")

MEMORY = Path("/dev/shm")
_SUFFICES = 0.5
"""Fraction of the memory limit that must be free in shared memory for objects to be kept there."""


def default_directory(limit: int, memory: Path = MEMORY, disk: Path | None = None) -> Path:
    """The directory for objects: shared memory if it has enough room for `limit` bytes, otherwise a disk."""
    return memory if free_bytes(memory) >= _SUFFICES * limit else disk or Path(tempfile.gettempdir())


def free_bytes(directory: Path) -> int:
    """Free bytes in a directory; 0 if this user cannot write to it."""
    if not os.access(directory, os.W_OK):
        return 0
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def allowed_bytes(root: Path = Path("/")) -> int:
    """Bytes of memory that the host and its control groups allow; `root` is where proc and sys are mounted."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_group_limits(root)])


def _group_limits(root: Path) -> list[int]:
    """The memory limits of this process's control group and its ancestors, versions 1 and 2; 0 is none."""
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
    """Read a limit in bytes; 0 if there is none."""
    try:
        text = path.read_text("utf-8").strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
