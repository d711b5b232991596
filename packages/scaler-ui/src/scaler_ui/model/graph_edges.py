"""EdgeTable: which nodes of the last graphs need which, as the scheduler has published it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.monitoring import PACKED_EDGE

EDGES = 2_000_000
"""Edges of all graphs that are kept."""
GRAPHS = 10_000
"""Graphs that are kept, also those without edges."""
GRAPH_EDGES = 250_000
"""Edges of one graph; of one with more none are kept, because its picture would take too long."""


@dataclass(slots=True)
class EdgesOfGraph:
    """A graph, whose nodes are the tasks with ids from `first_task` on."""

    first_task: int
    packed: bytearray
    """PACKED_EDGE records; an edge may be there twice."""
    is_too_big: bool = False

    @property
    def count(self) -> int:
        """Edges that are kept."""
        return len(self.packed) // PACKED_EDGE.size

    def pairs(self, nodes: int) -> tuple[list[int], list[int]]:
        """Nodes below this number, and at the same position a node that each needs, which has a lower number.

        They are sorted by node.
        """
        pairs = np.frombuffer(bytes(self.packed), "<u4").reshape(-1, 2).astype(np.uint64)
        pairs = pairs[(pairs[:, 1] < pairs[:, 0]) & (pairs[:, 0] < nodes)]
        merged = np.sort((pairs[:, 0] << np.uint64(32)) | pairs[:, 1])
        merged = merged[np.diff(merged, prepend=merged[:1] + np.uint64(1)) != 0]  # ten times as fast as `unique`
        return (merged >> np.uint64(32)).tolist(), (merged & np.uint64(2**32 - 1)).tolist()


class EdgeTable:
    """The edges of graphs by number; the oldest graphs are forgotten."""

    def __init__(self) -> None:
        self._graphs: dict[int, EdgesOfGraph] = {}
        self._edges = 0

    def add(self, numbers: Iterable[int], first_tasks: Iterable[int], counts: Iterable[int], edges: bytes) -> None:
        """Add pieces of graphs: of each piece so many of the edges."""
        at = 0
        for number, first, count in zip(numbers, first_tasks, counts, strict=True):
            graph = self._graphs.setdefault(number, EdgesOfGraph(first, bytearray()))
            piece = edges[at : at + PACKED_EDGE.size * count]
            at += len(piece)
            if graph.count + count > GRAPH_EDGES:
                self._edges -= graph.count
                graph.packed, graph.is_too_big = bytearray(), True
            elif not graph.is_too_big:
                graph.packed += piece
                self._edges += count
        while self._edges > EDGES or len(self._graphs) > GRAPHS:
            self._edges -= self._graphs.pop(next(iter(self._graphs))).count

    def find(self, number: int) -> EdgesOfGraph | None:
        """What is known about a graph."""
        return self._graphs.get(number)

    def of_task(self, first_task: int) -> int | None:
        """The number of the graph that begins with this task."""
        return next((number for number, graph in self._graphs.items() if graph.first_task == first_task), None)

    def clear(self) -> None:
        """Another scheduler has begun, which numbers graphs anew."""
        self._graphs.clear()
        self._edges = 0
