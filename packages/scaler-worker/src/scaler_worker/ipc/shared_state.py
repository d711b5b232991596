"""Shared memory of an agent, its template and its workers.

Each worker has four cells (`scaler_worker.ipc.cells`). After them come the scheduler's incarnation, a secret of this
host, and the address of object storage with the token for it. These two are protected by a sequence lock: its version
is odd while they are written. A task can overwrite all of it, so the agent reads none of it back but the cells, and
writes it again when it starts a worker.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Final

from scaler_worker.ipc.cells import CELLS

SECRET_BYTES: Final = 16
ADDRESS_BYTES: Final = 1024
TOKEN_BYTES: Final = 64
_STORAGE_BYTES: Final = ADDRESS_BYTES + 1 + TOKEN_BYTES


class SharedState:
    """The cells of up to `count` workers in a memory file that agent, template and workers map."""

    def __init__(self, descriptor: int, count: int) -> None:
        self.descriptor = descriptor
        self.count = count
        self._view = memoryview(mmap.mmap(descriptor, _size(count))).cast("Q")
        rest = self._view[count * CELLS + 2 :].cast("B")
        self._secret, self._storage = rest[:SECRET_BYTES], rest[SECRET_BYTES : SECRET_BYTES + _STORAGE_BYTES]
        self._made_secret, self._version = b"", 0
        self._published: tuple[int, bytes] | None = None
        """The incarnation and the announcement, in the agent."""

    @classmethod
    def create(cls, count: int) -> SharedState:
        """Create the memory file; all cells are zero."""
        descriptor = os.memfd_create("scaler-state")
        os.ftruncate(descriptor, _size(count))
        shared = cls(descriptor, count)
        shared._secret[:] = shared._made_secret = os.urandom(SECRET_BYTES)
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
        return self._announced()[:ADDRESS_BYTES].rstrip(b"\0").decode()

    @property
    def token(self) -> bytes:
        """The token for object storage that the scheduler announced; empty before that, and without keys."""
        announced = self._announced()
        return announced[ADDRESS_BYTES + 1 :][: announced[ADDRESS_BYTES]]

    def _announced(self) -> bytes:
        if self._published is not None:
            return self._published[1]
        at = self.count * CELLS
        while True:
            version, announced = self._view[at], bytes(self._storage)
            if not version % 2 and self._view[at] == version:
                return announced

    def follow(self, scheduler: int, storage: str, token: bytes = b"") -> None:
        """Publish the scheduler's incarnation, and the address of object storage and the token that it announced."""
        written = storage.encode().ljust(ADDRESS_BYTES, b"\0") + bytes([len(token)]) + token
        self._published = scheduler, written.ljust(_STORAGE_BYTES, b"\0")
        self.restore()

    def restore(self) -> None:
        """Write again what was published, if anything was: a task may have overwritten it for all workers."""
        if self._published is None:
            return
        at = self.count * CELLS
        self._version += 2
        self._view[at] = self._version - 1
        self._secret[:] = self._made_secret
        self._view[at + 1], self._storage[:] = self._published
        self._view[at] = self._version


def _size(count: int) -> int:
    bytes_needed = count * CELLS * 8 + 16 + SECRET_BYTES + _STORAGE_BYTES
    return -(-bytes_needed // 8) * 8
