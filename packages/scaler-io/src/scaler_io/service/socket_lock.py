"""SocketLock: claims the path of a socket in a directory that others write to, too."""

from __future__ import annotations

import contextlib
import glob
import os
import stat
import sys

if sys.platform != "linux":
    raise ImportError("servers of Scaler run on Linux only")

import fcntl


class SocketLock:
    """A path that this process may bind a socket to until `release`, because it holds the lock on `<path>.lock`.

    The socket of an owner that has ended is removed; anything but a socket of this user is left alone. Raises OSError
    if the path cannot be claimed.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = _locked(f"{path}.lock")
        try:
            self._clear()
        except OSError:
            self._unlock()
            raise

    def _clear(self) -> None:
        try:
            is_own = _is_own_socket(self.path)
        except FileNotFoundError:
            return
        if not is_own:
            raise FileExistsError(f"{self.path} exists and is not a socket of this user")
        os.unlink(self.path)

    def release(self) -> None:
        """Remove the socket and the lock."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self._unlock()

    def _unlock(self) -> None:
        # Removed before it is released: a process that has opened it meanwhile sees that it is not the file any more.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.path}.lock")
        os.close(self._lock)


def remove_dead(pattern: str) -> None:
    """Remove the sockets of this user whose path matches and whose owners have ended without releasing them."""
    for path in glob.glob(f"{pattern}.lock"):
        socket = path.removesuffix(".lock")
        with contextlib.suppress(OSError):  # another process holds it, or removes it
            if _is_own_socket(socket):
                SocketLock(socket).release()


def _is_own_socket(path: str) -> bool:
    found = os.lstat(path)
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()


def _locked(path: str) -> int:
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(lock, path):
                return lock
        except BlockingIOError:
            os.close(lock)
            raise FileExistsError(f"another process holds {path}") from None
        except OSError:
            os.close(lock)
            raise
        os.close(lock)


def _is_still(descriptor: int, path: str) -> bool:
    """Whether the open file still has this name; its last owner may just have removed it."""
    try:
        named = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), named)
