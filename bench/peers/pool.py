"""multiprocessing.Pool of the standard library."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.pool import Pool
from typing import Any, ClassVar

from . import BenchPeer


class PoolPeer(BenchPeer):
    """What waits is kept in the client process: there is no scheduler."""

    scheduler_roles: ClassVar[tuple[str, ...]] = ("client",)
    chunks: ClassVar[bool] = True
    _pool: Pool

    def start(self, n_workers: int, capabilities: dict[str, int] | None = None) -> None:
        """Fork the workers."""
        self._pool = multiprocessing.Pool(n_workers)

    def stop(self) -> None:
        """Kill the workers."""
        self._pool.terminate()
        self._pool.join()

    def submit(self, fn: Callable[..., Any], *args: Any) -> Any:
        """One task."""
        return self._pool.apply_async(fn, args)

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Pool.map with the chunk size it chooses."""
        return self._pool.map(fn, items)

    def map_singly(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Pool.map with a chunk size of one."""
        return self._pool.map(fn, items, chunksize=1)

    def result(self, future: Any, timeout: float | None = None) -> Any:
        """The value of one AsyncResult."""
        return future.get(timeout)

    def gather(self, futures: Sequence[Any]) -> list[Any]:
        """The values of all AsyncResults."""
        return [future.get() for future in futures]

    def done(self, futures: Sequence[Any]) -> list[Any]:
        """Those that are ready."""
        return [future for future in futures if future.ready()]


PEER = PoolPeer
