"""Locks on open files, which the kernel gives back with the last process that has the file open, however that ends."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
from pathlib import Path
from typing import Final

if sys.platform != "win32":
    import fcntl

PEERS = "peers"
"""Where the lives of a storage's peers are, in its segment directory."""


def try_lock(descriptor: int, *, exclusively: bool) -> bool:
    """Lock an open file alone, or together with others; False where somebody is in the way. Raises OSError."""
    if sys.platform != "win32":
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusively else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
    raise OSError("files can not be locked on this system")


class LivenessLocks:
    """What tells a storage on this host that our process lives: in its directory a file that we keep locked.

    One file per process and directory, until the process ends: that a connection is gone says nothing about the
    process. For any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, tuple[Path, int, os.stat_result]] = {}

    def name(self, directory: str) -> str:
        """Our file among the `peers` in a segment directory, locked; raises OSError where there can be none."""
        with self._lock:
            for known in [known for known, (path, _, _) in self._open.items() if not path.exists()]:
                _close(*self._open.pop(known)[1:])  # its storage has ended, or somebody has removed the directory
            if directory not in self._open:
                path = Path(directory, PEERS, secrets.token_hex(8))
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                try_lock(descriptor, exclusively=True)
                self._open[directory] = path, descriptor, os.fstat(descriptor)
            return self._open[directory][0].name

    def end(self) -> None:
        """It is over, or goes on without us: we are a fork, and have a life of our own."""
        self._lock = threading.Lock()
        lives, self._open = self._open, {}
        for _, descriptor, opened in lives.values():
            _close(descriptor, opened)


LIVENESS_LOCKS: Final = LivenessLocks()
"""This process's."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LIVENESS_LOCKS.end)


def _close(descriptor: int, opened: os.stat_result) -> None:
    """Close a descriptor, unless somebody else has, and it is another file's by now."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), opened):
            os.close(descriptor)


def is_unlocked(path: Path) -> bool:
    """Whether nobody has locked a file; False also where it can not be opened: that proves nothing."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return try_lock(descriptor, exclusively=True)
        finally:
            os.close(descriptor)
    return False
