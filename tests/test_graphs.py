"""Graphs on a cluster: what they compute, how they fail, and what they leave behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaler import Client
from scaler_client.api import map as map_module
from scaler_client.core import submit_builder
from scaler_client.futures import argument_refs
from scaler_client.graphs import submission
from scaler_protocol.errors import InvalidFieldError, TaskTimeoutError
from scaler_protocol.messages import MESSAGE_GROUPS
from support.clusters import LocalCluster, listening_to
from support.gates import SECONDS, Gate, wait_at
from support.tasks import add, explode, pair, pause_and_add, sizes, square, total


@pytest.fixture(scope="module", autouse=True)
def listened(cluster: LocalCluster) -> Iterator[None]:
    """Of graphs the scheduler tells most; those of other tests run while nobody listens."""
    with listening_to(cluster.address):
        yield


@st.composite
def dags(draw: st.DrawFn) -> dict[Any, Any]:
    """A graph of sums: node 0 is data, each other one takes some that came before."""
    graph: dict[Any, Any] = {"0": draw(st.integers(-9, 9))}
    for key in range(1, draw(st.integers(2, 60))):
        graph[str(key)] = (total, *draw(st.lists(st.sampled_from(list(graph)), min_size=1, max_size=4)))
    return graph


@given(dags())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_cluster_gives_what_a_loop_gives(client: Client, graph: dict[Any, Any]) -> None:
    values: dict[Any, Any] = {}
    for key, node in graph.items():
        values[key] = sum(values[need] for need in node[1:]) if isinstance(node, tuple) else node
    keys = [key for key in graph if int(key) % 3 == 0 or int(key) == len(graph) - 1]
    found = client.get(graph, keys)
    assert found == {key: values[key] for key in keys} and list(found) == keys


def test_what_may_stand_in_a_call(client: Client) -> None:
    reference, future = client.send_object([5, 6]), client.submit(square, 3)
    graph: dict[Any, Any] = {
        ("x", 0): 1,
        2.5: (add, ("x", 0), 10),
        None: (total, [2.5, 1, ("x", 0)], {"a": 2.5}, (square, (add, ("x", 0), 1))),
        frozenset("k"): (sum, reference),
        "future": (square, future),
        "data": future,
        "held": reference,
        "mixed": [reference, future],
        "of data": (total, "data", "held"),
        "of mixed": (lambda both: (both[0], both[1]), "mixed"),
        "twice": (add, 2.5, 2.5),
    }
    assert client.get(graph, [None, frozenset("k"), "future", "data", "held"]) == {
        None: 28,
        frozenset("k"): 11,
        "future": 81,
        "data": 9,
        "held": [5, 6],
    }
    assert client.get(graph, ["twice", "of data", "of mixed"]) == {
        "twice": 22,
        "of data": 20,
        "of mixed": ([5, 6], 9),
    }


def test_big_results_inside_and_outside(client: Client) -> None:
    big = 300_000
    graph = {
        "data": bytes(big),
        "a": (bytes, big),
        "b": (lambda a: a + b"1", "a"),
        "n": (sizes, "a", "b", "data", "data"),
        "m": (sizes, "b", "data"),
    }
    found = client.get(graph, ["n", "b", "m"])
    assert (found["n"], len(found["b"]), found["m"]) == (4 * big + 1, big + 1, 2 * big + 1)


def test_only_what_depends_on_a_failed_node_fails(client: Client) -> None:
    graph = {
        "text": "no such thing",
        "bad": (explode, "text"),
        "after": (square, "bad"),
        "last": (add, "after", "good"),
        "good": (square, 4),
        "apart": (square, "good"),
    }
    futures = client.get(graph, ["last", "apart", "after"], block=False)
    assert futures["apart"].result(SECONDS) == 256
    for key, path in (("last", "'last' → 'after' → 'bad'"), ("after", "'after' → 'bad'")):
        error = futures[key].exception(SECONDS)
        assert isinstance(error, ValueError) and "no such thing" in str(error)
        assert any(path in line for line in getattr(error, "__notes__", ())), key
    with pytest.raises(ValueError, match="no such thing") as caught:
        client.get(graph, ["apart", "last"])
    assert "in a graph: 'last' → 'after' → 'bad'" in getattr(caught.value, "__notes__", ()), (
        "inner nodes are named, too"
    )
    assert client.get(graph, ["apart"]) == {"apart": 256}


def test_a_future_that_failed_fails_what_takes_it(client: Client) -> None:
    failed = client.submit(explode, "before")
    assert failed.exception(SECONDS) is not None
    graph = {"x": (square, failed), "y": (add, "x", 1), "z": (square, 2), "l": (total, [failed, 1])}
    futures = client.get(graph, ["y", "z", "l"], block=False)
    assert futures["z"].result(SECONDS) == 4
    assert isinstance(futures["y"].exception(SECONDS), ValueError)
    assert isinstance(futures["l"].exception(SECONDS), ValueError)


def test_what_nobody_needs_any_more_is_stopped(client: Client, gate: Gate) -> None:
    graph = {
        "wait": (wait_at, gate.port, 1),
        "text": (wait_at, gate.port, 12345),
        "bad": (explode, "text"),
        "both": (add, "wait", "bad"),
    }
    futures = client.get(graph, ["both"], block=False)
    waiting, failing = sorted((gate.arrive(), gate.arrive()), key=lambda arrival: len(arrival.value))
    failing.let_go()
    assert isinstance(futures["both"].exception(SECONDS), ValueError)
    waiting.wait_gone()


def test_a_sibling_of_a_failed_node_continues_if_a_consumer_needs_it(client: Client, gate: Gate) -> None:
    graph = {
        "wait": (wait_at, gate.port, 1),
        "text": "fails beside it",
        "bad": (explode, "text"),
        "both": (add, "wait", "bad"),
        "other": (add, "wait", 1),
    }
    futures = client.get(graph, ["both", "other"], block=False)
    arrival = gate.arrive()
    assert isinstance(futures["both"].exception(SECONDS), ValueError)
    arrival.let_go()
    assert futures["other"].result(SECONDS) == 2


def test_the_last_key_that_needs_a_node_stops_it_when_it_is_cancelled(client: Client, gate: Gate) -> None:
    graph = {
        "shared": (wait_at, gate.port, 1),
        "own": (wait_at, gate.port, 12345),
        "inner": (add, "shared", 1),
        "a": (pair, "inner", "own"),
        "b": (add, "inner", 2),
        "c": (add, "shared", 3),
    }
    futures = client.get(graph, ["a", "b", "c"], block=False)
    shared, own = sorted((gate.arrive(), gate.arrive()), key=lambda arrival: len(arrival.value))
    assert futures["a"].cancel()
    own.wait_gone()
    assert futures["b"].cancel()
    assert client.submit(square, 3).result(SECONDS) == 9, "the scheduler knows by now"
    shared.let_go()
    assert futures["c"].result(SECONDS) == 4
    again = client.get(graph, ["b", "c"], block=False)
    shared = gate.arrive()
    assert again["b"].cancel() and again["c"].cancel()
    shared.wait_gone()
    with pytest.raises(CancelledError):
        again["c"].result(SECONDS)


def test_whatever_takes_a_cancelled_node_is_cancelled_at_once(client: Client, gate: Gate) -> None:
    graph = {"wait": (wait_at, gate.port, 1), "a": (add, "wait", 1), "b": (add, "a", 1), "c": (add, "wait", 5)}
    futures = client.get(graph, ["a", "b", "c"], block=False)
    arrival = gate.arrive()
    inside = client.get(
        {"held": futures["a"], "more": (square, "held"), "most": (square, "more")}, ["most"], block=False
    )
    consumers = [futures["b"], client.submit(square, futures["a"]), inside["most"]]
    assert futures["a"].cancel()
    assert wait(consumers, SECONDS).not_done == set()
    assert all(consumer.cancelled() for consumer in consumers) and not futures["c"].done()
    arrival.let_go()
    assert futures["c"].result(SECONDS) == 6


def test_requested_nodes_that_others_take(client: Client) -> None:
    graph: dict[Any, Any] = {
        "a": (add, 1, 2),
        **{("n", i): (add, "a", i) for i in range(50)},
        "all": (total, [("n", i) for i in range(50)]),
    }
    futures = client.get(graph, ["a", ("n", 7), "all"], block=False)
    assert [future.result(SECONDS) for future in futures.values()] == [3, 10, 50 * 3 + sum(range(50))]
    assert client.submit(add, futures["a"], futures["n", 7]).result(SECONDS) == 13


def test_a_graph_that_waits_for_workers(cluster: LocalCluster) -> None:
    with Client(address=cluster.address) as client:
        futures = client.get({"a": (square, 2), "b": (add, "a", 1)}, ["b"], False, {"nowhere": -1})
        assert not futures["b"].done()
        futures["b"].cancel()
        assert client.submit(square, 5).result(SECONDS) == 25


@pytest.mark.parametrize("size", [20_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_wide_and_long(client: Client, size: int) -> None:
    wide = {("n", i): (square, i) for i in range(size // 2)}
    assert client.get({**wide, "all": (total, list(wide))}, ["all"]) == {"all": sum(i * i for i in range(size // 2))}
    chain = {("c", i): (add, ("c", i - 1), 1) for i in range(1, size)}
    assert client.get({**chain, ("c", 0): 1}, [("c", size - 1)]) == {("c", size - 1): size}
    bad = {("c", i): (add, ("c", i - 1), 1) for i in range(1, size // 5)}
    with pytest.raises(ValueError, match="way"):
        client.get({**bad, ("c", 0): (explode, ("long", "way"))}, [("c", size // 5 - 1)])


NEEDS: dict[str, list[str]] = {
    "a": [], "b": [], "c": ["a"], "d": ["a", "b"], "e": ["c", "c"], "f": ["c", "d"], "g": ["d"], "h": ["e", "f", "g"],
}  # fmt: skip
"""A graph with a node in every position: at the top, the bottom, in a chain, where ways part and where they meet."""


def depend_on(key: str) -> set[str]:
    """The nodes that can not be had without this one."""
    found = {key}
    for node, needs in NEEDS.items():
        if found.intersection(needs):
            found.add(node)
    return found


def sums(**others: Any) -> dict[str, Any]:
    """The graph, each node one more than the sum of its needs, some of them replaced."""
    return {"one": 1, **{key: (total, "one", *needs) for key, needs in NEEDS.items()}, **others}


def expected() -> dict[str, int]:
    found: dict[str, int] = {}
    for key, needs in NEEDS.items():
        found[key] = 1 + sum(found[need] for need in needs)
    return found


def check_the_rest(futures: dict[str, Any], lost: set[str]) -> None:
    assert {key: futures[key].result(SECONDS) for key in NEEDS if key not in lost} == {
        key: value for key, value in expected().items() if key not in lost
    }


@pytest.mark.parametrize("key", NEEDS)
def test_a_node_that_fails_wherever_it_stands(client: Client, key: str) -> None:
    graph = sums(text="here", **{key: (explode, "text")})
    futures = client.get(graph, list(NEEDS), block=False)
    for lost in depend_on(key):
        error = futures[lost].exception(SECONDS)
        assert isinstance(error, ValueError)
        notes = getattr(error, "__notes__", [])
        assert lost == key or any(f"{lost!r} → " in line and line.endswith(f"→ {key!r}") for line in notes), notes
    check_the_rest(futures, depend_on(key))


@pytest.mark.parametrize("key", NEEDS)
def test_a_node_that_is_cancelled_wherever_it_stands(client: Client, gate: Gate, key: str) -> None:
    graph = sums(**{key: (wait_at, gate.port, 0)})
    futures = client.get(graph, list(NEEDS), block=False)
    arrival = gate.arrive()
    assert futures[key].cancel()
    for lost in depend_on(key):
        with pytest.raises(CancelledError):
            futures[lost].result(SECONDS)
    check_the_rest(futures, depend_on(key))
    arrival.wait_gone()


def test_nodes_that_are_out_of_time_wherever_they_stand(tmp_path: Path, gate: Gate) -> None:
    with ExitStack() as stack:
        impatient = LocalCluster(tmp_path / "log", n_workers=len(NEEDS), task_timeout_seconds=2.0)
        stack.callback(impatient.end)
        client = stack.enter_context(Client(impatient.address))
        graphs = {key: client.get(sums(**{key: (wait_at, gate.port, 0)}), list(NEEDS), block=False) for key in NEEDS}
        arrivals = [gate.arrive() for _ in NEEDS]
        for key, futures in graphs.items():
            for lost in depend_on(key):
                error = futures[lost].exception(SECONDS)
                assert isinstance(error, TaskTimeoutError)
                notes = getattr(error, "__notes__", [])
                assert lost == key or any(f"{lost!r} → " in line and line.endswith(f"→ {key!r}") for line in notes)
            check_the_rest(futures, depend_on(key))
        for arrival in arrivals:
            arrival.wait_gone()


@pytest.mark.parametrize("key", NEEDS)
def test_a_future_that_is_out_of_time_wherever_it_is_taken(client: Client, gate: Gate, key: str) -> None:
    late = client.submit_verbose(wait_at, (gate.port, 0), {}, task_timeout_seconds=0.05)
    futures = client.get(sums(**{key: (add, late, 1)}), list(NEEDS), block=False)
    for lost in depend_on(key):
        assert isinstance(futures[lost].exception(SECONDS), TaskTimeoutError)
    check_the_rest(futures, depend_on(key))


def test_progress_inside_a_task(client: Client) -> None:
    def counted(inside: Client) -> list[tuple[int, int]]:
        from scaler_client.api import progress

        seen: list[tuple[int, int]] = []

        class Bar(progress.ProgressBar):
            def _refresh(self) -> None:
                seen.append(self._count())

        progress.ProgressBar, progress.REFRESH_SECONDS = Bar, 0.01  # type: ignore[misc]
        graph = {"n0": 0, **{f"n{i}": (pause_and_add, f"n{i - 1}", 1) for i in range(1, 21)}}
        inside.get(graph, ["n20"], progress=True)
        return seen

    seen = client.submit(counted, client).result(SECONDS)
    assert seen[-1] == (20, 20) and any(0 < done < 20 for done, _ in seen), seen


def test_retries_and_threads(client: Client) -> None:
    found: list[Any] = []

    def one(offset: int) -> None:
        graph = {"n0": offset, **{f"n{i}": (add, f"n{i - 1}", 1) for i in range(1, 40)}}
        found.append((offset, client.get(graph, ["n39"], priority=offset % 2, retries=1)["n39"]))

    threads = [threading.Thread(target=one, args=(offset,)) for offset in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert sorted(found) == [(offset, offset + 39) for offset in range(6)]


def test_progress_counts_inner_nodes(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from scaler_client.api import progress

    counted: list[tuple[int, int]] = []

    class Bar(progress.ProgressBar):
        def _refresh(self) -> None:
            counted.append(self._count())

    monkeypatch.setattr(progress, "ProgressBar", Bar)
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.01)
    graph = {"n0": 0, **{f"n{i}": (pause_and_add, f"n{i - 1}", 1) for i in range(1, 41)}}
    assert client.get(graph, ["n40"], progress=True) == {"n40": 40}
    assert counted[-1] == (40, 40) and any(0 < done < 40 for done, _ in counted), counted
    assert client.map(square, range(100), progress=True) == [i * i for i in range(100)]
    assert counted[-1] == (100, 100)


def test_a_graph_of_more_functions_than_a_message_has_groups(client: Client) -> None:
    functions = [eval(f"lambda x: x + {number}") for number in range(MESSAGE_GROUPS + 44)]
    graph: dict[Any, Any] = {"0": 1}
    graph.update({str(number): (function, "0") for number, function in enumerate(functions, 1)})
    assert client.get(graph, list(graph)) == {"0": 1} | {str(n): n for n in range(1, len(graph))}


def test_inputs_beyond_what_one_message_holds(client: Client, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (argument_refs, map_module, submission, submit_builder):
        monkeypatch.setattr(module, "MESSAGE_NEEDS", 5)
    leaves = [f"leaf {number}" for number in range(5)]
    graph: dict[Any, Any] = {leaf: (add, number, 0) for number, leaf in enumerate(leaves)}
    graph.update({f"sum {number}": (total, *leaves[number:]) for number in range(5)})
    graph["all"] = (total, *(f"sum {number}" for number in range(5)))
    assert client.get(graph, ["all", "sum 3"]) == {"all": 40, "sum 3": 7}
    first = client.submit(wait_at, gate.port, 1)
    ones = [first, *(client.submit(total, first) for _ in range(5))]
    with pytest.raises(InvalidFieldError, match="a task has 6 futures and objects as inputs, more than 5"):
        client.submit(sum, ones)
    with pytest.raises(InvalidFieldError, match="a task has 6 futures and objects as inputs, more than 5"):
        client.map(sum, [ones])
    sums = [client.submit(sum, ones[:count]) for count in range(6)]
    gate.arrive().let_go()
    assert client.map(total, [sums[:count] for count in range(6)]) == [0, 0, 1, 3, 6, 10]
    assert [each.result(SECONDS) for each in sums] == [*range(6)]
    with pytest.raises(InvalidFieldError, match="node 'all' of the graph has 6 futures and objects as inputs"):
        client.get({**graph, "all": (total, "leaf 0", *(f"sum {number}" for number in range(5)))}, ["all"])
