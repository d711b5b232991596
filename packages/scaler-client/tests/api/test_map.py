"""Maps: what they do that futures do not."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from scaler_client.api import map
from scaler_client.api.client import Client
from scaler_client.core.graph_state import GraphTasks, NodeNeed
from scaler_client.core.records import CallBlock, CallGroup
from scaler_client.objects.handles import StoredPayload
from scaler_client.objects.store import ClientStorage, StorageDoor
from scaler_protocol.errors import StorageLostError
from scaler_protocol.messages import Group, Status, Submit
from scaler_protocol.objects import Reference

BIG = bytes(100_000)
GROUP = CallGroup(Group(b""), (), pickle.loads, pickle.dumps)


class AbsentServer:
    """Keeps objects, and is away for as many questions as `away` says."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.away = 0

    def put(self, payload: bytes, *, session: int, name: bytes, copying: object) -> None:
        self.objects[name] = bytes(payload)

    def get(self, reference: Reference, timeout: float) -> bytes:
        if self.away:
            self.away -= 1
            raise StorageLostError("no answer")
        return self.objects[reference.object]

    def check_server(self, patience: float = 0.0) -> None: ...

    def delete(self, references: object, *, session: int) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[AbsentServer]:
    monkeypatch.setattr(map, "RETRY_SECONDS", 0.0)
    yield AbsentServer()


def block_of(server: AbsentServer, status: int, *outcomes: object) -> CallBlock:
    """Calls that have all ended so, with outcomes in storage."""
    door = StorageDoor(lambda: "tcp://127.0.0.1:1", lambda address: server)  # type: ignore[arg-type,return-value]
    storage = ClientStorage(door, 5)
    block = CallBlock(1, GROUP, [b"call"] * len(outcomes), lambda: None)
    for task, outcome in enumerate(outcomes, 1):
        placed = storage.store(pickle.dumps(outcome))
        assert type(placed) is StoredPayload
        block.take(task, status, placed)
    return block


def test_stored_results_wait_for_a_server_that_is_away(server: AbsentServer) -> None:
    block = block_of(server, Status.VALUE, BIG, BIG + b"1")
    server.away = 3
    assert map._load(block, 10.0) == [BIG, BIG + b"1"]


def test_a_stored_failure_waits_too(server: AbsentServer) -> None:
    block = block_of(server, Status.RAISED, (ValueError("it was", BIG), ""))
    server.away = 3
    with pytest.raises(ValueError, match="it was"):
        map._raise_first(block, 10.0)


def test_a_server_that_stays_away_is_said_in_bounded_time(server: AbsentServer) -> None:
    block = block_of(server, Status.VALUE, BIG)
    server.away = 2**62
    with pytest.raises(StorageLostError, match="no answer"):
        map._load(block, 0.05)


def reused(kind: Callable[[int], Any], count: int = 40) -> Iterator[Any]:
    """One object again and again, with another content each time."""
    thing = kind(0)
    for value in range(count):
        thing[:] = kind(value)
        yield thing


def as_list(value: int) -> list[int]:
    return [value]


def as_numbers(value: int) -> Any:
    return np.full(3, value)


def first_of(thing: Any) -> int:
    return int(thing[0])


def first_of_rest(nothing: int, things: list[Any]) -> int:
    return int(things[0][0])


@pytest.mark.parametrize("kind", [as_list, as_numbers])
def test_what_an_iterator_yields_is_what_arrives(client: Client, kind: Callable[[int], Any]) -> None:
    expected = list(range(40))
    assert client.map(first_of, reused(kind)) == expected
    assert client.map(first_of, (thing for thing in reused(kind))) == expected
    assert client.map(first_of_rest, [0] * 40, ([thing] for thing in reused(kind))) == expected
    assert client.starmap(first_of, ((thing,) for thing in reused(kind))) == expected
    assert client.starmap(first_of, ([thing] for thing in reused(kind))) == expected
    assert client.starmap(first_of_rest, ((0, [thing]) for thing in reused(kind))) == expected
    assert list(client.executor().map(first_of, reused(kind))) == expected


def test_rows_of_a_list_may_be_iterators_too(client: Client) -> None:
    shared = [0]

    def row(value: int) -> Iterator[list[int]]:
        shared[0] = value
        yield shared

    assert client.starmap(first_of, [row(value) for value in range(20)]) == list(range(20))


def test_each_arity_is_checked_before_anything_of_its_block_is_sent(client: Client, cluster: Any) -> None:
    for rows in [(0,), (1, 2)], iter([(0,), (1, 2)]):
        with pytest.raises(TypeError, match="as_list"):
            client.starmap(as_list, rows)
    assert not cluster.of(Submit)
    assert client.starmap(divmod, iter([(5, 2)] * 100)) == [(2, 1)] * 100


def test_an_iterator_without_items_makes_no_calls(client: Client) -> None:
    assert client.map(as_list, iter([])) == client.starmap(as_list, iter([])) == []


def below_one(value: int) -> int:
    if not value:
        raise LookupError("the first item")
    return value


def test_a_failure_is_raised_while_the_iterable_is_drawn(client: Client) -> None:
    """An endless iterable would never be drawn to its end."""
    with pytest.raises(LookupError, match="the first item"):
        client.map(below_one, iter(count()))
    with pytest.raises(LookupError, match="the first item"):
        client.starmap(below_one, ([value] for value in count()))
    assert client.map(below_one, [1]) == [1]


def test_items_that_come_slowly_are_submitted_before_more_are_drawn(
    client: Client, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly() -> Iterator[int]:
        for value in range(1, 5):
            yield value
            cluster.wait_for(Submit, value)

    monkeypatch.setattr(map, "BLOCK_SECONDS", 0.0)
    assert client.map(below_one, slowly()) == [1, 2, 3, 4]


def test_blocks_are_cut_at_bytes_and_at_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map, "MESSAGE_LIMIT", 10)
    monkeypatch.setattr(map, "MESSAGE_NEEDS", 3)
    graph = GraphTasks(range(1, 5), lambda task, failed: "")
    inputs = [NodeNeed(graph, task) for task in graph.tasks]
    calls, needs = [b"12345", b"1", b"1", b"1234567", b"1", b"1"], {1: inputs[:3], 2: inputs[:1], 5: inputs}
    assert list(map._pieces(calls, needs)) == [(0, 2), (2, 5), (5, 6)]
    assert list(map._pieces(calls[:2], {})) == [(0, 2)]
