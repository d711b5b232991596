"""FileSegments: segments as files, usually on tmpfs, and the thread that spills and loads objects."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue

from scaler_io.objects.file_locks import PEERS, is_unlocked
from scaler_io.objects.segments import TOKEN_BYTES
from scaler_protocol.errors import ObjectRefusedError, StorageFullError
from scaler_protocol.objects import CHALLENGE_BYTES, SHARED_BYTES
from scaler_storage.engine.segments import Moved, Segment, size_class

LOGGER = logging.getLogger("scaler")
_RESERVED_BYTES = 8 * 1024 * 1024
"""How much memory is reserved at allocation; the rest is allocated as it is written, to keep `allocate` short."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_SLICE_BYTES = 8 * 1024 * 1024


class FileSegments:
    """The segments of one server, in two directories that it owns; without `disk` it cannot spill."""

    def __init__(self, memory: Path, disk: Path | None, restore: Callable[[], bool] = lambda: False) -> None:
        """`restore` recreates the directory `memory` if it was removed, and returns whether it was."""
        self.directory = str(memory)
        self.token = os.urandom(TOKEN_BYTES)
        self.challenge = os.urandom(CHALLENGE_BYTES)
        self.spills = disk is not None
        self._memory = memory
        self._disk = disk or memory
        self._count = 0
        self._restore, self._reported = restore, False
        self._create_contents()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._jobs: SimpleQueue[tuple[int, Segment, int, bool] | None] = SimpleQueue()
        self._moved: deque[Moved] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scaler-spill", daemon=True)
        if self.spills:
            self._thread.start()

    def _create_contents(self) -> None:
        with open(os.open(self._memory / "token", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(self.token)
        (self._memory / PEERS).mkdir(mode=0o700)

    def restored(self) -> bool:
        """Whether another program removed the directory: it is recreated, and its segments are lost."""
        try:
            restored = self._restore()
            if restored:
                self._create_contents()
        except OSError as error:
            if not self._reported:
                LOGGER.error("segment directory %s was removed and cannot be recreated: %s", self._memory, error)
            self._reported = True
            return False
        self._reported = False
        return restored

    def capacity(self, size: int) -> int:
        """The capacity, in bytes, of a segment for `size` bytes."""
        return size_class(size)

    def allocate(self, size: int) -> Segment:
        """Create a segment for `size` bytes; raises StorageFullError, or ObjectRefusedError for other failures."""
        capacity = size_class(size)
        if size < SHARED_BYTES:
            return Segment(capacity)  # a file costs more than these few bytes
        self._count += 1
        segment = Segment(capacity, f"{self._count:x}")
        try:
            descriptor = os.open(self._memory / segment.name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            try:
                reserved = min(capacity, _RESERVED_BYTES)
                os.posix_fallocate(descriptor, 0, reserved)
                found = os.fstatvfs(descriptor)
                if capacity - reserved > found.f_bavail * found.f_frsize:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.ftruncate(descriptor, capacity)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.free(segment)
            raise self._refusal(error) from error
        return segment

    def _refusal(self, error: OSError) -> ObjectRefusedError:
        kind = StorageFullError if error.errno in _FULL else ObjectRefusedError
        return kind(f"segment directory {self._memory}: {error.strerror}")

    def write(self, segment: Segment, offset: int, part: bytes | memoryview) -> None:
        """Write bytes at `offset`; raises as `allocate` does."""
        if not segment.name:
            segment.content = part  # smaller than a part, so this is the whole object
            return
        try:
            descriptor = os.open(self._memory / segment.name, os.O_WRONLY)
            try:
                _write(descriptor, part, offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._refusal(error) from error

    def read(self, segment: Segment, offset: int, length: int) -> bytes | memoryview:
        """Read bytes; raises OSError if the segment is lost."""
        if not segment.name:
            content = segment.content
            return content if len(content) == length else memoryview(content)[offset : offset + length]
        return _read(self._memory / segment.name, offset, length)

    def read_spilled(self, ticket: int, offset: int, length: int) -> bytes:
        """Read spilled bytes from disk; raises OSError."""
        return _read(self._spilled(ticket), offset, length)

    def free(self, segment: Segment) -> None:
        """Free the memory; existing mappings stay valid."""
        segment.content = b""
        if segment.name:
            _remove(self._memory / segment.name)

    def spill(self, ticket: int, segment: Segment, size: int) -> None:
        """Begin to write the first `size` bytes to disk, as `ticket`."""
        self._jobs.put((ticket, segment, size, True))

    def load(self, ticket: int, segment: Segment, size: int) -> None:
        """Begin to read into the segment what was spilled as `ticket`."""
        self._jobs.put((ticket, segment, size, False))

    def forget(self, ticket: int) -> None:
        """Delete the spilled bytes, complete or not."""
        _remove(self._spilled(ticket))

    def fileno(self) -> int:
        """A descriptor that is readable when `finished` has something to return."""
        return self._woken

    def finished(self) -> list[Moved]:
        """Return the spills and loads that ended since the last call."""
        if not self._moved:
            return []
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        return [self._moved.popleft() for _ in range(len(self._moved))]

    def unlocked(self, lock_files: Iterable[str]) -> set[str]:
        """Return the `lock_files` whose locks are free: their processes are dead. A missing file proves nothing."""
        return {lock_file for lock_file in lock_files if is_unlocked(self._memory / PEERS / lock_file)}

    def forget_lock_file(self, lock_file: str) -> None:
        """Remove the lock file of a dead process."""
        _remove(self._memory / PEERS / lock_file)

    def close(self) -> None:
        """Stop the thread, even in the middle of an object."""
        self._closing.set()
        if self.spills:
            self._jobs.put(None)
            self._thread.join()
        os.close(self._wake)
        os.close(self._woken)

    # --- on the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None and not self._closing.is_set():
            ticket, segment, size, out = job
            error, full = "", False
            try:
                if segment.name:
                    memory, disk = self._memory / segment.name, self._spilled(ticket)
                    self._copy(*(memory, disk) if out else (disk, memory), size)
                elif out:
                    self._spilled(ticket).write_bytes(segment.content)
                else:
                    segment.content = self._spilled(ticket).read_bytes()
            except OSError as failure:
                error = f"{failure.filename or (self._disk if out else self._memory)}: {failure.strerror}"
                # A load that fails for lack of memory leaves the object on disk.
                full = failure.errno in _FULL or (not out and failure.filename != str(self._spilled(ticket)))
            except MemoryError:
                error, full = "no memory", True
            self._moved.append(Moved(ticket, error, full))
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake, b"\0")

    def _copy(self, source: Path, sink: Path, size: int) -> None:
        with (
            open(source, "rb", buffering=0) as reader,
            open(os.open(sink, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as to,
        ):
            at = 0
            while at < size and not self._closing.is_set():
                sent = os.sendfile(to.fileno(), reader.fileno(), at, min(_SLICE_BYTES, size - at))
                if not sent:
                    raise OSError(errno.EIO, "file is too short", str(source))
                at += sent

    def _spilled(self, ticket: int) -> Path:
        return self._disk / f"spilled-{ticket:x}"


def _remove(path: Path) -> None:
    """Remove a file, and log a failure: the file is removed with its directory later, and no request depends on it."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        LOGGER.error("%s cannot be removed: %s", path, error.strerror)


def _read(path: Path, offset: int, length: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        part = os.pread(descriptor, length, offset)
    finally:
        os.close(descriptor)
    if len(part) != length:
        raise OSError(errno.EIO, "file is too short", str(path))
    return part


def _write(descriptor: int, part: bytes | memoryview, offset: int) -> None:
    view = memoryview(part)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
