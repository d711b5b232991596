"""Files and directories that no other user can forge."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import Final

SERVER_PREFIX: Final = "scaler-objects-"
"""Prefix of the names of the directories in which servers keep objects."""
_OPEN: Final = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK"))
_OTHERS: Final = 0o077


def parent_fault(directory: Path) -> str:
    """Why it is unsafe to keep files below this directory; "" if it is safe. Raises OSError."""
    mode = directory.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return "every user may replace what is in it: set its sticky bit (chmod +t), or name another directory"
    return ""


def is_private_directory(path: Path) -> bool:
    """Whether this is a directory of this user that others cannot use; no symbolic link to one. Raises OSError."""
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and _is_ours_alone(found)


def open_private(path: Path, flags: int) -> int:
    """Open a regular file of this user that others cannot use, and return its descriptor; raises OSError.

    That is PermissionError for another file: a device, a link, a file with a second name, one that others can use.
    """
    try:
        descriptor = os.open(path, flags | _OPEN)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            told = "it is a symbolic link: name the file that it leads to"
            raise PermissionError(errno.EPERM, told, str(path)) from error
        raise
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and _is_ours_alone(found) and found.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise PermissionError(errno.EPERM, _file_fault(found), str(path))


def _file_fault(found: os.stat_result) -> str:
    """Why a file is not private."""
    if not stat.S_ISREG(found.st_mode):
        return "it is no regular file"
    if found.st_nlink > 1:
        return "it has a second name (a hard link)"
    if found.st_mode & _OTHERS:
        return f"other users can use it (mode {stat.S_IMODE(found.st_mode):o}): chmod 600"
    return "it belongs to another user"


def _is_ours_alone(found: os.stat_result) -> bool:
    return sys.platform != "win32" and found.st_uid == os.geteuid() and not found.st_mode & _OTHERS
