"""The functions that a worker keeps loaded: bounded by number, by bytes and by time. Pure.

A function that is not kept any more is asked for again when a run needs it, so letting one go is never wrong. Nobody
tells a worker that a client has left: its functions go when nothing has used them for a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scaler_worker.ipc.frames import FUNCTIONS_LIMIT
from scaler_worker.worker.invoke import Runner

BYTES_LIMIT: Final = 64 * 1024 * 1024


class KeptFunctions:
    """Runners by the handles of their functions; the longest unused go first, the last one that came stays."""

    def __init__(self, count_limit: int = FUNCTIONS_LIMIT, bytes_limit: int = BYTES_LIMIT) -> None:
        self.runners: dict[int, Runner] = {}
        """For reading, in the order of use."""
        self._count_limit, self._bytes_limit = count_limit, bytes_limit
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._used: set[int] = set()

    def add(self, handle: int, runner: Runner, size: int) -> None:
        """Keep a function of so many bytes; one that is kept already stays as it is."""
        if handle not in self.runners:
            self._used.add(handle)
            self._put(handle, runner, size)

    def replace(self, handle: int, runner: Runner, size: int) -> None:
        """The function is loaded, and takes so many bytes now."""
        if handle in self.runners:
            self._bytes -= self._sizes[handle]
            del self.runners[handle]
            self._put(handle, runner, size)

    def _put(self, handle: int, runner: Runner, size: int) -> None:
        self.runners[handle] = runner
        self._sizes[handle] = size
        self._bytes += size
        while len(self.runners) > 1 and (len(self.runners) > self._count_limit or self._bytes > self._bytes_limit):
            self._drop(next(iter(self.runners)))

    def use(self, handles: Iterable[int]) -> dict[int, Runner]:
        """Runs need these; the runners that there are."""
        for handle in set(handles):
            if (runner := self.runners.pop(handle, None)) is not None:
                self.runners[handle] = runner
                self._used.add(handle)
        return self.runners

    def forget_unused(self) -> bool:
        """Let go what no run has needed since this was called before; whether there was any."""
        unused = self.runners.keys() - self._used
        for handle in unused:
            self._drop(handle)
        self._used.clear()
        return bool(unused)

    def _drop(self, handle: int) -> None:
        del self.runners[handle]
        self._bytes -= self._sizes.pop(handle)
        self._used.discard(handle)
