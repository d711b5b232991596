"""Crash reports that the fault handlers of workers write: one memory file with a slot per worker.

The file has no name, so it cannot be unlinked and does not outlive its agent. Each worker writes through its own open
file description, whose offset is inside its slot.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

SLOT_BYTES: Final = 1024 * 1024
"""A report of a hundred threads fits. Pages that are never written take no memory."""
_PIECE_BYTES: Final = 64 * 1024


class CrashReports:
    """The crash reports of one agent's workers, by worker number. The file closes with the process."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("scaler-crashes", os.MFD_CLOEXEC)

    def open(self, worker: int) -> int:
        """Open a descriptor for the fault handler of this worker; raises OSError."""
        descriptor = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC)
        os.lseek(descriptor, worker * SLOT_BYTES, os.SEEK_SET)
        return descriptor

    def take(self, worker: int, limit: int = 4096) -> str:
        """Return the last `limit` bytes of the worker's report as text, and clear its slot."""
        start, text = worker * SLOT_BYTES, b""
        with contextlib.suppress(OSError):
            while len(text) < SLOT_BYTES:
                piece = os.pread(self._descriptor, _PIECE_BYTES, start + len(text)).partition(b"\0")[0]
                text += piece
                if len(piece) < _PIECE_BYTES:
                    break
            os.pwrite(self._descriptor, bytes(len(text)), start)
        return text[-limit:].decode("utf-8", "replace")
