"""The shared words: where each worker says which run it is in, and its agent which datagrams are revoked."""

from __future__ import annotations

import mmap
import os
from typing import Any, Final

WORD: Final = 3
"""64-bit numbers per worker; see `scaler_worker.worker_core`."""


class SharedWords:
    """Words of up to `count` workers in a memory file, which agent, template and workers map."""

    def __init__(self, descriptor: int, count: int) -> None:
        self.descriptor = descriptor
        self.count = count
        self._view = memoryview(mmap.mmap(descriptor, count * WORD * 8)).cast("Q")

    @classmethod
    def create(cls, count: int) -> SharedWords:
        """New words, all zero."""
        descriptor = os.memfd_create("scaler-words")
        os.ftruncate(descriptor, count * WORD * 8)
        return cls(descriptor, count)

    def of(self, worker: int) -> Any:
        """The three numbers of one worker: a memoryview, whose items are read and written in one piece each."""
        return self._view[worker * WORD : (worker + 1) * WORD]
