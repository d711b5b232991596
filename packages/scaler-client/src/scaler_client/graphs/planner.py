"""Graphs: named calls that take each other's results. From a mapping to calls in order; pure, no IO.

A node is a call, `(callable, argument, …)`, or data, which is all else and is not searched. An argument that equals a
key is that node. Lists, dicts (their values) and nested call tuples are searched, too; a nested call becomes a node
without a name. A string that is no key is an error, and any other value a constant.

Calls are ordered (`scaler_client.graphs.ordering`) so that whoever runs them in this order holds few results at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from graphlib import CycleError
from itertools import chain, islice
from reprlib import Repr
from typing import Any, Final

from scaler_client.graphs.ordering import depth_first, heights
from scaler_client.task_context import load_nth_input

_COMPARED = 10_000
"""Keys among which the nearest one is looked for."""
_LONGEST: Final = 200
"""Characters of text and of keys that are compared, or shown in messages: what is longer may be a whole document."""
_NOTHING: Final = object()
_DATA: Final = -1
_NO_KEY: Final = -2
"""In the place of the number of a call, for a node that is data and for what is no node."""
_NAMED = 10
"""Keys that a path or a cycle spells out."""


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _LONGEST
_shown = _SHORT.repr


class NodeInput:
    """Stands in the arguments of a call for the result of the need at this place."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at

    def __reduce__(self) -> tuple[Any, ...]:
        return load_nth_input, (self.at,)


class DataNode:
    """A node that is data, among the arguments of the calls that take it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(slots=True)
class GraphPlan:
    """What some keys of a graph need, and nothing else: calls as columns, in the order in which to run them."""

    keys: list[Hashable] = field(default_factory=list)
    functions: list[Callable[..., Any]] = field(default_factory=list)
    arguments: list[tuple[Any, ...]] = field(default_factory=list)
    """They hold NodeInputs and DataNodes."""
    needs: list[tuple[int, ...]] = field(default_factory=list)
    """The places of the calls whose results each takes."""
    takers: list[int] = field(default_factory=list)
    """How many calls take the result of each."""
    places: dict[Hashable, int] = field(default_factory=dict)
    """Of the requested calls."""
    data: dict[Hashable, DataNode] = field(default_factory=dict)
    """The requested nodes that are data."""
    shapes: dict[int, tuple[NodeInput, ...]] = field(default_factory=dict)
    """The arguments of calls that take so many nodes and nothing else; they share them."""

    def ways(self, failed: Container[int]) -> dict[int, int]:
        """For each call that failed, or depends on one: which of its needs the failure came by, or itself."""
        ways: dict[int, int] = {}
        for place, needs in enumerate(self.needs):
            for need in needs:
                if need in ways:
                    ways[place] = need
                    break
            else:
                if place in failed:
                    ways[place] = place
        return ways

    def path(self, place: int, ways: Mapping[int, int]) -> list[Hashable]:
        """The keys on the way from a call to where its failure came from, itself first; or only itself."""
        keys: dict[Hashable, None] = {self.keys[place]: None}
        while (before := ways.get(place, place)) != place:
            place = before
            keys[self.keys[place]] = None
        return list(keys)


def is_call(node: object) -> bool:
    """Whether a node is `(callable, argument, …)`; everything else, named tuples included, is data."""
    return type(node) is tuple and len(node) > 0 and callable(node[0])


def plan(graph: Mapping[Any, Any], keys: Iterable[Hashable]) -> GraphPlan:
    """What the keys need, in order.

    Raises KeyError for keys that are unknown or asked for twice and for strings among the arguments that are no keys,
    TypeError for `keys` that is a string, graphlib.CycleError for a cycle.
    """
    with gc_paused():
        return _Planner(graph).plan(keys)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Without the garbage collector, which would look at millions of nodes again and again, and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Numbers(dict[Hashable, int]):
    """The number of each call of a graph, given when it is first looked up; _DATA and _NO_KEY for all else."""

    def __init__(self, graph: Mapping[Any, Any]) -> None:
        super().__init__()
        self._find = graph.get
        self.names: list[Hashable] = []
        self.calls: list[tuple[Any, ...]] = []
        self.data: dict[Hashable, DataNode] = {}

    def __missing__(self, key: Hashable) -> int:
        node = self._find(key, _NOTHING)
        if type(node) is tuple and node and callable(node[0]):  # is_call, which takes as long as all else here
            self[key] = number = len(self.calls)
            self.names.append(key)
            self.calls.append(node)
            return number
        if node is _NOTHING:
            return _NO_KEY
        self.data[key] = DataNode(node)
        self[key] = _DATA
        return _DATA

    def add(self, key: Hashable, call: tuple[Any, ...]) -> int:
        """One more call."""
        self.names.append(key)
        self.calls.append(call)
        return len(self.calls) - 1


class _Planner:
    """Calls are numbered as they are come across, and read in that order: what nobody needs is never looked at."""

    def __init__(self, graph: Mapping[Any, Any]) -> None:
        self._graph = graph
        self._numbers = _Numbers(graph)
        self._arguments: list[tuple[Any, ...]] = []
        self._needs: list[Sequence[int]] = []
        self._inputs: list[NodeInput] = []
        self._shapes: dict[int, tuple[NodeInput, ...]] = {}

    def plan(self, keys: Iterable[Hashable]) -> GraphPlan:
        if isinstance(keys, str | bytes):
            raise TypeError(f"keys={keys!r}: a list of keys is expected, such as [{keys!r}]")
        wanted: dict[Hashable, int] = {}
        for key in keys:
            try:
                hash(key)
            except TypeError as error:
                raise TypeError(f"keys holds {_shown(key)}, which is no key: {error}") from None
            if key in wanted:
                raise KeyError(f"key {_shown(key)} is asked for twice")
            wanted[key] = number = self._numbers[key]
            if number == _NO_KEY:
                raise KeyError(f"key {_shown(key)} is not in the graph{self._nearest(key)}")
        self._read()
        data = {key: self._numbers.data[key] for key, number in wanted.items() if number == _DATA}
        return self._ordered({key: number for key, number in wanted.items() if number >= 0}, data)

    def _read(self) -> None:
        """Replace the needs among the arguments of all calls that are needed, which are found by it."""
        look = self._numbers.__getitem__
        for number, call in enumerate(self._numbers.calls):  # it grows meanwhile
            try:
                found: Sequence[int] = tuple(map(look, call[1:]))
            except TypeError:  # something can not be hashed
                found = (_NO_KEY,)
            size = len(found)
            if min(found, default=0) >= 0 and (size < 2 or len(set(found)) == size):
                self._arguments.append(self._shapes.get(size) or self._shape(size))
            else:
                needs: dict[int, int] = {}
                self._arguments.append(tuple([self._argument(number, needs, value) for value in call[1:]]))
                found = tuple(needs)
            self._needs.append(found)

    def _argument(self, taker: int, needs: dict[int, int], value: Any) -> Any:
        try:
            number = self._numbers[value]
        except TypeError:  # it can not be hashed
            number = _NO_KEY
        if number >= 0:
            return self._input(needs.setdefault(number, len(needs)))
        if number == _DATA:
            return self._numbers.data[value]
        if isinstance(value, str):
            remedy = "; text that is no key goes into a node of its own"
            where = f"node {_shown(self._numbers.names[taker])} takes {_shown(value)}"
            raise KeyError(f"{where}, which is not in the graph{self._nearest(value)}{remedy}")
        if type(value) is list:
            return [self._argument(taker, needs, item) for item in value]
        if type(value) is dict:
            return {name: self._argument(taker, needs, item) for name, item in value.items()}
        if is_call(value):
            return self._input(needs.setdefault(self._numbers.add(self._numbers.names[taker], value), len(needs)))
        return value

    def _shape(self, size: int) -> tuple[NodeInput, ...]:
        self._shapes[size] = shape = tuple([self._input(at) for at in range(size)])
        return shape

    def _input(self, at: int) -> NodeInput:
        while at >= len(self._inputs):
            self._inputs.append(NodeInput(len(self._inputs)))
        return self._inputs[at]

    def _ordered(self, wanted: dict[Hashable, int], data: dict[Hashable, DataNode]) -> GraphPlan:
        numbers, needs = list(wanted.values()), self._needs
        try:
            order = depth_first(needs, numbers, heights(needs, numbers))
        except CycleError as error:
            keys = list(dict.fromkeys(self._numbers.names[number] for number in error.args[1]))
            cycle = [*keys, keys[0]]
            raise CycleError(f"the graph has a cycle: {format_path(cycle)}", cycle) from None
        places = [0] * len(order)
        for place, number in enumerate(order):
            places[number] = place
        place_of, calls = places.__getitem__, self._numbers.calls
        plan = GraphPlan(
            [self._numbers.names[number] for number in order],
            [calls[number][0] for number in order],
            [self._arguments[number] for number in order],
            [tuple(map(place_of, needs[number])) for number in order],
            [0] * len(order),
            {key: places[number] for key, number in wanted.items()},
            data,
            self._shapes,
        )
        takers = plan.takers
        for need in chain.from_iterable(plan.needs):
            takers[need] += 1
        return plan

    def _nearest(self, key: Hashable) -> str:
        import difflib

        if not isinstance(key, str) or len(key) > _LONGEST:
            return ""
        names = [name for name in islice(self._graph, _COMPARED) if isinstance(name, str) and len(name) <= _LONGEST]
        found = difflib.get_close_matches(key, names, 1)
        return f"; the nearest key is {found[0]!r}" if found else ""


def format_path(keys: list[Hashable]) -> str:
    """Keys one after the other, the middle of many left out."""
    words = [_shown(key) for key in keys]
    if len(words) > _NAMED:
        half: Final = _NAMED // 2
        words[half:-half] = [f"… {len(words) - 2 * half} more …"]
    return " → ".join(words)
