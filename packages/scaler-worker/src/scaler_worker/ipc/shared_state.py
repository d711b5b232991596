"""Shared memory of an agent, its template and its workers.

Each worker has three 64-bit cells: its current run, the start time of that run, and the revoked datagram sequence,
which the agent writes. After the cells come the scheduler's incarnation, a secret of this host, and the address of
object storage. The address is protected by a sequence lock: its version is odd while it is written.
"""

from __future__ import annotations

import mmap
import os
import secrets
from typing import Any, Final

CELLS: Final = 3
"""64-bit cells per worker; see `scaler_worker.worker.runner`."""
SECRET_BYTES: Final = 16
ADDRESS_BYTES: Final = 1024


class SharedState:
    """The cells of up to `count` workers in a memory file that agent, template and workers map."""

    def __init__(self, descriptor: int, count: int) -> None:
        self.descriptor = descriptor
        self.count = count
        self._view = memoryview(mmap.mmap(descriptor, _size(count))).cast("Q")
        rest = self._view[count * CELLS + 2 :].cast("B")
        self._secret, self._address = rest[:SECRET_BYTES], rest[SECRET_BYTES:]

    @classmethod
    def create(cls, count: int) -> SharedState:
        """Create the memory file; all cells are zero."""
        descriptor = os.memfd_create("scaler-state")
        os.ftruncate(descriptor, _size(count))
        shared = cls(descriptor, count)
        shared._secret[:] = secrets.token_bytes(SECRET_BYTES)
        return shared

    def cells(self, worker: int) -> Any:
        """The cells of one worker: a memoryview whose items are read and written atomically."""
        return self._view[worker * CELLS : (worker + 1) * CELLS]

    @property
    def secret(self) -> bytes:
        """The host's secret, from which `scaler_worker.ipc.frames.result_name` derives object ids."""
        return bytes(self._secret)

    @property
    def scheduler(self) -> int:
        """The incarnation of the scheduler; 0 before the first connection."""
        return int(self._view[self.count * CELLS + 1])

    @property
    def storage(self) -> str:
        """The address of object storage that the scheduler announced; empty before that."""
        at = self.count * CELLS
        while True:
            version, text = self._view[at], bytes(self._address)
            if not version % 2 and self._view[at] == version:
                return text.rstrip(b"\0").decode()

    def follow(self, scheduler: int, storage: str) -> None:
        """Publish the scheduler's incarnation and the address of object storage that it announced."""
        at = self.count * CELLS
        self._view[at + 1] = scheduler
        self._view[at] += 1
        self._address[:] = storage.encode().ljust(ADDRESS_BYTES, b"\0")
        self._view[at] += 1


def _size(count: int) -> int:
    return count * CELLS * 8 + 16 + SECRET_BYTES + ADDRESS_BYTES
