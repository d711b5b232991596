"""Reads processes from /proc: descendants, CPU time and memory.

No third-party module is used, so that measuring changes neither the start-up time nor the memory of what is measured.
Linux only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class ProcessSeen:
    """One process when it was read; (pid, born) identifies it, because a pid may be reused."""

    pid: int
    parent: int
    born: int
    state: str


def read_text(path: str) -> str:
    """The text of a /proc file, empty where the process is gone."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def look(pid: int) -> ProcessSeen | None:
    """One process, or None where it is gone."""
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    return ProcessSeen(pid, int(fields[1]), int(fields[19]), fields[0])


def descendants(root: int) -> list[ProcessSeen]:
    """All living descendants of a process, parents before their children, without zombies."""
    children: dict[int, list[ProcessSeen]] = {}
    for entry in os.listdir("/proc"):
        seen = look(int(entry)) if entry.isdigit() else None
        if seen is not None:
            children.setdefault(seen.parent, []).append(seen)
    found: list[ProcessSeen] = []
    waiting = [root]
    while waiting:
        for seen in children.get(waiting.pop(0), []):
            waiting.append(seen.pid)
            if seen.state not in "ZX":
                found.append(seen)
    return found


def command(pid: int) -> str:
    """The command line of a process with blanks between the words."""
    return read_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()


def cpu_seconds(pid: int) -> float | None:
    """CPU time of all threads of a process, those that ended too, to the nanosecond."""
    try:
        # The number clock_getcpuclockid(3) gives for a pid. /proc/PID/stat counts in steps of 10 ms, too coarse here.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def cpu_by_pid(pids: Iterable[int]) -> dict[int, float]:
    """CPU seconds of each process that still lives."""
    return {pid: seconds for pid in pids if (seconds := cpu_seconds(pid)) is not None}


def _kilobytes(text: str, name: str) -> float:
    """The figure of a `Name:   123 kB` line in bytes, 0 where there is none."""
    for line in text.splitlines():
        if line.startswith(f"{name}:"):
            return float(line.split()[1]) * 1024
    return 0.0


def proportional_bytes(pid: int) -> float:
    """PSS: private memory plus this process's part of what it shares."""
    return _kilobytes(read_text(f"/proc/{pid}/smaps_rollup"), "Pss")


def peak_resident_bytes(pid: int) -> float:
    """The highest resident size since the process began."""
    return _kilobytes(read_text(f"/proc/{pid}/status"), "VmHWM")
