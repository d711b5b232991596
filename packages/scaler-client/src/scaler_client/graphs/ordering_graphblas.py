"""Heights by sparse linear algebra: the extra `graphblas`. Pure.

The calls that lack nothing are a sparse vector; its product with the matrix of who takes whose result says how many of
their needs all others have got by it. Those that have got all are the next vector, one level higher. Every level is
one product, so that wide graphs are done in few steps of compiled code, and narrow ones are better walked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import graphblas  # type: ignore[import-untyped]
import numpy

NARROW: Final = 100
"""Calls per level below which a product takes longer than a walk over the level; docs/graphs.md has the figures."""
_LEVELS: Final = 50
"""Levels that may be narrow, before a graph is given up as such."""


def graphblas_heights(needs: Sequence[Sequence[int]], narrow: int = NARROW) -> list[int] | None:
    """The height of every call; None where the graph is too narrow, or has a cycle, which a walk has to name."""
    size = len(needs)
    lacking = numpy.fromiter(map(len, needs), numpy.int64, size)
    starts = numpy.zeros(size + 1, numpy.uint64)
    numpy.cumsum(lacking, out=starts[1:])
    needed = numpy.fromiter(chain.from_iterable(needs), numpy.uint64, int(starts[-1]))
    taken = graphblas.Matrix.from_csr(starts, needed, True, ncols=size, dtype=graphblas.dtypes.BOOL).T.new()
    count = graphblas.semiring.plus_pair[graphblas.dtypes.INT64]
    found = numpy.zeros(size, numpy.int64)
    level = done = 0
    ready = numpy.flatnonzero(lacking == 0)
    while len(ready):
        found[ready] = level
        level, done = level + 1, done + len(ready)
        if done < (level - _LEVELS) * narrow:
            return None
        vector = graphblas.Vector.from_coo(ready, True, size=size, dtype=graphblas.dtypes.BOOL)
        takers, got = vector.vxm(taken, count).new().to_coo(sort=False)
        left = lacking[takers] - got
        lacking[takers] = left
        ready = takers[left == 0]
    heights: list[int] = found.tolist()
    return heights if done == size else None
