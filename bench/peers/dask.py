"""Dask distributed with its LocalCluster: one thread per worker process, no dashboard, loopback only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from distributed import Client, LocalCluster, worker_client

from . import BenchPeer, probe


def fibonacci(n: int) -> int:
    """Each call submits two tasks and waits for them; pure=False, or equal calls would be computed once."""
    if n < 2:
        return n
    with worker_client() as client:
        left, right = (client.submit(fibonacci, n - k, pure=False) for k in (1, 2))
        return int(left.result() + right.result())


class DaskPeer(BenchPeer):
    """LocalCluster runs scheduler and nannies in the client process."""

    distribution: ClassVar[str | None] = "distributed"
    scheduler_roles: ClassVar[tuple[str, ...]] = ("client",)
    abilities: ClassVar[frozenset[str]] = frozenset({"nested", "graphs"})
    slow: ClassVar[bool] = True

    def start(self, n_workers: int, capabilities: dict[str, int] | None = None) -> None:
        """Scheduler in this process, workers in others."""
        self._cluster = LocalCluster(
            n_workers=n_workers, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
        )
        self._client = Client(self._cluster)

    def stop(self) -> None:
        """End client and cluster."""
        self._client.close()
        self._cluster.close()

    def submit(self, fn: Callable[..., Any], *args: Any) -> Any:
        """One task."""
        return self._client.submit(fn, *args, pure=False)

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Client.map and gather."""
        return list(self._client.gather(self._client.map(fn, items, pure=False)))

    def graph(self, graph: dict[str, Any], keys: list[str]) -> list[Any]:
        """Client.get."""
        return list(self._client.get(graph, keys))

    def nested(self, n: int) -> int:
        """Fibonacci by tasks that submit tasks."""
        return int(self._client.submit(fibonacci, n, pure=False).result())

    def gather(self, futures: Sequence[Any]) -> list[Any]:
        """The values of all futures, in one call."""
        return list(self._client.gather(list(futures)))

    def role(self, process: probe.ProcessSeen, roles: dict[int, str]) -> str:
        """Workers are spawned; the rest is multiprocessing's own."""
        return "worker" if "spawn_main" in probe.command(process.pid) else "services"


PEER = DaskPeer
