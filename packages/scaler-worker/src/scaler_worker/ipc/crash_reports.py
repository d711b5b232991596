"""What the fault handlers of workers write: one memory file, with a slot for each worker.

The file has no name: nobody can remove it, and nothing is left of it when its agent is killed. A worker writes through
an open file description of its own, whose offset is in its slot.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

SLOT_BYTES: Final = 1024 * 1024
"""A report of a hundred threads is shorter. Only what is written takes memory."""
_PIECE_BYTES: Final = 64 * 1024


class CrashReports:
    """The reports of one agent's workers, by the worker's number. Closed with the process."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("scaler-crashes", os.MFD_CLOEXEC)

    def open(self, worker: int) -> int:
        """A descriptor for the fault handler of this worker; raises OSError."""
        descriptor = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC)
        os.lseek(descriptor, worker * SLOT_BYTES, os.SEEK_SET)
        return descriptor

    def take(self, worker: int, limit: int = 4096) -> str:
        """The last bytes of what the worker's fault handler wrote; the slot is empty afterwards."""
        start, text = worker * SLOT_BYTES, b""
        with contextlib.suppress(OSError):
            while len(text) < SLOT_BYTES:
                piece = os.pread(self._descriptor, _PIECE_BYTES, start + len(text)).partition(b"\0")[0]
                text += piece
                if len(piece) < _PIECE_BYTES:
                    break
            os.pwrite(self._descriptor, bytes(len(text)), start)
        return text[-limit:].decode("utf-8", "replace")
