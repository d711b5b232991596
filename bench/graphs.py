"""Two shapes of graphs that every engine takes: names are strings, arguments are names, data is apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tasks

Graph = dict[str, Any]


def layers(depth: int, width: int) -> tuple[Graph, list[str], int]:
    """Layers of nodes that each take 2 or 3 of the layer before: the graph, its last layer, the number of calls."""
    import random  # late: `startup` must not find it imported

    draw = random.Random(20_261)
    graph: Graph = {f"data-{j}": j for j in range(width)}
    graph.update({f"0-{j}": (tasks.noop, f"data-{j}") for j in range(width)})
    for i in range(1, depth):
        for j in range(width):
            before = draw.sample(range(width), 2 + (i + j) % 2)
            graph[f"{i}-{j}"] = (tasks.add, *[f"{i - 1}-{k}" for k in before])
    return graph, [f"{depth - 1}-{j}" for j in range(width)], depth * width


def reduction(leaves: int) -> tuple[Graph, list[str], int]:
    """Pairs of sums of pairs: the graph, its root, the number of calls."""
    graph: Graph = {f"data-{i}": i for i in range(leaves)}
    graph.update({f"0-{i}": (tasks.noop, f"data-{i}") for i in range(leaves)})
    level, width = 0, leaves
    while width > 1:
        level, width = level + 1, width // 2
        for i in range(width):
            graph[f"{level}-{i}"] = (tasks.add, f"{level - 1}-{2 * i}", f"{level - 1}-{2 * i + 1}")
    return graph, [f"{level}-0"], 2 * leaves - 1


def one_by_one(graph: Graph, call: Callable[[Callable[..., Any], list[Any]], Any]) -> dict[str, Any]:
    """What `call` makes of each node; nodes stand behind those they take."""
    found: Graph = {}
    for name, node in graph.items():
        is_call = isinstance(node, tuple)
        found[name] = call(node[0], [found[need] for need in node[1:]]) if is_call else node
    return found
