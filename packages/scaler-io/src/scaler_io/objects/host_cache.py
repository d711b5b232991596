"""HostCache: objects of a server on another host, fetched once for all processes of a host that share a directory.

No process manages it: it consists of files in shared memory and the kernel's locks on them, which end with the process
that holds them. A file is named after its object, the object's version (an object that is written again is another
file) and its size; it is complete when it has that size.

    no file ──lock──▶ GROWING: the process with the lock appends ──last byte──▶ COMPLETE: processes that map it
                         └── if it ends, the next one continues                           share the lock

The names of the files tell how much room is used. A process that begins a file adds up all sizes, removes files that
are not locked, the longest unused one first, and does without the cache if that is not enough. So there is no global
lock that a stopped process could hold. A mapping keeps its file locked until it is gone, also in processes that were
forked with it. Replicas (scaler_io.objects.replicas) stay until they are released.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from scaler_io.objects.file_locks import try_lock
from scaler_io.reentrant_lock import ReentrantLock
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.objects import Reference

REPLICAS = "replicas"
"""The directory of the replicas' second names (scaler_io.objects.replicas): a file with two names is not removed."""
TOKEN = "token"
FreeReplicas = Callable[[int], bool]
"""Makes about so many bytes of replicas removable; returns False if that is impossible."""
UNUSED_SECONDS = 30.0
"""After this time without use a file may be removed."""


class CachedFile:
    """An open file of a cache, and its lock until it is closed."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self._path, self._descriptor, self._size = path, descriptor, size
        self._closing = ReentrantLock()

    @property
    def filled(self) -> int:
        """The number of bytes that the file has."""
        return os.fstat(self._descriptor).st_size

    @property
    def complete(self) -> bool:
        """Whether the file has all bytes of the object."""
        return self.filled == self._size

    @property
    def removed(self) -> bool:
        """Whether the file has no name any more."""
        return not os.fstat(self._descriptor).st_nlink

    def lock(self) -> bool:
        """Try to lock the file: exclusively to append to it, shared to map it if it is complete."""
        return try_lock(self._descriptor, exclusively=not self.complete)

    def share_lock(self) -> None:
        """Turn the lock of a complete file into a shared one, so that others can map it."""
        try_lock(self._descriptor, exclusively=False)

    def append(self, offset: int, part: bytes | memoryview) -> None:
        """Write at `offset`, which is `filled`; raises OSError if there is no memory, or the file is closed."""
        with self._closing:  # another thread may close the descriptor, which may then belong to another file
            view = memoryview(part)
            if sys.platform == "win32":
                raise OSError("there is no cache on this system")
            while view:
                written = os.pwrite(self._descriptor, view, offset)
                view, offset = view[written:], offset + written

    def map(self) -> mmap.mmap | None:
        """Map a complete file for reading; None if another process has locked it exclusively."""
        if not try_lock(self._descriptor, exclusively=False):
            return None
        os.utime(self._descriptor)
        return mmap.mmap(self._descriptor, self._size, access=mmap.ACCESS_READ)

    def remove(self) -> None:
        """Remove the name of the file, so that others do not find it."""
        if not self.removed:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def close(self) -> None:
        """Close the file and release its lock, unless it is mapped."""
        with self._closing:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True, slots=True)
class _Found:
    path: Path
    size: int
    used: float


class HostCache:
    """The files in a directory, of `limit` bytes in total."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory, self._limit = directory, limit

    def open(self, reference: Reference, version: int) -> CachedFile | None:
        """Open the file of an object, or make it; None if that is impossible."""
        path = self.directory / cached_name(reference, version)
        if reference.size > self._limit:
            return None
        try:
            return CachedFile(path, os.open(path, os.O_RDWR | os.O_CREAT, 0o600), reference.size)
        except OSError:
            return None

    def make_room(self, file: CachedFile, free_replicas: FreeReplicas | None = None) -> bool:
        """Remove other files until all are within the limit; returns whether they are."""
        excess = self._remove_others(file)
        if excess > 0 and free_replicas is not None and free_replicas(excess):
            excess = self._remove_others(file)
        return excess <= 0

    def _remove_others(self, file: CachedFile) -> int:
        """Remove other files until all are within the limit; returns the bytes above it."""
        found = sorted(self._found(), key=lambda each: each.used)
        excess = sum(each.size for each in found) - self._limit
        for each in found:
            if excess <= 0:
                break
            if each.path != file._path and _removed(each.path):
                excess -= each.size
        return excess

    def write(
        self, reference: Reference, version: int, buffers: Iterable[memoryview], free_replicas: FreeReplicas
    ) -> CachedFile | None:
        """Make a locked file with these bytes; None if there is no room, or another process writes it."""
        file = self.open(reference, version)
        if file is None:
            return None
        written = False
        try:
            if file.lock() and not file.complete and self.make_room(file, free_replicas):
                for buffer in buffers:
                    file.append(file.filled, buffer)
                written = file.complete
        except OSError:
            written = False
        finally:
            if not written:
                file.remove()
                file.close()
        return file if written else None

    def trim(self, unused_seconds: float = UNUSED_SECONDS) -> None:
        """Remove the files that were not used for this time."""
        found = self._found()
        now = time.time()
        for each in found:
            if not 0.0 <= now - each.used < unused_seconds:  # the clock may have been set back
                _removed(each.path)

    def _found(self) -> list[_Found]:
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            for entry in entries:
                _, _, size = entry.name.rpartition("-")
                if size.isdigit():
                    with contextlib.suppress(FileNotFoundError):
                        found.append(_Found(Path(entry.path), int(size), entry.stat().st_mtime))
        return found


def cached_name(reference: Reference, version: int) -> str:
    """The name of an object's file."""
    return f"{reference.object.hex()}-{version:x}-{reference.size}"


def _removed(path: Path) -> bool:
    """Remove a file that is neither in use nor a replica; returns whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return not path.exists()
    try:
        if not try_lock(descriptor, exclusively=True):
            return False
        # Since it was opened, another process may have removed it and made a new file with this name.
        links = os.fstat(descriptor).st_nlink
        if links == 1:
            os.unlink(path)
        return links < 2
    except FileNotFoundError:
        return True
    finally:
        os.close(descriptor)
