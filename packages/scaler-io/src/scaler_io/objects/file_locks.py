"""Locks on open files; the kernel releases them when the last process that has the file open ends, however it ends."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Final

from scaler_io.reentrant_lock import ReentrantLock

if sys.platform != "win32":
    import fcntl

PEERS = "peers"
"""The folder of its peers' liveness files in a segment directory."""


def try_lock(descriptor: int, *, exclusively: bool) -> bool:
    """Take an exclusive or a shared lock on an open file; False if another lock prevents it. Raises OSError."""
    if sys.platform != "win32":
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusively else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
    raise OSError("files cannot be locked on this system")


class LivenessLocks:
    """Shows a storage server on this host that this process is alive: by a locked file in its segment directory.

    There is one file per process and directory until the process ends, because a process may outlive its connections.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = ReentrantLock()
        self._open: dict[str, tuple[Path, int, os.stat_result]] = {}

    def name(self, directory: str) -> str:
        """The name of our locked file in the PEERS folder of a segment directory; raises OSError if it has none."""
        with self._lock:
            for known in [known for known, (path, _, _) in self._open.items() if not path.exists()]:
                _close(*self._open.pop(known)[1:])  # its server has ended, or another program has removed the directory
            if directory not in self._open:
                path = Path(directory, PEERS, os.urandom(8).hex())
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                try_lock(descriptor, exclusively=True)
                self._open[directory] = path, descriptor, os.fstat(descriptor)
            return self._open[directory][0].name

    def end(self) -> None:
        """Close our copies of the parent's locks in a fork: its liveness is not ours."""
        self._lock = ReentrantLock()
        lives, self._open = self._open, {}
        for _, descriptor, opened in lives.values():
            _close(descriptor, opened)


LIVENESS_LOCKS: Final = LivenessLocks()
"""The locks of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LIVENESS_LOCKS.end)


def _close(descriptor: int, opened: os.stat_result) -> None:
    """Close a descriptor, unless it has been closed and now belongs to another file."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), opened):
            os.close(descriptor)


def is_unlocked(path: Path) -> bool:
    """Whether no process has locked a file; False also if it cannot be opened, which proves nothing."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return try_lock(descriptor, exclusively=True)
        finally:
            os.close(descriptor)
    return False
