"""The shared words: where each worker says which run it is in, and its agent which datagrams are revoked.

Behind them stand the incarnation of the scheduler, a secret of this host's, and the address of object storage, which
workers of any age look up when they need them; the address has a version, which is odd while it is being written.
"""

from __future__ import annotations

import mmap
import os
import secrets
from typing import Any, Final

WORD: Final = 3
"""64-bit numbers per worker; see `scaler_worker.worker.runner`."""
SECRET_BYTES: Final = 16
ADDRESS_BYTES: Final = 1024


class SharedState:
    """Words of up to `count` workers in a memory file, which agent, template and workers map."""

    def __init__(self, descriptor: int, count: int) -> None:
        self.descriptor = descriptor
        self.count = count
        self._view = memoryview(mmap.mmap(descriptor, _size(count))).cast("Q")
        rest = self._view[count * WORD + 2 :].cast("B")
        self._secret, self._address = rest[:SECRET_BYTES], rest[SECRET_BYTES:]

    @classmethod
    def create(cls, count: int) -> SharedState:
        """New words, all zero."""
        descriptor = os.memfd_create("scaler-words")
        os.ftruncate(descriptor, _size(count))
        words = cls(descriptor, count)
        words._secret[:] = secrets.token_bytes(SECRET_BYTES)
        return words

    def of(self, worker: int) -> Any:
        """The three numbers of one worker: a memoryview, whose items are read and written in one piece each."""
        return self._view[worker * WORD : (worker + 1) * WORD]

    @property
    def secret(self) -> bytes:
        """What `scaler_worker.ipc.frames.result_name` needs."""
        return bytes(self._secret)

    @property
    def scheduler(self) -> int:
        """The incarnation of the scheduler; 0 while there has been none."""
        return int(self._view[self.count * WORD + 1])

    @property
    def storage(self) -> str:
        """Where the scheduler says object storage is; empty while it has not."""
        at = self.count * WORD
        while True:
            version, text = self._view[at], bytes(self._address)
            if not version % 2 and self._view[at] == version:
                return text.rstrip(b"\0").decode()

    def follow(self, scheduler: int, storage: str) -> None:
        """Work for this incarnation of the scheduler from now on, which says where object storage is."""
        at = self.count * WORD
        self._view[at + 1] = scheduler
        self._view[at] += 1
        self._address[:] = storage.encode().ljust(ADDRESS_BYTES, b"\0")
        self._view[at] += 1


def _size(count: int) -> int:
    return count * WORD * 8 + 16 + SECRET_BYTES + ADDRESS_BYTES
