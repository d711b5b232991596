"""Pictures of graphs: one by one up to some thousand nodes, by layers and function above that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scaler_protocol.byte_planes import to_planes
from scaler_protocol.messages import Status
from scaler_protocol.monitoring import PACKED_EDGE, TaskEvents, TaskStep
from scaler_protocol.profiles import NO_PROFILE
from scaler_ui.model import graph_picture
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.graph_looks import GraphLooks
from scaler_ui.model.graph_picture import draw, function_rows, path_rows, sentence
from scaler_ui.model.model import MonitorModel

if TYPE_CHECKING:
    from conftest import Publications

FIRST = 0x700000064


def graph_columns(nodes: int = 5, ended: float = 0.0) -> dict[str, Any]:
    """What a status says of one graph."""
    return {
        "graphs": (4,), "graph_sessions": (7,), "graph_nodes": (nodes,), "graph_succeeded": (1,), "graph_failed": (2,),
        "graph_cancelled": (0,), "graph_assigned": (1,), "graph_start_times": (990.0,), "graph_end_times": (ended,),
    }  # fmt: skip


def model_of(publications: Publications, *edges: tuple[int, int], nodes: int = 5) -> MonitorModel:
    """Five nodes, of which 0 has ended, 1 has raised, 2 runs, 3 waits and 4 cannot run."""
    told = TaskEvents(
        edge_graphs=(4,), edge_first_tasks=(FIRST,), edge_counts=(len(edges),),
        edges=to_planes(b"".join(PACKED_EDGE.pack(*edge) for edge in edges), PACKED_EDGE.size),
    )  # fmt: skip
    ids = [FIRST + at for at in range(5)]
    return publications.model_of(
        publications.status(snapshot=True),
        publications.groups((9, "m:load", 7, 0, "", ""), (8, "m:add", 7, 0, "", "")),
        told,
        publications.batch(TaskStep.WAITING, 9, *ids[:2]),
        publications.batch(TaskStep.HELD, 8, *ids[2:]),
        publications.batch(TaskStep.ENDED, 1, ids[0]),
        publications.batch(TaskStep.ENDED, 1, ids[1], statuses=bytes([Status.RAISED])),
        publications.batch(TaskStep.ASSIGNED, 1, ids[2], first_run=501),
        publications.batch(TaskStep.ENDED, 0, ids[4], statuses=bytes([Status.FAILED]), profiles=NO_PROFILE),
        publications.status(at=1002.0, **graph_columns(nodes)),
    )


def looks_at(publications: Publications, *edges: tuple[int, int], nodes: int = 5) -> GraphLooks:
    """Looks at these nodes."""
    return GraphLooks(model_of(publications, *edges, nodes=nodes))


EDGES = ((2, 0), (3, 2), (4, 1), (4, 0))


def test_a_small_graph_is_drawn_node_by_node(publications: Publications) -> None:
    look = looks_at(publications, *EDGES).look(4)
    assert look is not None
    picture, states = draw(look)
    assert [round(x, 2) for x in picture.xs] == [0.17, 0.17, 0.5, 0.83, 0.5]
    assert (picture.columns, picture.rows) == (3, 2)
    assert picture.names == ["m:add", "m:load"] and picture.functions == [1, 1, 0, 0, 0]
    assert picture.edges == [0, 2, 2, 3, 0, 4, 1, 4] and picture.tasks[3] == "700000067"
    assert states.letters == "sfrwx"
    assert states.path == [0, 2] and look.took == 12.0, "node 2 runs for two seconds so far"
    assert sentence(look, picture) == "5 nodes in 3 layers"


def test_the_last_nodes_may_be_told_of_after_the_end_of_the_graph(publications: Publications) -> None:
    model = model_of(publications, *EDGES)
    looks, over = GraphLooks(model), graph_columns(ended=1002.5)
    model.take(publications.status(at=1003.0, **over), 50.0)
    early = looks.look(4)
    assert early is not None and draw(early)[1].letters == "sfrwx" and looks.look(4) is early
    model.take(publications.batch(TaskStep.ENDED, 1, FIRST + 2, FIRST + 3), 50.0)
    model.take(publications.status(at=1004.0, **over), 50.0)
    late = looks.look(4)
    assert late is not None and draw(late)[1].letters == "sfssx"
    model.take(publications.status(at=1005.0, **over), 50.0)
    settled = looks.look(4)
    model.take(publications.status(at=1006.0, **over), 50.0)
    assert looks.look(4) is settled


def test_nodes_are_near_those_that_they_are_connected_with(publications: Publications) -> None:
    look = looks_at(publications, (2, 1), (3, 0)).look(4)
    assert look is not None
    ys = draw(look)[0].ys
    assert (ys[0] < ys[1]) == (ys[3] < ys[2])


def test_a_big_graph_is_drawn_by_layers_and_function(
    publications: Publications, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = looks_at(publications, *EDGES).look(4)
    assert look is not None
    monkeypatch.setattr(graph_picture, "NODES", 4)
    picture, states = draw(look)
    assert picture.counts == [2, 2, 1] and picture.edges == [0, 1, 1, 2] and picture.tasks == []
    assert (states.letters, states.shares, states.path) == ("fxw", [100, 50, 0], [0, 1])
    assert sentence(look, picture) == "5 nodes in 3 layers, drawn as 3 groups of one function"
    monkeypatch.setattr(graph_picture, "GROUPS", 2)
    assert sum(draw(look)[0].counts) == 5 and len(draw(look)[0].counts) <= 2, "several layers are a group"


def test_the_tables_beside_the_picture(publications: Publications) -> None:
    looks = looks_at(publications, *EDGES)
    rows = path_rows(looks, 4, PageRequest(order="step", descending=False)).rows
    assert [(row["function"], row["task"], row["state"]) for row in rows] == [
        ("m:load", "700000064", "success"),
        ("m:add", "700000066", "running"),
    ]
    rows = function_rows(looks, 4, PageRequest(order="nodes")).rows
    assert [(row["function"], row["nodes"], row["over"], row["running"], row["failed"]) for row in rows] == [
        ("m:add", 3, 1, 1, 1),
        ("m:load", 2, 2, 0, 1),
    ]


def test_nodes_that_were_not_heard_of_are_said(publications: Publications) -> None:
    looks = looks_at(publications, nodes=9)
    look = looks.look(4)
    assert look is not None and sentence(look, draw(look)[0]).startswith("5 of 9 nodes in 1 layer; the others")
    assert looks.look(5) is None
    assert path_rows(looks, 5, PageRequest()).total == function_rows(looks, 5, PageRequest()).total == 0
