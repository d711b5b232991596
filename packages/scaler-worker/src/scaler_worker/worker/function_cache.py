"""The cache of a worker's loaded functions: bounded by number, bytes and idle time. Pure.

Evicting a function is always safe: the worker asks for it again when a run needs it. Workers are not told when a client
leaves, so its functions are evicted after a period without use.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scaler_worker.ipc.frames import FUNCTIONS_LIMIT
from scaler_worker.worker.invoke import Invoker

BYTES_LIMIT: Final = 64 * 1024 * 1024


class FunctionCache:
    """Invokers by function handle, evicted in LRU order; the newest one always stays."""

    def __init__(self, count_limit: int = FUNCTIONS_LIMIT, bytes_limit: int = BYTES_LIMIT) -> None:
        self.invokers: dict[int, Invoker] = {}
        """In order of use; read only."""
        self.names: dict[int, str] = {}
        """Their names; read only."""
        self._count_limit, self._bytes_limit = count_limit, bytes_limit
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._used: set[int] = set()

    def add(self, handle: int, invoker: Invoker, size: int, name: str) -> None:
        """Add a function of `size` bytes; a cached one is not replaced."""
        if handle not in self.invokers:
            self._used.add(handle)
            self.names[handle] = name
            self._put(handle, invoker, size)

    def replace(self, handle: int, invoker: Invoker, size: int) -> None:
        """Replace the invoker of a cached function that is now loaded and takes `size` bytes."""
        if handle in self.invokers:
            self._bytes -= self._sizes[handle]
            del self.invokers[handle]
            self._put(handle, invoker, size)

    def _put(self, handle: int, invoker: Invoker, size: int) -> None:
        self.invokers[handle] = invoker
        self._sizes[handle] = size
        self._bytes += size
        while len(self.invokers) > 1 and (len(self.invokers) > self._count_limit or self._bytes > self._bytes_limit):
            self._drop(next(iter(self.invokers)))

    def use(self, handles: Iterable[int]) -> dict[int, Invoker]:
        """Mark these handles as used; returns all invokers."""
        for handle in set(handles):
            if (invoker := self.invokers.pop(handle, None)) is not None:
                self.invokers[handle] = invoker
                self._used.add(handle)
        return self.invokers

    def forget_unused(self) -> bool:
        """Evict functions that were not used since the last call; returns whether there were any."""
        unused = self.invokers.keys() - self._used
        for handle in unused:
            self._drop(handle)
        self._used.clear()
        return bool(unused)

    def _drop(self, handle: int) -> None:
        del self.invokers[handle], self.names[handle]
        self._bytes -= self._sizes.pop(handle)
        self._used.discard(handle)
