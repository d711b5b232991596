"""The order in which the calls of a graph are run. Pure; calls are numbers, and a graph is the dependencies of each.

The *height* of a call is the length of the longest path from it to a call without dependencies: the critical path
below it. Calls are ordered depth first, each after its dependencies, and the dependencies of a call by descending
height. So one subtree is finished before the next begins, few results are held at a time, and the longest chain does
not begin last.

Heights are computed by a depth-first search in Python or, if it is installed and the graph is large and wide, by
GraphBLAS (`scaler_client.graphs.ordering_graphblas`). Both give the same result.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from graphlib import CycleError
from importlib.util import find_spec
from typing import Final

Needs = Sequence[Sequence[int]]
"""The dependencies of each call, without duplicates."""

GRAPHBLAS_CALLS: Final = 100_000
"""The number of calls from which GraphBLAS is faster if it is loaded; docs/graphs.md has the figures."""
GRAPHBLAS_CALLS_UNLOADED: Final = 1_000_000
"""The same if GraphBLAS has to be imported first, which takes as long as the search of that many calls."""
_UNVISITED: Final = -1
_ON_PATH: Final = -2


def heights(needs: Needs, wanted: Sequence[int]) -> list[int]:
    """The height of every call; each is reachable from `wanted`. Raises CycleError with the numbers of the cycle."""
    if len(needs) >= GRAPHBLAS_CALLS and _is_graphblas_faster(len(needs)):
        from scaler_client.graphs.ordering_graphblas import graphblas_heights

        found = graphblas_heights(needs)
        if found is not None:
            return found
    return python_heights(needs, wanted)


def _is_graphblas_faster(calls: int) -> bool:
    if "graphblas" in sys.modules:
        return True
    return calls >= GRAPHBLAS_CALLS_UNLOADED and find_spec("graphblas") is not None


def python_heights(needs: Needs, wanted: Sequence[int]) -> list[int]:
    """The heights by an iterative depth-first search, as chains may exceed the limit of recursion."""
    found = [_UNVISITED] * len(needs)
    height_of = found.__getitem__
    for first in wanted:
        if found[first] != _UNVISITED:
            continue
        found[first] = _ON_PATH
        path, pending = [first], [iter(needs[first])]
        while path:
            for need in pending[-1]:
                if (height := found[need]) == _UNVISITED:
                    found[need] = _ON_PATH
                    path.append(need)
                    pending.append(iter(needs[need]))
                    break
                if height == _ON_PATH:
                    raise CycleError("the graph has a cycle", [*path[path.index(need) :], need])
            else:
                pending.pop()
                call = path.pop()
                found[call] = 1 + max(map(height_of, needs[call]), default=-1)
    return found


def depth_first(needs: Needs, wanted: Sequence[int], heights: Sequence[int]) -> list[int]:
    """All calls of an acyclic graph in the order in which to run them."""
    height_of = heights.__getitem__
    order: list[int] = []
    visited = bytearray(len(needs))
    for first in sorted(wanted, key=height_of, reverse=True):
        if visited[first]:
            continue
        visited[first] = True
        path, pending = [first], [iter(sorted(needs[first], key=height_of, reverse=True))]
        while path:
            for need in pending[-1]:
                if not visited[need]:
                    visited[need] = True
                    path.append(need)
                    below = needs[need]
                    pending.append(iter(below if len(below) < 2 else sorted(below, key=height_of, reverse=True)))
                    break
            else:
                pending.pop()
                order.append(path.pop())
    return order
