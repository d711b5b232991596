"""Graphs: named calls that take each other's results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import InvalidStateError
from typing import Any

from scaler_client.futures import ScalerFuture


def is_call(node: object) -> bool:
    """Whether a node is `(callable, "name", …)`; everything else is data."""
    return isinstance(node, tuple) and len(node) > 0 and callable(node[0])


def order(graph: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    """The nodes that the keys need, each after those it takes.

    Raises KeyError for keys that are unknown or given twice and for arguments that name no node, TypeError for
    arguments that are no names, graphlib.CycleError for a cycle.
    """
    from graphlib import TopologicalSorter

    wanted = list(keys)
    for key in wanted:
        if key not in graph:
            raise KeyError(f"key {key!r} is not in the graph")
    if len(set(wanted)) != len(wanted):
        raise KeyError(f"a key is given twice: {wanted}")
    needs: dict[str, tuple[str, ...]] = {}
    while wanted:
        key = wanted.pop()
        if key in needs:
            continue
        needs[key] = tuple(graph[key][1:]) if is_call(graph[key]) else ()
        for name in needs[key]:
            if not isinstance(name, str):
                raise TypeError(f"node {key!r}: an argument is the name of a node, not {name!r}")
            if name not in graph:
                raise KeyError(f"node {key!r} takes {name!r}, which is not in the graph")
        wanted.extend(needs[key])
    return list(TopologicalSorter(needs).static_order())


def submit_graph(
    graph: Mapping[str, Any], keys: Iterable[str], submit: Callable[[Callable[..., Any], tuple[Any, ...]], Any]
) -> dict[str, Any]:
    """What each needed node became: a future of each call, and the data as it stands."""
    nodes: dict[str, Any] = {}
    try:
        for name in order(graph, keys):
            node = graph[name]
            nodes[name] = submit(node[0], tuple(nodes[need] for need in node[1:])) if is_call(node) else node
    except BaseException:
        abort(nodes.values(), None)
        raise
    return nodes


def end_together(nodes: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Where a requested future fails or is cancelled, none of the graph goes on; the other requested end as it did."""
    futures = [node for node in nodes.values() if isinstance(node, ScalerFuture)]

    def ended(future: ScalerFuture[Any]) -> None:
        if future.cancelled():
            abort(futures, None)
        elif future.failed() and (error := future.exception()):
            abort((nodes[key] for key in requested), error)
            abort(futures, None)

    requested = [key for key in keys if isinstance(nodes[key], ScalerFuture)]
    for key in requested:
        nodes[key].add_done_callback(ended)


def abort(nodes: Iterable[Any], error: BaseException | None) -> None:
    """End the futures that have not ended: with this error, or as cancelled."""
    for node in nodes:
        if not isinstance(node, ScalerFuture) or node.done():
            continue
        if error is None:
            node.cancel()
            continue
        with contextlib.suppress(InvalidStateError):  # it may have ended just now
            node.set_exception(error)
