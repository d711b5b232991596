"""opengris-scaler, through its public interface only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from scaler import Client, SchedulerClusterCombo

from . import BenchPeer, probe


def fibonacci(client: Any, n: int) -> int:
    """Each call submits two tasks and waits for them."""
    if n < 2:
        return n
    left = client.submit(fibonacci, client, n - 1)
    right = client.submit(fibonacci, client, n - 2)
    return int(left.result() + right.result())


class OpengrisPeer(BenchPeer):
    """A local cluster of scheduler, object storage and worker manager."""

    distribution: ClassVar[str | None] = "opengris-scaler"
    abilities: ClassVar[frozenset[str]] = frozenset({"nested", "graphs"})
    slow: ClassVar[bool] = True

    def start(self, n_workers: int, capabilities: dict[str, int] | None = None) -> None:
        """A combo and a client."""
        self._combo = SchedulerClusterCombo(n_workers=n_workers, logging_level="ERROR")
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
        """By place in the tree, as all have one command line: storage, scheduler and manager start in this order."""
        if "spawn_main" not in probe.command(process.pid):
            return "services"
        parent = roles.get(process.parent)
        if parent == "client":
            return next((role for role in ("storage", "scheduler") if role not in roles.values()), "manager")
        return {"manager": "agent", "agent": "worker"}.get(parent or "", "services")


PEER = OpengrisPeer
