"""Segments as peers on the storage's host see them: files that are written once, mapped by many, never changed."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from scaler_protocol.errors import ObjectNotFoundError, ObjectRefusedError, StorageFullError, StorageLostError

_TOKEN_LIMIT = 4096
_MOST_BUFFERS = 512
COPY_BYTES = 256 * 1024
"""What is copied at a time where copies are written: it stays in a core's own cache."""


class Copying(Protocol):
    """Copies what is written, for a caller who must know what was written while others may change the buffers."""

    def restart(self) -> None:
        """The object is written from its beginning (again)."""

    def copy(self, piece: memoryview) -> bytes:
        """The next bytes of the object, as they are written."""


def copies(buffers: Sequence[memoryview], copying: Copying) -> Iterator[memoryview]:
    """Buffers as copies of COPY_BYTES at most."""
    copying.restart()
    for buffer in buffers:
        for at in range(0, len(buffer), COPY_BYTES):
            yield memoryview(copying.copy(buffer[at : at + COPY_BYTES]))


def read_token(directory: str) -> bytes:
    """What proves that we are on the host of the storage with this segment directory, or nothing if we are not."""
    if not directory or sys.platform == "win32":
        return b""
    try:
        with open(Path(directory, "token"), "rb") as file:
            return file.read(_TOKEN_LIMIT)
    except OSError:
        return b""


def map_segment(directory: str, name: str, size: int) -> mmap.mmap:
    """The first `size` bytes of a segment, for reading.

    Raises ObjectNotFoundError where it is gone, and OSError where this process can not map it.
    """
    try:
        with open(Path(directory, name), "rb", buffering=0) as file:
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except (FileNotFoundError, ValueError) as error:
        raise ObjectNotFoundError(f"its segment is gone: {error}") from error


class SegmentWriter:
    """Writes buffers into a segment, one behind the other.

    Not by a mapping: where memory runs out a write is refused, while a mapping ends the process, and other threads run
    meanwhile. Raises StorageLostError where the segment is gone, StorageFullError where there is no memory, and
    ObjectRefusedError where this process can not write it.
    """

    def __init__(
        self, directory: str, name: str, buffers: Sequence[memoryview], copying: Copying | None = None
    ) -> None:
        self._rest = list(reversed(buffers))
        self._copying = copying
        self._at = 0
        try:
            self._file = os.open(Path(directory, name), os.O_WRONLY)
        except OSError as error:
            raise _refusal(error) from error

    def write(self, limit: int) -> bool:
        """Write up to about `limit` bytes; whether that was all."""
        if self._copying is None:
            return self._write_some(limit)
        return any(self._write_some(COPY_BYTES) for _ in range(0, limit, COPY_BYTES))

    def _write_some(self, limit: int) -> bool:
        batch, size = list[memoryview](), 0
        while self._rest and size < limit and len(batch) < _MOST_BUFFERS:
            buffer = self._rest.pop()
            if len(buffer) > limit - size:
                self._rest.append(buffer[limit - size :])
                buffer = buffer[: limit - size]
            batch.append(buffer if self._copying is None else memoryview(self._copying.copy(buffer)))
            size += len(buffer)
        while batch:
            written = self._write(batch)
            self._at += written
            while batch and written >= len(batch[0]):
                written -= len(batch.pop(0))
            if written:
                batch[0] = batch[0][written:]
        return not self._rest

    def _write(self, batch: list[memoryview]) -> int:
        if sys.platform == "win32":
            raise StorageLostError("segments are not on this system")
        try:
            return os.pwritev(self._file, batch, self._at)
        except OSError as error:
            raise _refusal(error) from error

    def close(self) -> None:
        """Write no more; may be repeated."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _refusal(error: OSError) -> StorageLostError | ObjectRefusedError:
    if error.errno == errno.ENOENT:
        return StorageLostError(f"its segment is gone: {error}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFullError(f"the memory for segments is full: {error}")
    return ObjectRefusedError(f"its segment can not be written: {error}")
