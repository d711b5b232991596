"""What planning a graph costs, in CPU milliseconds, and where sparse algebra pays: `python bench/planning.py`.

Each shape is measured in a process of its own, the garbage collector off, as `Client.get` has it. The figures of
docs/graphs.md come from here.
"""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

Needs = list[list[int]]
_LEVELS = 2_000
"""Graphs with more are not culled by products: each costs as much as the graph has calls."""


def layers(calls: int, width: int) -> Needs:
    """Layers of which each call takes 2 or 3 of the one before."""
    draw = random.Random(calls)
    needs: Needs = [[] for _ in range(width)]
    for call in range(width, calls):
        before = call - call % width - width
        needs.append(list({before + draw.randrange(width) for _ in range(2 + call % 2)}))
    return needs


def near(calls: int) -> Needs:
    """Calls that take 2 or 3 of the thousand before them, as in the soak test."""
    draw = random.Random(calls)
    return [[]] * 1000 + [list({i - 1 - draw.randrange(1000) for _ in range(2 + i % 2)}) for i in range(1000, calls)]


def reduction(leaves: int) -> Needs:
    """Pairs of sums of pairs."""
    return [[]] * leaves + [[2 * pair, 2 * pair + 1] for pair in range(leaves - 1)]


def line(calls: int) -> Needs:
    """Each call takes the one before."""
    return [[], *([call] for call in range(calls - 1))]


SHAPES: dict[str, Callable[[], Needs]] = {
    "1,000,000 in 10 layers": lambda: layers(1_000_000, 100_000),
    "1,000,000 in 100 layers": lambda: layers(1_000_000, 10_000),
    "1,000,000 in 1,000 layers": lambda: layers(1_000_000, 1_000),
    "1,000,000, each takes of the 1,000 before": lambda: near(1_000_000),
    "1,048,575, binary reduction": lambda: reduction(1 << 19),
    "20,000, a chain": lambda: line(20_000),
    "200,000 in 100 layers": lambda: layers(200_000, 2_000),
    "100,000 in 100 layers": lambda: layers(100_000, 1_000),
    "50,000 in 100 layers": lambda: layers(50_000, 500),
}


def milliseconds(work: Callable[[], Any]) -> tuple[int, Any]:
    """CPU time, and what came of it."""
    start = time.process_time()
    found = work()
    return round((time.process_time() - start) * 1e3), found


def measure(name: str) -> str:
    """A row of the table: reading, ordering, heights by a walk and by algebra, culling by both."""
    from scaler_client.graphs.ordering import depth_first, python_heights
    from scaler_client.graphs.planner import plan

    needs = SHAPES[name]()
    graph = {("n", call): (max, *[("n", need) for need in each]) for call, each in enumerate(needs)}
    taken = set(chain.from_iterable(needs))
    wanted = [call for call in range(len(needs)) if call not in taken]
    gc.disable()
    whole, _ = milliseconds(lambda: plan(graph, [("n", call) for call in wanted]))
    walk, heights = milliseconds(lambda: python_heights(needs, wanted))
    order, _ = milliseconds(lambda: depth_first(needs, wanted, heights))
    load, algebraic = milliseconds(load_algebra)  # it is loaded already where planning made use of it
    algebra, found = milliseconds(lambda: algebraic(needs, 0))
    assert found == heights, "both ways give the same"
    given_up, _ = milliseconds(lambda: algebraic(needs))
    few = wanted[-1:]
    walked, near_by = milliseconds(lambda: culled_by_walk(needs, few))
    products: int | str = "-"
    by_products = near_by
    if max(heights) < _LEVELS:
        products, by_products = milliseconds(lambda: culled_by_products(needs, few))
    assert near_by == by_products, "both ways give the same"
    cells = [name, whole, order, walk, algebra, given_up, load, f"{len(near_by):,}", walked, products]
    return "| " + " | ".join(map(str, cells)) + " |"


def load_algebra() -> Callable[..., Any]:
    """The import, and what the library puts off until it is first used."""
    from scaler_client.graphs.ordering_graphblas import graphblas_heights

    graphblas_heights([[], [0]])
    return graphblas_heights


def culled_by_walk(needs: Needs, wanted: Sequence[int]) -> set[int]:
    """What some calls need, over numbers."""
    found = set(wanted)
    todo = list(wanted)
    for call in todo:
        for need in needs[call]:
            if need not in found:
                found.add(need)
                todo.append(need)
    return found


def culled_by_products(needs: Needs, wanted: Sequence[int]) -> set[int]:
    """The same by boolean products, over the matrix of all calls."""
    import graphblas
    import numpy

    size = len(needs)
    starts = numpy.zeros(size + 1, numpy.uint64)
    numpy.cumsum(numpy.fromiter(map(len, needs), numpy.int64, size), out=starts[1:])
    columns = numpy.fromiter(chain.from_iterable(needs), numpy.uint64, int(starts[-1]))
    matrix = graphblas.Matrix.from_csr(starts, columns, True, ncols=size, dtype=graphblas.dtypes.BOOL)
    found = graphblas.Vector.from_coo(wanted, True, size=size, dtype=graphblas.dtypes.BOOL)
    front = found.dup()
    while front.nvals:
        reached = graphblas.Vector(graphblas.dtypes.BOOL, size)
        reached(~found.S, replace=True) << front.vxm(matrix, graphblas.semiring.any_pair[bool])
        found(reached.S) << True
        front = reached
    return set(found.to_coo(values=False)[0].tolist())


def main() -> None:
    """Print the table."""
    if len(sys.argv) > 1:
        print(measure(sys.argv[1]))
        return
    heads = (
        "calls | plan in all | order | heights: walk | algebra | given up | load | needed by 1 | cull: walk | products"
    )
    print(f"| {heads} |\n|{'---|' * 10}")
    for name in SHAPES:
        row = subprocess.run([sys.executable, __file__, name], stdout=subprocess.PIPE, text=True, check=True)
        print(row.stdout, end="", flush=True)


if __name__ == "__main__":
    main()
