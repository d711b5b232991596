"""Detects damage that tasks have done to their worker's process and that would make later tasks fail."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import Final

SPARE_DESCRIPTORS: Final = 16
"""Free descriptors that tasks and the worker need at least."""
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
        if self._reported:
            return self._reported
        if (ids := _ids()) != self._ids:
            return f"its user and group were changed from {self._ids} to {ids}"
        if not os.path.samestat(os.stat("/"), self._root):
            return "its root directory was changed"
        for name, kind in _LIMITS.items():
            limit = _soft_limit(kind)
            if limit < self._limits[name]:
                return f"its limit of {name} was lowered from {self._limits[name]:g} to {limit:g}"
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
            return f"all but a few of its {lowest_free} file descriptors are in use"
        return ""


def _ids() -> tuple[int, int]:
    return os.geteuid(), os.getegid()


def _soft_limit(kind: int) -> float:
    limit = resource.getrlimit(kind)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit
