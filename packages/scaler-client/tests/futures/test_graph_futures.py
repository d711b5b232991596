"""The futures of a graph, as notebooks show them."""

from __future__ import annotations

import pickle
from typing import Any

from scaler_client.core.records import CallGroup
from scaler_client.futures.futures import finished_future
from scaler_client.futures.graph_futures import GraphFutures
from scaler_client.notebook import DASHBOARD_VARIABLE, Link
from scaler_protocol.messages import Group

GROUP = CallGroup(Group(b"f"), (), pickle.loads, pickle.dumps)


class StatedFuture:
    """A future of which only the state matters."""

    def __init__(self, word: str) -> None:
        self.word = word

    def _word(self) -> str:
        return self.word


def made(*words: str) -> GraphFutures:
    return GraphFutures({word: StatedFuture(word) for word in words}, 0x1F00000001, 7)


def test_the_card_says_how_far_the_graph_is(monkeypatch: Any) -> None:
    monkeypatch.setenv(DASHBOARD_VARIABLE, "https://h/?token=x")
    card = made("finished", "failed", "pending")._card()
    assert card.state == "pending" and card.bar == (1, 1, 0, 3) and not card.is_final
    assert card.rows == {
        "results": "2 of 3, 1 failed",
        "calls": Link("7", "https://h/graph/of:1f00000001?token=x"),
    }
    ends = {word: made("finished", word)._card() for word in ("finished", "failed", "cancelled")}
    assert all(card.state == word and card.is_final for word, card in ends.items())


def test_it_is_a_dictionary_elsewhere() -> None:
    futures = GraphFutures({"a": finished_future(None, GROUP, 1)}, 1, 1)  # type: ignore[arg-type]
    assert futures["a"].result() == 1 and type(futures.copy()) is dict
    assert type(pickle.loads(pickle.dumps(GraphFutures({}, 1, 1)))) is dict
