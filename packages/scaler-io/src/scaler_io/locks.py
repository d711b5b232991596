"""Locks on open files, which the kernel gives back with the last process that has the file open, however that ends."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

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


class Life:
    """A file that is locked as long as this process lives, or one that was forked from it.

    Raises OSError where there can be none.
    """

    def __init__(self, directory: str) -> None:
        self.name = secrets.token_hex(8)
        self._path = Path(directory, PEERS, self.name)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try_lock(self._descriptor, exclusively=True)

    def close(self) -> None:
        """It is over."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def is_over(path: Path) -> bool:
    """Whether a life has ended; its file goes then."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        over = try_lock(descriptor, exclusively=True)
    finally:
        os.close(descriptor)
    if over:
        path.unlink(missing_ok=True)
    return over
