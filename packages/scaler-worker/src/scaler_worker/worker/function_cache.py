"""The functions that a worker keeps loaded: bounded by number, by bytes and by time. Pure.

A function that is not kept any more is asked for again when a run needs it, so letting one go is never wrong. Nobody
tells a worker that a client has left: its functions go when nothing has used them for a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scaler_worker.ipc.frames import FUNCTIONS_LIMIT
from scaler_worker.worker.invoke import Invoker

BYTES_LIMIT: Final = 64 * 1024 * 1024


class FunctionCache:
    """Invokers by the handles of their functions; the longest unused go first, the last one that came stays."""

    def __init__(self, count_limit: int = FUNCTIONS_LIMIT, bytes_limit: int = BYTES_LIMIT) -> None:
        self.invokers: dict[int, Invoker] = {}
        """For reading, in the order of use."""
        self._count_limit, self._bytes_limit = count_limit, bytes_limit
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._used: set[int] = set()

    def add(self, handle: int, invoker: Invoker, size: int) -> None:
        """Keep a function of so many bytes; one that is kept already stays as it is."""
        if handle not in self.invokers:
            self._used.add(handle)
            self._put(handle, invoker, size)

    def replace(self, handle: int, invoker: Invoker, size: int) -> None:
        """The function is loaded, and takes so many bytes now."""
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
        """Runs need these; the invokers that there are."""
        for handle in set(handles):
            if (invoker := self.invokers.pop(handle, None)) is not None:
                self.invokers[handle] = invoker
                self._used.add(handle)
        return self.invokers

    def forget_unused(self) -> bool:
        """Let go what no run has needed since this was called before; whether there was any."""
        unused = self.invokers.keys() - self._used
        for handle in unused:
            self._drop(handle)
        self._used.clear()
        return bool(unused)

    def _drop(self, handle: int) -> None:
        del self.invokers[handle]
        self._bytes -= self._sizes.pop(handle)
        self._used.discard(handle)
