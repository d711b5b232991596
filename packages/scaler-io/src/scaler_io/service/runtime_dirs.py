"""Directories that end with their server, also with one that was killed: the next server removes what is left of it.

A living server holds a lock on the file `lock` in its directory, which the kernel gives up when the process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

if sys.platform != "linux":
    raise ImportError("servers of Scaler run on Linux only")

_PREFIX = "scaler-objects-"
_LOCK = "lock"
_MAKING_SECONDS = 60.0
"""A directory without a lock may be one that is just being made."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMES = 8
"""Under how many names a host's directory is looked for: another user may have taken some."""


class ServerDirectory:
    """A fresh directory of mode 0700 in `parent`, until it is closed; raises OSError where there can be none."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_dead(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = self._make_lock()

    def _make_lock(self) -> int:
        # Under its name there is never a lock that nobody holds.
        making = self.path / f"{_LOCK}.new"
        lock = os.open(making, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        making.rename(self.path / _LOCK)
        return lock

    def restore(self) -> bool:
        """Make it again where somebody else has removed it, and say whether that was so; raises OSError.

        systemd-logind does that with what a user has in shared memory when the user logs out (RemoveIPC=).
        """
        if _is_lock_of(self._lock, self.path):
            return False
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(mode=0o700)
        os.close(self._lock)
        self._lock = self._make_lock()
        return True

    def __enter__(self) -> ServerDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


class HostDirectory:
    """The directory of mode 0700 in `parent` that programs of a user on this host share, until the last one ends.

    What a killed one leaves is taken up by whoever comes next, or removed, as all directories here are. It is of this
    start of the host: of what an earlier one left on a disk not all may have been written. Raises OSError.
    """

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        name = f"{_PREFIX}host-{os.getuid()}-{_BOOT.read_text('utf-8').split('-')[0]}"
        self.path, self._lock = _joined(parent / name)
        _remove_dead(parent)

    def __enter__(self) -> HostDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):  # others are still here
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_lock_of(self._lock, self.path):
                _remove(self.path)
        os.close(self._lock)


def _joined(path: Path) -> tuple[Path, int]:
    """A directory of ours of this name, or of one behind it where that is another's, and our lock there."""
    for place in (path, *(path.with_name(f"{path.name}-{number}") for number in range(1, _NAMES))):
        while True:
            try:
                lock = _shared_lock(place)
            except FileNotFoundError:  # it was removed meanwhile
                continue
            except FileExistsError:
                break
            if _is_lock_of(lock, place):
                return place, lock
            os.close(lock)
    raise FileExistsError(f"{path} and names behind it are there, and no directories of this user with mode 0700")


def _shared_lock(place: Path) -> int:
    """Make a directory, unless it is there, and lock it with others; raises FileExistsError if it is not ours."""
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise FileExistsError(f"{place} is not ours alone")
    lock = os.open(place / _LOCK, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def _is_lock_of(lock: int, path: Path) -> bool:
    """Whether the open file is the lock in the directory of this name: another one may have taken its place."""
    try:
        return os.path.samestat(os.fstat(lock), os.lstat(path / _LOCK))
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    """Remove a directory that the caller alone has locked; a new one of its name may come at once."""
    going = path.with_name(f"{_PREFIX}{secrets.token_hex(8)}")
    path.rename(going)
    shutil.rmtree(going, ignore_errors=True)


def _remove_dead(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        # Another one who starts may be removing it, or it belongs to another user.
        with contextlib.suppress(OSError), _dead(path) as dead:
            if dead:
                _remove(path)


@contextlib.contextmanager
def _dead(path: Path) -> Iterator[bool]:
    """Whether a directory is nobody's; nobody takes it up meanwhile."""
    if path.stat(follow_symlinks=False).st_uid != os.getuid() or path.is_symlink():
        yield False
        return
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield time.time() > path.stat().st_mtime + _MAKING_SECONDS
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield _is_lock_of(lock, path)
    finally:
        os.close(lock)
