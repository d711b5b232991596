"""The order in which calls of a graph are run. Pure; calls are numbers here, and a graph is what each of them needs.

The *height* of a call is the length of the longest way from it down to a call that needs nothing: the critical path of
what has to be run before it. Calls are ordered depth first, each after what it needs, and of what a call needs the
tallest first. So one subtree is finished before the next is begun, few results are held at a time, and the longest
chain is not begun last.

Heights come from a walk in plain Python or, where that is installed and the graph has the shape for it, from GraphBLAS
(`scaler_client.graphs.ordering_graphblas`). Both give the same.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from graphlib import CycleError
from importlib.util import find_spec
from typing import Final

Needs = Sequence[Sequence[int]]
"""What each call needs; no number twice."""

ALGEBRA_CALLS: Final = 100_000
"""From so many calls on sparse algebra is faster once it is loaded; docs/graphs.md has the figures."""
ALGEBRA_CALLS_UNLOADED: Final = 1_000_000
"""The same where it has to be imported first, which takes as long as the walk over so many calls."""
_UNSEEN: Final = -1
_OPEN: Final = -2


def heights(needs: Needs, wanted: Sequence[int]) -> list[int]:
    """The height of every call; all must be needed by the wanted ones. Raises CycleError with the numbers on it."""
    if len(needs) >= ALGEBRA_CALLS and _is_algebra_worth_it(len(needs)):
        from scaler_client.graphs.ordering_graphblas import graphblas_heights

        found = graphblas_heights(needs)
        if found is not None:
            return found
    return python_heights(needs, wanted)


def _is_algebra_worth_it(calls: int) -> bool:
    if "graphblas" in sys.modules:
        return True
    return calls >= ALGEBRA_CALLS_UNLOADED and find_spec("graphblas") is not None


def python_heights(needs: Needs, wanted: Sequence[int]) -> list[int]:
    """As `heights`, by one walk; no recursion, for chains may be long."""
    found = [_UNSEEN] * len(needs)
    height_of = found.__getitem__
    for first in wanted:
        if found[first] != _UNSEEN:
            continue
        found[first] = _OPEN
        way, left = [first], [iter(needs[first])]
        while way:
            for need in left[-1]:
                if (height := found[need]) == _UNSEEN:
                    found[need] = _OPEN
                    way.append(need)
                    left.append(iter(needs[need]))
                    break
                if height == _OPEN:
                    raise CycleError("the graph has a cycle", [*way[way.index(need) :], need])
            else:
                left.pop()
                call = way.pop()
                found[call] = 1 + max(map(height_of, needs[call]), default=-1)
    return found


def depth_first(needs: Needs, wanted: Sequence[int], heights: Sequence[int]) -> list[int]:
    """All calls in the order in which to run them; there is no cycle among them."""
    height_of = heights.__getitem__
    order: list[int] = []
    seen = bytearray(len(needs))
    for first in sorted(wanted, key=height_of, reverse=True):
        if seen[first]:
            continue
        seen[first] = True
        way, left = [first], [iter(sorted(needs[first], key=height_of, reverse=True))]
        while way:
            for need in left[-1]:
                if not seen[need]:
                    seen[need] = True
                    way.append(need)
                    below = needs[need]
                    left.append(iter(below if len(below) < 2 else sorted(below, key=height_of, reverse=True)))
                    break
            else:
                left.pop()
                order.append(way.pop())
    return order
