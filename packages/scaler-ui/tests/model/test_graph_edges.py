"""The edges of graphs that a model keeps."""

from __future__ import annotations

import pytest

from scaler_protocol.monitoring import PACKED_EDGE
from scaler_ui.model import graph_edges
from scaler_ui.model.graph_edges import EdgeTable


def packed(*edges: tuple[int, int]) -> bytes:
    return b"".join(PACKED_EDGE.pack(*edge) for edge in edges)


def test_pieces_of_several_graphs_are_put_together() -> None:
    table = EdgeTable()
    table.add([4, 9, 4], [100, 500, 100], [2, 0, 1], packed((2, 1), (1, 0), (3, 1)))
    table.add([4], [100], [2], packed((1, 0), (9, 8)))  # told again, and a node that is not counted yet
    graph, empty = table.find(4), table.find(9)
    assert graph is not None and empty is not None and table.find(5) is None
    assert (graph.first_task, graph.pairs(4)) == (100, ([1, 2, 3], [0, 1, 1]))
    assert (empty.first_task, empty.pairs(4)) == (500, ([], []))


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_edges, "EDGES", 5)
    monkeypatch.setattr(graph_edges, "GRAPH_EDGES", 3)
    table, three = EdgeTable(), packed((1, 0), (2, 0), (3, 0))
    table.add([1, 2], [10, 20], [3, 3], three * 2)
    assert table.find(1) is None and table.find(2) is not None, "the oldest is forgotten"
    table.add([2], [20], [1], packed((4, 0)))
    table.add([2, 3], [20, 30], [3, 3], three * 2)
    big, last = table.find(2), table.find(3)
    assert big is not None and big.is_too_big and big.count == 0
    assert last is not None and last.count == 3


def test_graphs_without_edges_are_bounded_too() -> None:
    table = EdgeTable()
    for number in range(3 * graph_edges.GRAPHS):
        table.add([number], [10 * number], [0], b"")
    first = 2 * graph_edges.GRAPHS
    assert table.find(first - 1) is None and table.find(first) is not None
