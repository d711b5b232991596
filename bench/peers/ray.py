"""Ray with a local cluster: no dashboard, no usage report, loopback only."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray  # reads its environment while it is imported
from graphs import one_by_one

from . import BenchPeer, probe

_ROLES = {"gcs_server": "scheduler", "raylet/raylet": "scheduler", "ray::": "worker", "default_worker.py": "worker"}


def fibonacci(n: int) -> int:
    """Each call submits two tasks and waits for them."""
    if n < 2:
        return n
    task = ray.remote(fibonacci)
    left, right = ray.get([task.remote(n - 1), task.remote(n - 2)])
    return int(left + right)


class RayPeer(BenchPeer):
    """Scheduler: the GCS server and the raylet."""

    distribution: ClassVar[str | None] = "ray"
    abilities: ClassVar[frozenset[str]] = frozenset({"nested", "graphs"})

    def start(self, n_workers: int, capabilities: dict[str, int] | None = None) -> None:
        """One CPU per worker."""
        self._folder = tempfile.mkdtemp(prefix="r")  # short: socket paths below it must stay under 108 bytes
        self._tasks: dict[Callable[..., Any], Any] = {}
        ray.init(
            num_cpus=n_workers,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address="127.0.0.1",
            _temp_dir=self._folder,
        )

    def stop(self) -> None:
        """End all processes of the node."""
        ray.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _task(self, fn: Callable[..., Any]) -> Any:
        """The remote function, made once as a decorator would."""
        task = self._tasks.get(fn)
        if task is None:
            task = self._tasks[fn] = ray.remote(fn)
        return task

    def submit(self, fn: Callable[..., Any], *args: Any) -> Any:
        """One task."""
        return self._task(fn).remote(*args)

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """A task per item."""
        task = self._task(fn)
        return list(ray.get([task.remote(item) for item in items]))

    def graph(self, graph: dict[str, Any], keys: list[str]) -> list[Any]:
        """A task per node, which takes the references of those before it."""
        made = one_by_one(graph, lambda fn, needs: self._task(fn).remote(*needs))
        return list(ray.get([made[key] for key in keys]))

    def nested(self, n: int) -> int:
        """Fibonacci by tasks that submit tasks."""
        return int(ray.get(self._task(fibonacci).remote(n)))

    def result(self, future: Any, timeout: float | None = None) -> Any:
        """The value of one reference."""
        return ray.get(future, timeout=timeout)

    def gather(self, futures: Sequence[Any]) -> list[Any]:
        """The values of all references, in one call."""
        return list(ray.get(list(futures)))

    def done(self, futures: Sequence[Any]) -> list[Any]:
        """Those that are ready, in one call."""
        return ray.wait(list(futures), num_returns=len(futures), timeout=0)[0] if futures else []

    def role(self, process: probe.ProcessSeen, roles: dict[int, str]) -> str:
        """By command line; log monitor and agents are "services"."""
        words = probe.command(process.pid)
        if words.endswith("Agent"):
            return "services"
        return next((role for mark, role in _ROLES.items() if mark in words), "services")


PEER = RayPeer
