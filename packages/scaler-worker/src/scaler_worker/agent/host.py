"""Measures the host and its processes through /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from typing import Final

from scaler_io.service.process import cpu_seconds, resident_bytes
from scaler_worker.agent.core.snapshot import HostStats
from scaler_worker.ipc.families import descendants
from scaler_worker.ipc.frames import DESCRIPTORS_LOST

SHARED_MEMORY: Final = "/dev/shm"


def available_memory() -> tuple[int, int]:
    """Available and total memory in bytes."""
    figures: dict[str, int] = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                figures[name] = int(value.split()[0]) * 1024
    return figures.get("MemAvailable", 0), figures.get("MemTotal", 0)


def free_bytes(directory: str) -> int:
    """What users may still write into the file system of a directory; 0 if there is no such directory."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def is_nearly_gone(available: int, total: int) -> bool:
    """Whether so little memory is available that no more processes should be started."""
    return available < min(total // 50, 512 * 1024 * 1024)


def cpu_nanoseconds(pid: int) -> int:
    """CPU time of the threads of a process in nanoseconds, from schedstat; 0 if the process has ended."""
    total = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                total += int(file.read().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return total


def used_bytes(pid: int) -> int:
    """Bytes of memory and swap that only a process and its descendants use; 0 if it has ended.

    Mapped files and shared memory do not count, such as objects that all workers of a host map.
    """
    return sum(map(_own_bytes, (pid, *descendants(pid))))


def _own_bytes(pid: int) -> int:
    total = 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith((b"RssAnon:", b"VmSwap:")):
                total += int(line.split()[1]) * 1024
    return total


class HostFigures:
    """Measures the agent's process and its workers; CPU is the mean since the last measurement."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._at = 0.0

    def measure(self, workers: Sequence[int], free: int, now: float) -> HostStats:
        """Measure this process and the workers with these process ids; `free` is the available memory in bytes."""
        own = os.getpid()
        seconds: dict[int, float] = {}
        memory: dict[int, int] = {}
        for pid in (own, *workers):
            try:
                seconds[pid], memory[pid] = cpu_seconds(pid), resident_bytes(pid)
            except ProcessLookupError:
                seconds[pid], memory[pid] = self._seconds.get(pid, 0.0), 0
        passed = max(now - self._at, 1e-3)
        cores = {pid: max(0.0, used - self._seconds.get(pid, used)) / passed for pid, used in seconds.items()}
        self._seconds, self._at = seconds, now
        return HostStats(
            cores[own],
            memory[own],
            free,
            cores,
            memory,
            load=os.getloadavg()[0],
            disk_free=free_bytes(tempfile.gettempdir()),
            shared_free=free_bytes(SHARED_MEMORY),
        )


def ending_of(status: int) -> str:
    """Describe the exit of a process with this wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code == DESCRIPTORS_LOST:
        return "ended because a task closed or overwrote its descriptors"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-code}"


def ended_children() -> Iterator[tuple[int, int, int]]:
    """Children of this process that have ended: process id, wait status, peak memory in bytes."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.wait4(-1, os.WNOHANG))[0]:
            yield found[0], found[1], found[2].ru_maxrss * 1024
