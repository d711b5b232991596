"""Directories that end with their server, also with one that was killed: the next server removes what is left of it.

A living server holds a lock on the file `lock` in its directory, which the kernel gives up when the process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

if sys.platform != "linux":
    raise ImportError("servers of Scaler run on Linux only")

_PREFIX = "scaler-objects-"
_LOCK = "lock"
_MAKING_SECONDS = 60.0
"""A directory without a lock may be one that is just being made."""


class OwnDirectory:
    """A fresh directory of mode 0700 in `parent`, until it is closed; raises OSError where there can be none."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_dead(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # Under its name there is never a lock that nobody holds.
        making = self.path / f"{_LOCK}.new"
        self._lock = os.open(making, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        making.rename(self.path / _LOCK)

    def __enter__(self) -> OwnDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_dead(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        # Another one who starts may be removing it, or it belongs to another user.
        with contextlib.suppress(OSError):
            if _is_dead(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_dead(path: Path) -> bool:
    if path.stat(follow_symlinks=False).st_uid != os.getuid() or path.is_symlink():
        return False
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return time.time() > path.stat().st_mtime + _MAKING_SECONDS
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
