"""Dask's collections computed on Scaler: `dask.compute(x, scheduler=dask_scheduler(client))`.

Needs Dask 2025.1 or newer (`pip install scaler[dask]`). Its graphs are read as they are: each task of Dask is a node.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from scaler_client.graphs.planner import is_call

if TYPE_CHECKING:
    from scaler_client.api.client import Client


class _DaskTask:
    """A task of Dask and the keys of what it takes, as an argument of `_run`."""

    __slots__ = ("keys", "task")

    def __init__(self, task: Callable[[Mapping[Hashable, Any]], Any], keys: tuple[Hashable, ...]) -> None:
        self.task, self.keys = task, keys

    def __reduce__(self) -> tuple[Any, ...]:
        return _DaskTask, (self.task, self.keys)


def _run(task: _DaskTask, *values: Any) -> Any:
    return task.task(dict(zip(task.keys, values, strict=True)))


def dask_scheduler(
    client: Client, capabilities: Mapping[str, int] | None = None, priority: int = 0, retries: int = 0
) -> Callable[..., Any]:
    """A scheduler for Dask: for `compute(scheduler=…)` and `dask.config.set(scheduler=…)`.

    Args:
        client: runs the tasks.
        capabilities: what a worker must offer, by name; -1 for presence, otherwise a quantity.
        priority: higher is more urgent.
        retries: how often to run a task again after an exception of its code.

    Raises:
        ImportError: Dask is not installed, or is older than 2025.1.
        TypeError: raised by the scheduler itself, for options of Dask that it does not know.

    >>> import dask
    >>> lazy = dask.delayed(sum)([dask.delayed(abs)(-1), 2])
    >>> lazy.compute(scheduler=dask_scheduler(client))
    3
    """
    try:
        from dask._task_spec import Alias, DataNode, convert_legacy_graph
    except ImportError as error:
        raise ImportError("Dask 2025.1 or newer is needed: pip install scaler[dask]") from error

    def schedule(graph: Any, keys: Any, **options: Any) -> Any:
        if options:
            raise TypeError(f"Scaler has no such options for Dask: {', '.join(options)}")
        tasks = convert_legacy_graph(graph if isinstance(graph, Mapping) else graph.__dask_graph__())

        def target(key: Hashable) -> Hashable:
            while isinstance(tasks[key], Alias) and tasks[key].target != key:
                key = tasks[key].target
            return key

        nodes: dict[Hashable, Any] = {}
        for key, task in tasks.items():
            if isinstance(task, DataNode) and not is_call(task.value):
                nodes[key] = task.value
            elif not isinstance(task, Alias):
                needs = tuple(task.dependencies)
                nodes[key] = (_run, _DaskTask(task, needs), *map(target, needs))
        wanted = dict.fromkeys(target(key) for key in _flat(keys))
        found = client.get(nodes, wanted, capabilities=capabilities, priority=priority, retries=retries)
        return _like(keys, lambda key: found[target(key)])

    return schedule


def _flat(keys: Any) -> list[Hashable]:
    return [each for item in keys for each in _flat(item)] if isinstance(keys, list) else [keys]


def _like(keys: Any, value: Callable[[Hashable], Any]) -> Any:
    """The values of the keys, nested like them."""
    return [_like(item, value) for item in keys] if isinstance(keys, list) else value(keys)
