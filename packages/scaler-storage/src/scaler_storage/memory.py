"""How much memory this process may use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

SHARE: Final = 0.6
"""Of what is allowed: the rest is for messages on their way and for everybody else."""


def default_limit(root: Path = Path("/")) -> int:
    """The bytes that objects may take unless told otherwise; `root` is where proc and sys are mounted."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(SHARE * min([physical, *_group_limits(root)]))


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
