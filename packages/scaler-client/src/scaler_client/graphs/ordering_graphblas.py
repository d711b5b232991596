"""Heights by sparse linear algebra: the extra `graphblas`. Pure.

Kahn's algorithm by levels: the calls that are ready form a sparse vector, and its product with the matrix of consumers
counts for each consumer the dependencies that it satisfies. Consumers without missing dependencies are the next
level. Each level is one product of compiled code, which suits wide graphs; narrow ones are searched faster in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import graphblas  # type: ignore[import-untyped]
import numpy

NARROW: Final = 100
"""Calls per level below which a product is slower than the search in Python; docs/graphs.md has the figures."""
_LEVELS: Final = 50
"""How many levels may be narrow before the graph is left to the search in Python."""


def graphblas_heights(needs: Sequence[Sequence[int]], narrow: int = NARROW) -> list[int] | None:
    """The height of every call; None for a graph that is too narrow, or has a cycle, which the search can name."""
    size = len(needs)
    missing = numpy.fromiter(map(len, needs), numpy.int64, size)
    starts = numpy.zeros(size + 1, numpy.uint64)
    numpy.cumsum(missing, out=starts[1:])
    needed = numpy.fromiter(chain.from_iterable(needs), numpy.uint64, int(starts[-1]))
    consumer_matrix = graphblas.Matrix.from_csr(starts, needed, True, ncols=size, dtype=graphblas.dtypes.BOOL).T.new()
    count = graphblas.semiring.plus_pair[graphblas.dtypes.INT64]
    found = numpy.zeros(size, numpy.int64)
    level = done = 0
    ready = numpy.flatnonzero(missing == 0)
    while len(ready):
        found[ready] = level
        level, done = level + 1, done + len(ready)
        if done < (level - _LEVELS) * narrow:
            return None
        vector = graphblas.Vector.from_coo(ready, True, size=size, dtype=graphblas.dtypes.BOOL)
        consumers, satisfied = vector.vxm(consumer_matrix, count).new().to_coo(sort=False)
        remaining = missing[consumers] - satisfied
        missing[consumers] = remaining
        ready = consumers[remaining == 0]
    heights: list[int] = found.tolist()
    return heights if done == size else None
