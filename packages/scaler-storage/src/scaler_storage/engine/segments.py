"""Segments: the engine's port for bytes in memory and on disk, and an implementation in process memory for tests.

Capacities are size classes, so that a freed segment fits the next object of about the same size. Its pages are already
allocated, which makes writing several times faster. No IO here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from scaler_protocol.errors import StorageFullError
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.objects import SHARED_BYTES

_PAGE = 4096
_CLASSES_PER_DOUBLING = 16


@dataclass(slots=True, eq=False)
class Segment:
    """Memory for one object: the file `name`, which local peers may map, or, if that is empty, `content`."""

    capacity: int
    name: str = ""
    content: bytes | memoryview = b""
    retired: bool = False
    """Whether an unknown process may still read or write it, so that it must never be reused."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The end of a spill or a load; `error` is empty if it succeeded.

    `full`: there was no room, and the object is where it was.
    """

    ticket: int
    error: str = ""
    full: bool = False


class Segments(Protocol):
    """Allocates, reads and writes segments. Spills and loads run in the background and appear in `finished`."""

    directory: str
    """The directory of the segment files; empty if there are no files."""
    token: bytes
    """A secret that only processes with access to `directory` can read."""
    challenge: bytes
    """Random bytes that peers answer with the token."""
    spills: bool
    """Whether there is a disk to spill to."""

    def capacity(self, size: int) -> int:
        """The capacity, in bytes, of a segment for `size` bytes."""

    def allocate(self, size: int) -> Segment:
        """Create a segment for `size` bytes; raises StorageFullError if there is no memory.

        Raises ObjectRefusedError with the reason for any other failure.
        """

    def write(self, segment: Segment, offset: int, part: bytes | memoryview) -> None:
        """Write bytes at `offset`; raises as `allocate` does."""

    def read(self, segment: Segment, offset: int, length: int) -> bytes | memoryview:
        """Read bytes; raises OSError, with ENOENT or EIO if the segment is lost."""

    def free(self, segment: Segment) -> None:
        """Free the memory; existing mappings stay valid."""

    def spill(self, ticket: int, segment: Segment, size: int) -> None:
        """Begin to write the first `size` bytes to disk, as `ticket`."""

    def load(self, ticket: int, segment: Segment, size: int) -> None:
        """Begin to read into the segment what was spilled as `ticket`."""

    def forget(self, ticket: int) -> None:
        """Delete the spilled bytes, complete or not."""

    def finished(self) -> list[Moved]:
        """Return the spills and loads that ended since the last call."""

    def read_spilled(self, ticket: int, offset: int, length: int) -> bytes | memoryview:
        """Read spilled bytes from disk; raises OSError."""

    def restored(self) -> bool:
        """Whether another program removed `directory`: it is recreated, and all segments with names are lost."""

    def unlocked(self, lock_files: Iterable[str]) -> set[str]:
        """Return the `lock_files` whose locks are free: their processes are dead. A missing file proves nothing."""

    def forget_lock_file(self, lock_file: str) -> None:
        """Remove the lock file of a dead process."""


def size_class(size: int, shared_bytes: int = SHARED_BYTES) -> int:
    """The capacity of the segment for an object of `size` bytes: whole pages, at most 1/16 more than `size`.

    Exactly `size` if the object is too small to be shared, because it is then private memory of the server.
    """
    if size < shared_bytes:
        return size
    step = max(_PAGE, (1 << (size.bit_length() - 1)) // _CLASSES_PER_DOUBLING)
    return -(-size // step) * step


class MemorySegments:
    """Segments without files; spills and loads run when `work` is called."""

    def __init__(self, *, shared_bytes: int = SHARED_BYTES, directory: str = "", spills: bool = False) -> None:
        self.directory, self.token, self.spills = directory, b"token", spills
        self.challenge = b"challenge"
        self.room: int | None = None
        """Bytes that can still be allocated; None: no limit."""
        self.disk: dict[int, bytes] = {}
        self.disk_error = ""
        """The error of each spill; empty: they succeed."""
        self.memory_error = ""
        """The error of each load; empty: they succeed."""
        self.removed = False
        """Whether the directory was removed."""
        self.live: dict[Segment, bytearray] = {}
        self.dead: set[str] = set()
        """Lock files of dead processes."""
        self._shared_bytes = shared_bytes
        self._jobs: list[tuple[int, Segment, int, bool]] = []
        self._finished: list[Moved] = []
        self._numbers = 0

    def capacity(self, size: int) -> int:
        """See Segments."""
        return size_class(size, self._shared_bytes)

    def allocate(self, size: int) -> Segment:
        """See Segments."""
        capacity = self.capacity(size)
        if self.room is not None:
            if capacity > self.room:
                raise StorageFullError(f"{capacity:,} bytes are more than the {self.room:,} that are left")
            self.room -= capacity
        self._numbers += 1
        name = str(self._numbers) if size >= self._shared_bytes else ""
        segment = Segment(capacity, name)
        self.live[segment] = bytearray(capacity)
        return segment

    def write(self, segment: Segment, offset: int, part: bytes | memoryview) -> None:
        """See Segments."""
        assert offset + len(part) <= segment.capacity
        self.live[segment][offset : offset + len(part)] = part

    def read(self, segment: Segment, offset: int, length: int) -> bytes:
        """See Segments."""
        return bytes(self.live[segment][offset : offset + length])

    def free(self, segment: Segment) -> None:
        """See Segments."""
        del self.live[segment]
        if self.room is not None:
            self.room += segment.capacity

    def spill(self, ticket: int, segment: Segment, size: int) -> None:
        """See Segments."""
        self._jobs.append((ticket, segment, size, True))

    def load(self, ticket: int, segment: Segment, size: int) -> None:
        """See Segments."""
        self._jobs.append((ticket, segment, size, False))

    def forget(self, ticket: int) -> None:
        """See Segments."""
        self.disk.pop(ticket, None)

    def read_spilled(self, ticket: int, offset: int, length: int) -> bytes:
        """See Segments."""
        return self.disk[ticket][offset : offset + length]

    def restored(self) -> bool:
        """See Segments."""
        removed, self.removed = self.removed, False
        return removed

    def work(self) -> None:
        """Run the pending spills and loads."""
        for ticket, segment, size, out in self._jobs:
            error = self.disk_error if out else self.memory_error
            full = bool(error)
            if not error and out:
                self.disk[ticket] = self.read(segment, 0, size)
            elif not error and ticket in self.disk:
                self.write(segment, 0, self.disk[ticket])
            elif not error:
                error = "it is gone"
            self._finished.append(Moved(ticket, error, full))
        self._jobs.clear()

    def finished(self) -> list[Moved]:
        """See Segments."""
        finished, self._finished = self._finished, []
        return finished

    def unlocked(self, lock_files: Iterable[str]) -> set[str]:
        """See Segments."""
        return self.dead.intersection(lock_files)

    def forget_lock_file(self, lock_file: str) -> None:
        """See Segments."""
        self.dead.discard(lock_file)
