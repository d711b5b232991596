"""Families of processes: children and their descendants, found through /proc and ended.

Agent, template and workers are subreapers, so an orphan becomes a child of the nearest of them that lives: what a task
has started and left behind is a descendant of its worker, and a child of the template once that worker has ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Final

END_SECONDS: Final = 2.0


def children(pid: int) -> list[int]:
    """The process ids of a process's children; none if it has ended."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def descendants(pid: int) -> Iterator[int]:
    """The process ids of a process's children and theirs, each after its own children."""
    for child in children(pid):
        yield from descendants(child)
        yield child


def kill_descendants(pid: int) -> None:
    """Kill the descendants of a stopped process in all sessions."""
    killed: set[int] = set()
    # A killed process forks no more; children forked meanwhile are found by the next iteration.
    while found := set(descendants(pid)) - killed:
        for each in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        killed |= found


def kill_children(is_spared: Callable[[int], bool]) -> bool:
    """Kill the children of this process that are not spared; whether there were any."""
    killed = [pid for pid in children(os.getpid()) if not is_spared(pid)]
    for pid in killed:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return bool(killed)


def end_children(is_spared: Callable[[int], bool] = lambda pid: False) -> None:
    """Kill and reap every child of this process that is not spared, for at most END_SECONDS.

    This process is a subreaper: orphans become its children meanwhile.
    """
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline and kill_children(is_spared):
        for pid in children(os.getpid()):
            if not is_spared(pid):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)
