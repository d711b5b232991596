"""How processes are made to end: all descendants of this one, by pid."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import probe

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, so that none can hide from it."""
    import ctypes  # late: a benchmark of start-up must not find it imported

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _signal(process: probe.ProcessSeen, number: int) -> None:
    """Signal a process unless its pid belongs to another one by now."""
    seen = probe.look(process.pid)
    if seen is not None and seen.born == process.born:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _reap() -> None:
    """Collect adopted children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _is_tracker(process: probe.ProcessSeen) -> bool:
    """Whether it is a resource tracker of multiprocessing: it ends after its users and removes what they left."""
    return "resource_tracker" in probe.command(process.pid)


def end_descendants(grace_seconds: float, with_trackers: bool = True) -> list[str]:
    """End all descendants of this process: wait, then SIGKILL by pid. Returns the command lines of the killed.

    Resource trackers get two seconds more. A process that uses one itself must spare it, and end.
    """
    deadline = time.monotonic() + grace_seconds
    killed: dict[int, str] = {}
    while True:
        _reap()
        left = [each for each in probe.descendants(os.getpid()) if with_trackers or not _is_tracker(each)]
        if not left:
            return list(killed.values())
        late = time.monotonic() - deadline
        for process in left if late >= 0 else []:
            if not _is_tracker(process) or late >= 2:
                killed[process.pid] = probe.command(process.pid)[-200:]
                _signal(process, signal.SIGKILL)
        time.sleep(0.05)
