"""What travels: objects, graphs, and what a custom serializer sees."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from scaler import Client, ObjectReference, Serializer
from scaler_client.futures.futures import ScalerFuture
from scaler_protocol import errors
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at
from support.tasks import add, explode, note, square


def test_an_object_is_used_in_many_calls(client: Client) -> None:
    original = [1, 2, 3, 4, 5]
    reference = client.send_object(original, name="large_object")
    assert isinstance(reference, ObjectReference)
    original.append(6)

    def query(values: list[int], index: int) -> int:
        return values[index]

    assert [client.submit(query, reference, index).result(SECONDS) for index in (0, 1, -1)] == [1, 2, 5]
    assert client.map(query, [reference, reference], [2, 3]) == [3, 4]
    assert client.submit(query, values=reference, index=3).result(SECONDS) == 4
    assert reference.name == b"large_object" and reference.size > 0
    other = client.send_object(original)
    assert len({reference, other}) == 2 and reference != other and other.name


def test_references_are_arguments_at_any_depth(client: Client) -> None:
    reference = client.send_object({"key": "value"})
    assert client.submit(lambda nested: nested[0]["in"]["key"], [{"in": reference}]).result(SECONDS) == "value"
    future = client.submit(lambda value: value, reference)
    assert client.submit(lambda both: both, (reference, future)).result(SECONDS) == ({"key": "value"},) * 2


def test_big_objects(client: Client) -> None:
    reference = client.send_object(bytes(3_000_000))
    assert reference.size >= 3_000_000
    assert client.map(lambda value, index: len(value) + index, [reference] * 20, range(20))[-1] == 3_000_019


def _reused(size: int) -> Iterator[Any]:
    """One array again and again, with other numbers each time."""
    array = np.zeros(size)
    for value in range(30):
        array[:] = value
        yield array


@pytest.mark.parametrize("size", [10, 4_000, 100_000])
def test_a_map_over_an_array_that_is_filled_again_and_again(client: Client, size: int) -> None:
    """Small ones travel in their calls; others are objects, which are put soon, or waited for."""
    expected = [float(value * size) for value in range(30)]
    assert client.map(np.sum, _reused(size)) == expected
    assert client.starmap(np.sum, ((array,) for array in _reused(size))) == expected
    assert client.map(lambda held: held[0].sum(), ([array] for array in _reused(size))) == expected


def test_a_reference_of_another_client(client: Client, cluster: LocalCluster) -> None:
    with Client(address=cluster.address) as other:
        reference = other.send_object([1, 2])
        other.clear()
    with pytest.raises(errors.ObjectNotFoundError):
        client.submit(len, reference)


GRAPH: dict[str, Any] = {
    "a": 2,
    "b": 2,
    "c": (square, "a"),
    "d": (add, "a", "b"),
    "e": (add, "d", "c"),
    "f": add,
    "g": None,
    "h": [1, 2],
    "i": (add, "c", "c"),
    "j": (),
}


def test_a_graph_gives_what_its_keys_ask_for_in_their_order(client: Client) -> None:
    assert client.get(GRAPH, keys=["e"]) == {"e": 8}
    keys = ["i", "a", "e", "c", "f", "g", "h", "j"]
    found = client.get(GRAPH, keys=keys)
    assert list(found) == keys
    assert found == {"a": 2, "c": 4, "e": 8, "f": add, "g": None, "h": [1, 2], "i": 8, "j": ()}
    assert client.get(GRAPH, keys=[]) == {}
    assert client.get({**GRAPH, "k": client.send_object([3]), "l": (len, "k")}, keys=["l", "k"]) == {"l": 1, "k": [3]}


def test_a_graph_without_blocking(client: Client, gate: Gate) -> None:
    graph = {"port": gate.port, "one": 1, "wait": (wait_at, "port", "one"), "sum": (add, "wait", "one")}
    futures = client.get(graph, keys=["sum", "one"], block=False)
    assert list(futures) == ["sum", "one"]
    assert futures["one"].done() and not futures["sum"].done()
    gate.arrive().let_go()
    assert [future.result(SECONDS) for future in futures.values()] == [2, 1]


def test_only_what_the_keys_need_is_run(client: Client) -> None:
    assert client.get({"x": "no", "bad": (explode, "x"), "good": (len, "x")}, keys=["good"]) == {"good": 2}


def test_a_failing_node_fails_what_was_asked_for(client: Client) -> None:
    graph = {"text": "in a graph", "bad": (explode, "text"), "after": (square, "bad"), "last": (square, "after")}
    with pytest.raises(ValueError, match="in a graph"):
        client.get(graph, keys=["last"])
    futures = client.get(graph, keys=["bad", "last"], block=False)
    for future in futures.values():
        assert isinstance(future.exception(SECONDS), ValueError)
    assert client.submit(square, 2).result(SECONDS) == 4


@pytest.mark.parametrize(
    ("graph", "keys", "expected"),
    [
        ({"a": 1}, ["b"], KeyError),
        ({"a": (square, "nowhere")}, ["a"], KeyError),
        ({"a": (square, 3)}, "a", TypeError),
        ({"a": (square, "b"), "b": (square, "a")}, ["a"], ValueError),
        ({"a": (add, "b"), "b": 1}, ["a"], TypeError),
    ],
)
def test_a_graph_without_sense_is_refused(
    client: Client, graph: dict[str, Any], keys: list[str], expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        client.get(graph, keys=keys)


def noting_serializer(path: Path) -> type[Serializer]:
    """A serializer that notes in a file what it is asked to do, here and on workers."""
    noted = str(path)

    class NotingSerializer(Serializer):
        @staticmethod
        def serialize(obj: Any) -> bytes:
            note(noted, f"serialize:{getattr(obj, '__name__', obj)}")
            return b"N" + cloudpickle.dumps(obj)

        @staticmethod
        def deserialize(payload: bytes) -> Any:
            assert payload[:1] == b"N"
            note(noted, f"deserialize:{type(payload).__name__}")
            return pickle.loads(payload[1:])

    return NotingSerializer


class Notes:
    """What was noted since the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self, word: str) -> list[str]:
        """The new lines of this word, sorted."""
        lines = self._path.read_text("utf-8").splitlines()
        found = sorted(line.partition(":")[2] for line in lines[self._read :] if line.startswith(f"{word}:"))
        return found

    def turn(self) -> None:
        """What was noted so far is old."""
        self._read = len(self._path.read_text("utf-8").splitlines())


@contextmanager
def noting(address: str, path: Path, *, instance: bool = False) -> Iterator[tuple[Client, Notes]]:
    """A client with a serializer, and the serializer's notes."""
    kind = noting_serializer(path)
    with Client(address=address, serializer=kind() if instance else kind) as client:
        yield client, Notes(path)


@pytest.mark.parametrize("instance", [False, True])
def test_exactly_four_calls_of_serialize(cluster: LocalCluster, tmp_path: Path, instance: bool) -> None:
    with noting(cluster.address, tmp_path / "notes", instance=instance) as (client, notes):
        assert client.submit(add, 1, 2).result(SECONDS) == 3
        assert notes.new("serialize") == ["1", "2", "3", "add"]
        assert notes.new("deserialize") == ["bytes"] * 4
        notes.turn()
        assert client.submit(add, 4, b=5).result(SECONDS) == 9
        assert notes.new("serialize") == ["4", "5", "9"], "a function is written once per client"
        notes.turn()
        assert client.map(add, [10, 20], [1, 2]) == [11, 22]
        assert notes.new("serialize") == ["1", "10", "11", "2", "20", "22"]


def test_a_custom_serializer_with_objects_futures_graphs_and_errors(cluster: LocalCluster, tmp_path: Path) -> None:
    with noting(cluster.address, tmp_path / "notes") as (client, _):
        reference = client.send_object([1, 2, 3])
        assert client.submit(sum, reference).result(SECONDS) == 6
        done = client.submit(square, 3)
        assert done.result(SECONDS) == 9
        assert client.submit(add, done, b=client.submit(square, 2)).result(SECONDS) == 13
        assert client.get({"a": 2, "b": (square, "a")}, keys=["b", "a"]) == {"b": 4, "a": 2}
        with pytest.raises(ValueError, match="as it is"):
            client.submit(explode, "as it is").result(SECONDS)
        with pytest.raises(TypeError):
            client.submit(add, 1)
        assert client.submit(functools.partial(add, 1), b=2).result(SECONDS) == 3


def test_calls_without_arguments(cluster: LocalCluster, client: Client, tmp_path: Path) -> None:
    """With a custom serializer such a call has no bytes at all."""
    with noting(cluster.address, tmp_path / "notes") as (custom, _):
        for each in (client, custom):
            assert each.submit(list).result(SECONDS) == []
            assert each.starmap(list, [(), ()]) == [[], []]
            assert each.get({"a": (list,), "b": (len, "a")}, keys=["b"]) == {"b": 0}


def test_what_a_caller_does_to_a_result_is_not_seen_by_calls_that_take_it(
    cluster: LocalCluster, client: Client, tmp_path: Path
) -> None:
    with noting(cluster.address, tmp_path / "notes") as (custom, _):
        for each in (client, custom):
            for size in (3, 10_000):  # inline, and in object storage
                made: ScalerFuture[list[int]] = each.submit(list, range(size))
                made.result(SECONDS).append(1000)
                assert each.submit(len, made).result(SECONDS) == size
                assert each.map(len, [made]) == [size] == each.map(len, [made])
                assert made.result().pop() == 1000


def test_one_future_may_be_several_arguments(cluster: LocalCluster, tmp_path: Path, gate: Gate) -> None:
    with noting(cluster.address, tmp_path / "notes") as (custom, _), Client(address=cluster.address) as plain:
        for client in (plain, custom):
            future = client.submit(wait_at, gate.port, 4)
            total = client.submit(add, future, b=future)
            gate.arrive().let_go()
            assert total.result(SECONDS) == 8, client


def test_a_serializer_that_fails(cluster: LocalCluster) -> None:
    class PickySerializer(Serializer):
        @staticmethod
        def serialize(obj: Any) -> bytes:
            if obj == 13:
                raise ValueError("not this number")
            return bytes(cloudpickle.dumps(obj))

        @staticmethod
        def deserialize(payload: bytes) -> Any:
            value = pickle.loads(payload)
            if value == 14:
                raise ValueError("nor that one")
            return value

    with Client(address=cluster.address, serializer=PickySerializer) as client:
        with pytest.raises(ValueError, match="not this number"):
            client.submit(square, 13)
        for call, expected in (
            (client.submit(add, 6, 7), errors.ResultNotSerializableError),
            (client.submit(square, 14), errors.DeserializeError),
            (client.submit(add, 7, 7), errors.DeserializeError),
        ):
            assert isinstance(call.exception(SECONDS), expected)
        assert client.submit(square, 3).result(SECONDS) == 9


def test_the_serializer_goes_along_with_a_pickled_client(cluster: LocalCluster, tmp_path: Path) -> None:
    def outer(inner: Client, fn: Callable[[int], int], value: int) -> int:
        return inner.submit(fn, value).result(SECONDS)

    with noting(cluster.address, tmp_path / "notes") as (client, notes):
        assert client.submit(outer, client, square, 123).result(SECONDS) == 15129
        assert notes.new("serialize").count("123") == 2, "once here, once by the client inside the task"
        with cloudpickle.loads(cloudpickle.dumps(client)) as again:
            notes.turn()
            assert again.submit(square, 5).result(SECONDS) == 25
            assert notes.new("serialize") == ["25", "5", "square"]
