"""Segments as peers on the server's host use them: files that are written once, mapped by many, never changed."""

from __future__ import annotations

import errno
import mmap
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from scaler_io.private_files import SERVER_PREFIX, is_private_directory, open_private
from scaler_protocol.errors import ObjectNotFoundError, ObjectRefusedError, StorageFullError, StorageLostError
from scaler_protocol.ranges import shown

TOKEN_BYTES = 32
_SEGMENT_NAME = re.compile("[0-9a-f]{1,16}")
_MOST_BUFFERS = 512
COPY_BYTES = 256 * 1024
"""Bytes that are copied at a time if copies are written: few enough for a CPU core's own cache."""


class Copying(Protocol):
    """Copies the bytes that are written, for a caller that must know them although others may change the buffers."""

    def restart(self) -> None:
        """Begin at the first byte of the object, perhaps again."""

    def copy(self, piece: memoryview) -> bytes:
        """Copy the next bytes of the object; the copy is written."""


def copies(buffers: Sequence[memoryview], copying: Copying) -> Iterator[memoryview]:
    """Copies of the buffers, in pieces of at most COPY_BYTES."""
    copying.restart()
    for buffer in buffers:
        for at in range(0, len(buffer), COPY_BYTES):
            yield memoryview(copying.copy(buffer[at : at + COPY_BYTES]))


def read_token(directory: str) -> bytes:
    """The token that proves that we are on the host of this segment directory; empty if we are not.

    A server names the directory. It is believed only if the directory is one that a server of this user has made.
    """
    path = Path(directory)
    try:
        if not path.is_absolute() or not path.name.startswith(SERVER_PREFIX) or not is_private_directory(path):
            return b""
        with open(open_private(path / "token", os.O_RDONLY), "rb") as file:
            token = file.read(TOKEN_BYTES + 1)
    except (OSError, ValueError):  # a name with a null character
        return b""
    return token if len(token) == TOKEN_BYTES else b""


def _segment_path(directory: str, name: str) -> Path:
    """Where a segment is; raises ObjectRefusedError for a name that no server gives."""
    if _SEGMENT_NAME.fullmatch(name) is None:
        raise ObjectRefusedError(f"its segment has the name {shown(name)}, not a hexadecimal number")
    return Path(directory, name)


def map_segment(directory: str, name: str, size: int) -> mmap.mmap:
    """Map the first `size` bytes of a segment, for reading.

    Raises ObjectNotFoundError if it is gone, ObjectRefusedError for another name than segments have, OSError if this
    process cannot map it.
    """
    try:
        with open(open_private(_segment_path(directory, name), os.O_RDONLY), "rb", buffering=0) as file:
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except (FileNotFoundError, ValueError) as error:
        raise ObjectNotFoundError(f"its segment is gone: {error}") from error


class SegmentWriter:
    """Writes buffers into a segment, one after the other.

    It does not use a mapping: without memory a write fails, but a mapping ends the process; and other threads run
    during a write. Raises StorageLostError if the segment is gone, StorageFullError if there is no memory, and
    ObjectRefusedError if this process cannot write it.
    """

    def __init__(
        self, directory: str, name: str, buffers: Sequence[memoryview], copying: Copying | None = None
    ) -> None:
        self._rest = list(reversed(buffers))
        self._copying = copying
        self._at = 0
        try:
            self._file = open_private(_segment_path(directory, name), os.O_WRONLY)
        except OSError as error:
            raise _refusal(error) from error

    def write(self, limit: int) -> bool:
        """Write up to about `limit` bytes; returns whether all bytes are written."""
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
            raise StorageLostError("this system has no segments")
        try:
            return os.pwritev(self._file, batch, self._at)
        except OSError as error:
            raise _refusal(error) from error

    def close(self) -> None:
        """Close the file; may be repeated."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _refusal(error: OSError) -> StorageLostError | ObjectRefusedError:
    if error.errno == errno.ENOENT:
        return StorageLostError(f"its segment is gone: {error}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFullError(f"the memory for segments is full: {error}")
    return ObjectRefusedError(f"its segment cannot be written: {error}")
