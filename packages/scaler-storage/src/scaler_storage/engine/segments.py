"""Segments: the memory that objects stand in, and the disk they may be moved to. The contract, and one without files.

Segments come in size classes, so that one that is freed fits the next object of about that size: its memory is there
already, which makes writing it several times faster. Pure, no IO.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from scaler_protocol.errors import StorageFullError
from scaler_protocol.objects import SHARED_BYTES

_PAGE = 4096
_CLASSES_PER_DOUBLING = 16


@dataclass(slots=True, eq=False)
class Segment:
    """Room for one object; `name` is its file, which peers on this host may map, or empty: then `content` has it."""

    capacity: int
    name: str = ""
    content: bytes | memoryview = b""
    lent: bool = False
    """Whether somebody whom nobody knows may still read or write it: then it is never used again."""


@dataclass(frozen=True, slots=True)
class Moved:
    """An object is on disk, or back in memory, or could not get there: `error` says why.

    `full`: there was no room for it, and it is where it was.
    """

    ticket: int
    error: str = ""
    full: bool = False


class Segments(Protocol):
    """Where the bytes are. What moves to and from disk does so meanwhile, and is found `finished` later."""

    directory: str
    """Where peers find the files of segments; empty where there are none."""
    token: bytes
    """What only those can know who can read `directory`."""
    spills: bool
    """Whether there is a disk to move objects to."""

    def capacity(self, size: int) -> int:
        """What a segment for `size` bytes has."""

    def allocate(self, size: int) -> Segment:
        """A new segment for `size` bytes; raises StorageFullError where the memory is not there.

        What else goes wrong is an ObjectRefusedError that says what.
        """

    def write(self, segment: Segment, offset: int, part: bytes | memoryview) -> None:
        """Put bytes where they belong; raises as `allocate` does."""

    def read(self, segment: Segment, offset: int, length: int) -> bytes | memoryview:
        """Bytes of a segment; raises OSError: ENOENT or EIO where it is gone."""

    def free(self, segment: Segment) -> None:
        """Give the memory back; whoever has mapped it may go on reading."""

    def spill(self, ticket: int, segment: Segment, size: int) -> None:
        """Begin to write the first `size` bytes to disk, as `ticket`."""

    def load(self, ticket: int, segment: Segment, size: int) -> None:
        """Begin to read into the segment what was spilled as `ticket`."""

    def forget(self, ticket: int) -> None:
        """Free the disk of what was spilled, entirely or in part."""

    def finished(self) -> list[Moved]:
        """What is over since the last time."""

    def read_spilled(self, ticket: int, offset: int, length: int) -> bytes | memoryview:
        """Bytes of what was spilled, without bringing it back; raises OSError."""

    def restored(self) -> bool:
        """Whether `directory` was removed by somebody else: it is there again, and all segments with names are gone."""

    def unlocked(self, lives: Iterable[str]) -> set[str]:
        """Which of these lives are locked by nobody: their processes have ended. A file that is gone proves nothing."""

    def forget_life(self, life: str) -> None:
        """A life has ended, and nobody asks for it again."""


def size_class(size: int, shared_bytes: int = SHARED_BYTES) -> int:
    """The capacity of the segment for an object of `size` bytes: at most a sixteenth more, in pages.

    Exactly the size where the object is too small to be shared: that is nobody's memory but the server's.
    """
    if size < shared_bytes:
        return size
    step = max(_PAGE, (1 << (size.bit_length() - 1)) // _CLASSES_PER_DOUBLING)
    return -(-size // step) * step


class MemorySegments:
    """Segments without files; nothing moves until `work` is called."""

    def __init__(self, *, shared_bytes: int = SHARED_BYTES, directory: str = "", spills: bool = False) -> None:
        self.directory, self.token, self.spills = directory, b"token", spills
        self.room: int | None = None
        """Bytes that can still be allocated, if not any number."""
        self.disk: dict[int, bytes] = {}
        self.disk_error = ""
        """Why nothing can be written to disk, if so."""
        self.memory_error = ""
        """Why nothing can be brought back, if so."""
        self.removed = False
        """Whether somebody has removed the directory."""
        self.live: dict[Segment, bytearray] = {}
        self.dead: set[str] = set()
        """Lives of peers that have ended."""
        self._shared_bytes = shared_bytes
        self._jobs: list[tuple[int, Segment, int, bool]] = []
        self._finished: list[Moved] = []
        self._numbers = 0

    def capacity(self, size: int) -> int:
        """As the contract says."""
        return size_class(size, self._shared_bytes)

    def allocate(self, size: int) -> Segment:
        """As the contract says."""
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
        """As the contract says."""
        assert offset + len(part) <= segment.capacity
        self.live[segment][offset : offset + len(part)] = part

    def read(self, segment: Segment, offset: int, length: int) -> bytes:
        """As the contract says."""
        return bytes(self.live[segment][offset : offset + length])

    def free(self, segment: Segment) -> None:
        """As the contract says."""
        del self.live[segment]
        if self.room is not None:
            self.room += segment.capacity

    def spill(self, ticket: int, segment: Segment, size: int) -> None:
        """As the contract says."""
        self._jobs.append((ticket, segment, size, True))

    def load(self, ticket: int, segment: Segment, size: int) -> None:
        """As the contract says."""
        self._jobs.append((ticket, segment, size, False))

    def forget(self, ticket: int) -> None:
        """As the contract says."""
        self.disk.pop(ticket, None)

    def read_spilled(self, ticket: int, offset: int, length: int) -> bytes:
        """As the contract says."""
        return self.disk[ticket][offset : offset + length]

    def restored(self) -> bool:
        """As the contract says."""
        removed, self.removed = self.removed, False
        return removed

    def work(self) -> None:
        """Move what is to be moved."""
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
        """As the contract says."""
        finished, self._finished = self._finished, []
        return finished

    def unlocked(self, lives: Iterable[str]) -> set[str]:
        """As the contract says."""
        return self.dead.intersection(lives)

    def forget_life(self, life: str) -> None:
        """As the contract says."""
        self.dead.discard(life)
