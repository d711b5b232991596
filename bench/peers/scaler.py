"""Scaler, through its public interface only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from scaler import Client, SchedulerClusterCombo

from . import BenchPeer, probe

_BELOW = {"scheduler": "template", "template": "worker", "worker": "worker"}


def fibonacci(client: Any, n: int) -> int:
    """Each call submits two tasks and waits for them."""
    if n < 2:
        return n
    left = client.submit(fibonacci, client, n - 1)
    right = client.submit(fibonacci, client, n - 2)
    return int(left.result() + right.result())


class ScalerPeer(BenchPeer):
    """A local cluster of scheduler, storage and agent, with workers forked from the agent's template."""

    distribution: ClassVar[str | None] = "scaler"
    abilities: ClassVar[frozenset[str]] = frozenset({"nested", "capabilities", "graphs"})

    def start(self, n_workers: int, capabilities: dict[str, int] | None = None) -> None:
        """A combo and a client."""
        offers = {"per_worker_capabilities": capabilities} if capabilities else {}
        self._combo = SchedulerClusterCombo(n_workers=n_workers, **offers)
        self._client = Client(address=self._combo.get_address())

    def stop(self) -> None:
        """End client and cluster."""
        try:
            self._client.disconnect()
        finally:
            self._combo.shutdown()

    def submit(self, fn: Callable[..., Any], *args: Any) -> Any:
        """One task."""
        return self._client.submit(fn, *args)

    def submit_with(self, capabilities: dict[str, int], fn: Callable[..., Any], *args: Any) -> Any:
        """One task that needs these capabilities."""
        return self._client.submit_verbose(fn, args=args, kwargs={}, capabilities=capabilities)

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Client.map."""
        return list(self._client.map(fn, items))

    def graph(self, graph: dict[str, Any], keys: list[str]) -> list[Any]:
        """Client.get."""
        found = self._client.get(graph, keys)
        return [found[key] for key in keys]

    def nested(self, n: int) -> int:
        """Fibonacci by tasks that submit tasks."""
        return int(self._client.submit(fibonacci, self._client, n).result())

    def role(self, process: probe.ProcessSeen, roles: dict[int, str]) -> str:
        """By command line; forks keep that of scheduler and agent (one process): their depth below it counts."""
        words = probe.command(process.pid)
        if "scaler_storage" in words:
            return "storage"
        return _BELOW.get(roles.get(process.parent, ""), "scheduler")


PEER = ScalerPeer
