"""The engines under comparison, each behind the same small interface."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import probe

__all__ = ["NAMES", "BenchPeer", "load", "probe"]

NAMES = ("scaler", "pool", "ppe", "ray", "dask", "opengris")


class BenchPeer(ABC):
    """One engine. Futures are whatever its users hold: nothing is wrapped, so nothing is added to their cost."""

    distribution: ClassVar[str | None] = None
    """The name under which the engine is installed, None for the standard library."""

    scheduler_roles: ClassVar[tuple[str, ...]] = ("scheduler",)
    """The roles of the processes that keep what is queued."""

    abilities: ClassVar[frozenset[str]] = frozenset()
    """What not every engine can: "nested", "capabilities", "graphs"."""

    chunks: ClassVar[bool] = False
    """Whether `map` sends many items as one task."""

    slow: ClassVar[bool] = False
    """Whether the longest map is shortened, as it would take many minutes."""

    @abstractmethod
    def start(self, n_workers: int, capabilities: dict[str, int] | None = None) -> None:
        """Start a local cluster and connect to it."""

    @abstractmethod
    def stop(self) -> None:
        """End all that `start` began."""

    @abstractmethod
    def submit(self, fn: Callable[..., Any], *args: Any) -> Any:
        """One task, as users submit it."""

    @abstractmethod
    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """All results of a map, as users call it."""

    def map_singly(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """All results of a map in which every item is a task of its own."""
        return self.map(fn, items)

    def submit_with(self, capabilities: dict[str, int], fn: Callable[..., Any], *args: Any) -> Any:
        """One task that needs these capabilities."""
        raise NotImplementedError

    def nested(self, n: int) -> int:
        """Fibonacci by tasks that submit tasks."""
        raise NotImplementedError

    def graph(self, graph: dict[str, Any], keys: list[str]) -> list[Any]:
        """The values of some nodes of a graph; its nodes stand behind those they take."""
        raise NotImplementedError

    def result(self, future: Any, timeout: float | None = None) -> Any:
        """The value of one future."""
        return future.result(timeout)

    def gather(self, futures: Sequence[Any]) -> list[Any]:
        """The values of all futures, in order."""
        return [future.result() for future in futures]

    def done(self, futures: Sequence[Any]) -> list[Any]:
        """Those of the futures that have ended."""
        return [future for future in futures if future.done()]

    def role(self, process: probe.ProcessSeen, roles: dict[int, str]) -> str:
        """What a descendant does; `roles` has the answers for its ancestors."""
        return "worker"

    def processes(self) -> dict[str, list[int]]:
        """The pids of each role. This process, with all that the engine runs in it, is "client"."""
        roles = {os.getpid(): "client"}
        for process in probe.descendants(os.getpid()):
            roles[process.pid] = self.role(process, roles)
        grouped: dict[str, list[int]] = {}
        for pid, role in roles.items():
            grouped.setdefault(role, []).append(pid)
        return grouped


def load(name: str) -> BenchPeer:
    """The adapter of a peer; importing it imports the engine."""
    peer: BenchPeer = importlib.import_module(f"peers.{name}").PEER()
    return peer
