"""concurrent.futures.ProcessPoolExecutor of the standard library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, ClassVar

from . import BenchPeer


class ProcessPoolPeer(BenchPeer):
    """What waits is kept in the client process: there is no scheduler."""

    scheduler_roles: ClassVar[tuple[str, ...]] = ("client",)
    _executor: ProcessPoolExecutor

    def start(self, n_workers: int, capabilities: dict[str, int] | None = None) -> None:
        """Workers are forked when the first tasks come."""
        self._executor = ProcessPoolExecutor(n_workers)

    def stop(self) -> None:
        """Drop what waits and end the workers."""
        self._executor.shutdown(cancel_futures=True)

    def submit(self, fn: Callable[..., Any], *args: Any) -> Any:
        """One task."""
        return self._executor.submit(fn, *args)

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Executor.map with its chunk size of one."""
        return list(self._executor.map(fn, items))


PEER = ProcessPoolPeer
