"""Detects damage that tasks have done to their worker's process and that would make later tasks fail."""

from __future__ import annotations

import io
import os
import pickle
import resource
import sys
from collections.abc import Callable
from typing import Final

from scaler_worker.ipc.families import children

SPARE_DESCRIPTORS: Final = 16
"""Free descriptors that tasks and the worker need at least."""
UNREAPED: Final = 100
"""Children that have ended and that nobody has waited for: each keeps a process id."""
_LIMITS: Final = {
    "open files": resource.RLIMIT_NOFILE,
    "memory": resource.RLIMIT_AS,
    "data": resource.RLIMIT_DATA,
    "file size": resource.RLIMIT_FSIZE,
    "processes": resource.RLIMIT_NPROC,
    "CPU time": resource.RLIMIT_CPU,
    "stack": resource.RLIMIT_STACK,
}


class Damage:
    """Compares this process with its initial state. `find` takes some microseconds."""

    def __init__(self, descriptor: int, undo: Callable[[], None] = lambda: None) -> None:
        """`descriptor` is any open descriptor; `undo` reverts what can be reverted."""
        self._descriptor, self._undo = descriptor, undo
        self._reported = ""
        self._ids, self._root = _ids(), os.stat("/")
        self._limits = {name: _soft_limit(kind) for name, kind in _LIMITS.items()}

    def report(self, why: str) -> None:
        """Record damage that was found elsewhere."""
        self._reported = why

    def find(self) -> str:
        """Why this process should run no more tasks; empty if it is undamaged."""
        self._undo()
        return self._reported or self._changed() or _broken() or _left_behind() or self._lacking()

    def _changed(self) -> str:
        if (ids := _ids()) != self._ids:
            return f"its user and group were changed from {self._ids} to {ids}"
        if not os.path.samestat(os.stat("/"), self._root):
            return "its root directory was changed"
        for name, kind in _LIMITS.items():
            limit = _soft_limit(kind)
            if limit < self._limits[name]:
                return f"its limit of {name} was lowered from {self._limits[name]:g} to {limit:g}"
        return ""

    def _lacking(self) -> str:
        for descriptor, name in ((1, "output"), (2, "error")):
            try:
                os.fstat(descriptor)
            except OSError:
                return f"its standard {name} was closed"
        try:
            lowest_free = os.dup(self._descriptor)
        except OSError as error:
            return f"it can open no file: {error.strerror}"
        os.close(lowest_free)
        if lowest_free + SPARE_DESCRIPTORS > _soft_limit(resource.RLIMIT_NOFILE):
            return f"{lowest_free} of the {_soft_limit(resource.RLIMIT_NOFILE):g} files that it may open are in use"
        return ""


def _broken() -> str:
    """Why functions and arguments cannot be loaded: a task has replaced what Python needs for it; empty if they can."""
    if not (sys.meta_path and sys.path_hooks and sys.path):
        return "its Python finds no module any more"
    try:
        __import__("sys")
        pickle.loads(pickle.dumps(_broken))
        pickle.Pickler(io.BytesIO()).dump([len(""), isinstance("", str)])
    except Exception as error:
        return f"its Python does not work any more: {type(error).__name__}: {error}"
    return ""


def _left_behind() -> str:
    """Too many children that have ended and for which no task waits, such as orphans, which this process adopts."""
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return ""
    except ChildProcessError:
        return ""
    ended = sum(map(_has_ended, children(os.getpid())))
    return f"its tasks have left {ended} processes that have ended" if ended > UNREAPED else ""


def _has_ended(pid: int) -> bool:
    """Whether a child of this process has."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] == b"Z"


def _ids() -> tuple[int, int]:
    return os.geteuid(), os.getegid()


def _soft_limit(kind: int) -> float:
    limit = resource.getrlimit(kind)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit
