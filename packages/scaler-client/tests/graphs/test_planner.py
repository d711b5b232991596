"""What a graph means, before anything is sent: the plan and its order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from graphlib import CycleError
from hashlib import blake2b
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler_client.graphs.planner import DataNode, GraphPlan, NodeInput, plan

Graph = dict[Any, Any]


def is_key(value: Any, graph: Mapping[Any, Any]) -> bool:
    try:
        return value in graph
    except TypeError:
        return False


def evaluate(graph: Mapping[Any, Any], key: Hashable, known: dict[Hashable, Any]) -> Any:
    """The value of a node, straight from the rules; `known` are those that were looked at before."""

    def value(argument: Any) -> Any:
        if is_key(argument, graph):
            return evaluate(graph, argument, known)
        if isinstance(argument, list):
            return [value(item) for item in argument]
        if isinstance(argument, dict):
            return {name: value(item) for name, item in argument.items()}
        if type(argument) is tuple and argument and callable(argument[0]):
            return argument[0](*map(value, argument[1:]))
        return argument

    if key not in known:
        node = graph[key]
        called = type(node) is tuple and node and callable(node[0])
        known[key] = node[0](*map(value, node[1:])) if called else node
    return known[key]


def run(found: GraphPlan) -> dict[Hashable, Any]:
    """The requested values, each call run once, in order."""
    results: list[Any] = []

    def filled(argument: Any, needs: tuple[int, ...]) -> Any:
        if isinstance(argument, NodeInput):
            return results[needs[argument.at]]
        if isinstance(argument, DataNode):
            return argument.value
        if type(argument) is list:
            return [filled(item, needs) for item in argument]
        if type(argument) is dict:
            return {name: filled(item, needs) for name, item in argument.items()}
        return argument

    for function, arguments, needs in zip(found.functions, found.arguments, found.needs, strict=True):
        assert all(need < len(results) for need in needs), "a call comes after what it needs"
        results.append(function(*[filled(argument, needs) for argument in arguments]))
    values = {key: node.value for key, node in found.data.items()}
    return {**values, **{key: results[place] for key, place in found.positions.items()}}


def gather(*values: Any) -> Any:
    """What tells these values from all others; short, or a dozen nodes would come to gigabytes."""
    return blake2b(repr(values).encode(), digest_size=8).hexdigest()


NAMES = st.one_of(st.integers(), st.text(max_size=3), st.tuples(st.text(max_size=2), st.integers(0, 9)), st.none())


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, list[Any]]:
    """A graph without cycles, and keys of it."""
    names = draw(st.lists(NAMES, min_size=1, max_size=12, unique=True))
    graph: Graph = {}
    for name in names:
        constants = st.sampled_from([1.5, b"bytes", ("no", "call"), frozenset({9}), -7])
        if graph:
            known = st.sampled_from(list(graph))
            leaf = st.one_of(known, known, constants)
            argument = st.recursive(
                leaf,
                lambda inner: st.one_of(
                    st.lists(inner, max_size=3),
                    st.dictionaries(st.text(max_size=2), inner, max_size=2),
                    st.lists(inner, max_size=2).map(lambda items: (gather, *items)),
                ),
                max_leaves=5,
            )
            call = st.lists(argument, max_size=4).map(lambda items: (gather, *items))
        else:
            call = st.lists(constants, max_size=2).map(lambda items: (gather, *items))
        data = st.sampled_from([0, "text", [1, "x"], gather, (), None])
        graph[name] = draw(st.one_of(call, call, data))
    wanted = draw(st.lists(st.sampled_from(names), max_size=4, unique=True))
    shuffled = draw(st.permutations(names))
    return {name: graph[name] for name in shuffled}, wanted


@given(graphs())
def test_a_plan_gives_what_the_rules_say(case: tuple[Graph, list[Any]]) -> None:
    graph, keys = case
    found, known = plan(graph, keys), dict[Hashable, Any]()
    assert run(found) == {key: evaluate(graph, key, known) for key in keys}
    consumers = [0] * len(found.keys)
    for needs in found.needs:
        assert len(set(needs)) == len(needs)
        for need in needs:
            consumers[need] += 1
    assert found.consumers == consumers
    requested = set(found.positions.values())
    assert all(count or at in requested for at, count in enumerate(consumers)), "nothing is planned for nobody"


def test_the_order_is_depth_first() -> None:
    graph: Graph = {("leaf", i): (gather, i) for i in range(8)}
    for level, width in ((1, 4), (2, 2), (3, 1)):
        below = "leaf" if level == 1 else level - 1
        graph.update({(level, i): (gather, (below, 2 * i), (below, 2 * i + 1)) for i in range(width)})
    found = plan(graph, [(3, 0)])
    held = most = 0
    for needs in found.needs:
        held += 1 - len(needs)
        most = max(most, held)
    assert held == 1 and most == 4, "a subtree is finished before the next one begins"


def test_a_long_chain_needs_no_recursion() -> None:
    graph: Graph = {0: 0, **{i: (gather, i - 1) for i in range(1, 100_001)}}
    found = plan(graph, [100_000])
    assert found.keys == list(range(1, 100_001))


def test_a_cycle_is_named() -> None:
    graph: Graph = {"x": (gather, "a"), "a": (gather, ["b"]), "b": (gather, (gather, "c")), "c": (gather, "a")}
    with pytest.raises(CycleError, match="'a' → 'b' → 'c' → 'a'") as caught:
        plan(graph, ["x"])
    assert caught.value.args[1] == ["a", "b", "c", "a"]
    with pytest.raises(CycleError, match="'self' → 'self'"):
        plan({"self": (gather, "self")}, ["self"])
    assert plan({**graph, "apart": (gather, 1)}, ["apart"]).needs == [()], "a cycle that nobody asks for"


@pytest.mark.parametrize(
    ("graph", "keys", "error", "text"),
    [
        ({"total": 1}, ["totl"], KeyError, "the nearest key is 'total'"),
        ({"total": 1, "x": (gather, "totl")}, ["x"], KeyError, "'x' refers to 'totl'.*nearest key is 'total'"),
        ({"x": (gather, [{"deep": "nowhere"}])}, ["x"], KeyError, "node of its own"),
        ({"x": (gather, (gather, "nowhere"))}, ["x"], KeyError, "'x' refers to 'nowhere'"),
        ({"x": 1}, ["x", "x"], KeyError, "requested twice"),
        ({"x": 1}, "x", TypeError, r"such as \['x'\]"),
    ],
)
def test_what_makes_no_sense(graph: Graph, keys: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        plan(graph, keys)


def deep_list() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


def endless_list() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def endless_dict() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["self"] = [found]
    return found


def endless_call() -> tuple[Any, ...]:
    arguments: list[Any] = []
    arguments += [(gather, arguments), (gather, (gather, arguments))]
    return gather, arguments


@pytest.mark.parametrize("make", [deep_list, endless_list, endless_dict, endless_call])
def test_an_argument_that_cannot_be_searched_names_its_node_and_the_remedy(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"^node 'x' has an argument that contains itself or .* a node of its own$"):
        plan({"x": (gather, make())}, ["x"])
    assert plan({"x": (gather, "data"), "data": [make()]}, ["x"]).keys == ["x"], "data is not searched"


def test_a_document_in_the_place_of_a_key_makes_no_long_message() -> None:
    text = "x" * 50_000_000
    for graph, keys in (({"x" * 300: 1, "a": (gather, text)}, ["a"]), ({"a": 1}, [text])):
        with pytest.raises(KeyError) as caught:
            plan(graph, keys)
        assert len(str(caught.value)) < 500


def test_a_path_leads_to_the_node_that_failed() -> None:
    graph: Graph = {"a": (gather,), "b": (gather, (gather, "a")), "c": (gather, "b"), "d": (gather, "c", "b")}
    found = plan(graph, ["d"])
    places = {key: at for at, key in enumerate(found.keys)}
    everything = range(len(found.keys))
    for failed in ([places["a"]], [places["a"], places["d"]], everything):
        assert found.path(places["d"], found.failure_causes(failed)) == ["d", "c", "b", "a"], (
            "those that share its fate are no end"
        )
    assert found.path(places["d"], found.failure_causes([])) == ["d"]
    assert found.path(places["b"], found.failure_causes([places["d"]])) == ["b"]


class Handler(NamedTuple):
    """A result of a user's, whose first field happens to be callable."""

    fn: Callable[..., object]
    value: int


def test_a_named_tuple_is_data() -> None:
    handler = Handler(len, 1)
    found = plan(
        {"handler": handler, "call": (repr, handler), "consumer": (repr, "handler")}, ["handler", "call", "consumer"]
    )
    assert found.data["handler"].value is handler
    assert [arguments[0] for arguments in found.arguments if type(arguments[0]) is Handler] == [handler]
    assert len(found.functions) == 2
