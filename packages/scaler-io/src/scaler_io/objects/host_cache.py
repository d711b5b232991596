"""HostCache: stored objects of a server elsewhere, fetched once for all processes of a host that share a directory.

No process stands behind it, only files in memory and the kernel's locks on them, which end with whoever holds them,
however that ends. A file is named after its object, the version that the server counts (what is written anew under an
old name is another file), and its size; it has all bytes when it has that size.

    nobody has it ──hold──▶ GROWING: who has the lock appends ──the last byte──▶ COMPLETE: who has it mapped
                               └── that one ended: the next one goes on where it stands       shares the lock

Room is what names say. Who begins a file counts all of them, removes what nobody has locked, unused for longest first,
and where that is not enough does without: so there is no lock around it all that a stopped process could keep.
A mapping keeps its file's lock until it is gone, also from processes that were forked with it. What is held
(scaler_io.objects.replicas) stays until it is not any more.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from scaler_io.objects.file_locks import try_lock
from scaler_protocol.objects import Reference

REPLICAS = "replicas"
"""The directory of second names (scaler_io.objects.replicas): a file that has one stays."""
TOKEN = "token"
Give = Callable[[int], bool]
"""Lets go of about so many bytes that are held; False where that can not be."""
UNUSED_SECONDS = 30.0
"""What nobody has needed for so long is given up."""


class CachedFile:
    """One open file of a cache, and a lock on it until it is closed."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self._path, self._descriptor, self._size = path, descriptor, size
        self._lock = threading.Lock()

    @property
    def filled(self) -> int:
        """The bytes that are there."""
        return os.fstat(self._descriptor).st_size

    @property
    def complete(self) -> bool:
        """Whether all are."""
        return self.filled == self._size

    @property
    def removed(self) -> bool:
        """Whether others do not find it any more."""
        return not os.fstat(self._descriptor).st_nlink

    def hold(self) -> bool:
        """Lock it, alone to append to it or, when it is complete, with others to map it; does not wait."""
        return try_lock(self._descriptor, exclusively=not self.complete)

    def share(self) -> None:
        """Let others map what is complete."""
        try_lock(self._descriptor, exclusively=False)

    def append(self, offset: int, part: bytes | memoryview) -> None:
        """Write where `filled` ends; raises OSError where there is no memory, or it is closed."""
        with self._lock:  # another thread may be about to close it, and its number would soon be another file's
            view = memoryview(part)
            if sys.platform == "win32":
                raise OSError("there is no cache on this system")
            while view:
                written = os.pwrite(self._descriptor, view, offset)
                view, offset = view[written:], offset + written

    def map(self) -> mmap.mmap | None:
        """All bytes, for reading, of a complete file; None where somebody else has got hold of it."""
        if not try_lock(self._descriptor, exclusively=False):
            return None
        os.utime(self._descriptor)
        return mmap.mmap(self._descriptor, self._size, access=mmap.ACCESS_READ)

    def remove(self) -> None:
        """Let others not find it any more."""
        if not self.removed:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def close(self) -> None:
        """Give the lock back, unless it is mapped."""
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True, slots=True)
class _Found:
    path: Path
    size: int
    used: float


class HostCache:
    """The files in a directory, whose sizes are together at most `limit` bytes."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory, self._limit = directory, limit

    def open(self, reference: Reference, version: int) -> CachedFile | None:
        """The file of an object, new if need be; None where there can be none."""
        path = self.directory / cached_name(reference, version)
        if reference.size > self._limit:
            return None
        try:
            return CachedFile(path, os.open(path, os.O_RDWR | os.O_CREAT, 0o600), reference.size)
        except OSError:
            return None

    def make_room(self, file: CachedFile, give: Give | None = None) -> bool:
        """Remove others until all are within the limit, or say that they are not."""
        excess = self._make_room(file)
        if excess > 0 and give is not None and give(excess):
            excess = self._make_room(file)
        return excess <= 0

    def _make_room(self, file: CachedFile) -> int:
        """The bytes that are still too many."""
        found = sorted(self._found(), key=lambda each: each.used)
        excess = sum(each.size for each in found) - self._limit
        for each in found:
            if excess <= 0:
                break
            if each.path != file._path and _removed(each.path):
                excess -= each.size
        return excess

    def write(self, reference: Reference, version: int, buffers: Iterable[memoryview], give: Give) -> CachedFile | None:
        """A new file that holds these, and is locked; None where there is no room, or somebody else writes it."""
        file = self.open(reference, version)
        if file is None:
            return None
        written = False
        try:
            if file.hold() and not file.complete and self.make_room(file, give):
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
        """Remove what nobody has needed for so long."""
        now = time.time()
        for each in self._found():
            if now - each.used >= unused_seconds:
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
    """The name of its file."""
    return f"{reference.object.hex()}-{version:x}-{reference.size}"


def _removed(path: Path) -> bool:
    """Whether the file is gone now: not while anybody uses it, or it is held."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return not path.exists()
    try:
        if not try_lock(descriptor, exclusively=True):
            return False
        # By its name, which another one may have had removed, and given to a new file, since it was opened.
        links = os.fstat(descriptor).st_nlink
        if links == 1:
            os.unlink(path)
        return links < 2
    except FileNotFoundError:
        return True
    finally:
        os.close(descriptor)
