"""Directories that are removed with their server; the next server removes those of servers that were killed.

A running server holds a lock on the file `lock` in its directory, which the kernel releases when the process ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from scaler_io.private_files import SERVER_PREFIX, parent_fault

if sys.platform != "linux":
    raise ImportError("servers of Scaler run on Linux only")

_LOCK = "lock"
_MAKING_SECONDS = 60.0
"""Age from which a directory without a lock is left over; a younger one may be under construction."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMES = 8
"""How many names are tried for a host's directory: other users may have taken some."""


class ServerDirectory:
    """A new directory of mode 0700 in `parent`, removed at exit; raises OSError if it cannot be made."""

    def __init__(self, parent: Path) -> None:
        _make_parent(parent)
        _remove_dead(parent)
        self.path = Path(tempfile.mkdtemp(prefix=SERVER_PREFIX, dir=parent))
        self._lock = self._make_lock()

    def _make_lock(self) -> int:
        # Renamed when it is locked: under its final name the lock file is always locked.
        making = self.path / f"{_LOCK}.new"
        lock = os.open(making, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        making.rename(self.path / _LOCK)
        return lock

    def restore(self) -> bool:
        """Make the directory again if another program has removed it; returns whether that was so. Raises OSError.

        systemd-logind removes a user's files in shared memory when the user logs out (RemoveIPC=).
        """
        if _is_lock_of(self._lock, self.path):
            return False
        _delete(self.path)
        self.path.mkdir(mode=0o700)
        os.close(self._lock)
        self._lock = self._make_lock()
        return True

    def __enter__(self) -> ServerDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _delete(self.path)
        os.close(self._lock)


class HostDirectory:
    """The directory of mode 0700 in `parent` that a user's programs on this host share, until the last one ends.

    If a program was killed, the next one uses its directory or removes it. A directory belongs to one boot of the host,
    because files on a disk may be incomplete after a crash. Raises OSError if there can be no directory.
    """

    def __init__(self, parent: Path) -> None:
        _make_parent(parent)
        name = f"{SERVER_PREFIX}host-{os.getuid()}-{_BOOT.read_text('utf-8').split('-')[0]}"
        self.path, self._lock = _joined(parent / name)
        _remove_dead(parent)

    def __enter__(self) -> HostDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):  # other programs still use it
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_lock_of(self._lock, self.path):
                _remove(self.path)
        os.close(self._lock)


def _make_parent(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if fault := parent_fault(directory):
        raise PermissionError(errno.EPERM, fault, str(directory))


def _joined(path: Path) -> tuple[Path, int]:
    """Find or make a directory of this user, under `path` or the next free name; returns it with our lock."""
    for place in (path, *(path.with_name(f"{path.name}-{number}") for number in range(1, _NAMES))):
        while True:
            try:
                lock = _shared_lock(place)
            except FileNotFoundError:  # removed meanwhile
                continue
            except FileExistsError:
                break
            if _is_lock_of(lock, place):
                return place, lock
            os.close(lock)
    raise FileExistsError(f"{path} and the next {_NAMES - 1} names exist, but not as this user's with mode 0700")


def _shared_lock(place: Path) -> int:
    """Make a directory, unless it exists, and take a shared lock; raises FileExistsError if it is not ours alone."""
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise FileExistsError(f"{place} is not ours alone")
    lock = os.open(place / _LOCK, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def _is_lock_of(lock: int, path: Path) -> bool:
    """Whether the open file is still the lock file of this directory: another one may have replaced it."""
    try:
        return os.path.samestat(os.fstat(lock), os.lstat(path / _LOCK))
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    """Remove a directory that the caller has locked exclusively; its name is free at once."""
    going = path.with_name(f"{SERVER_PREFIX}{os.urandom(8).hex()}")
    path.rename(going)
    _delete(going)


def _delete(path: Path) -> None:
    """Delete a directory with its lock last: the next program sees at once that what a killed one has left is dead."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != _LOCK:
                os.unlink(entry.path)
    shutil.rmtree(path, ignore_errors=True)


def _remove_dead(parent: Path) -> None:
    for path in parent.glob(f"{SERVER_PREFIX}*"):
        # Another starting program may be removing it, or it belongs to another user.
        with contextlib.suppress(OSError), _dead(path) as dead:
            if dead:
                _remove(path)


@contextlib.contextmanager
def _dead(path: Path) -> Iterator[bool]:
    """Whether no running program uses a directory; while this context is open none can begin to."""
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
