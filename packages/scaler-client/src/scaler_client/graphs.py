"""Graphs: named calls that take each other's results. From a mapping to calls in order; pure, no IO.

A node is a call, `(callable, argument, …)`, or data, which is all else and is not searched. An argument that equals a
key is that node. Lists, dicts (their values) and nested call tuples are searched, too; a nested call becomes a node
without a name. A string that is no key is an error, and any other value a constant.

Calls are ordered depth first, each after what it needs: whoever runs them in this order holds few results at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from scaler_client.task_context import load_nth_input

_COMPARED = 10_000
"""Keys among which the nearest one is looked for."""
_NOTHING: Final = object()
_FOUND: Final = -1
_OPEN: Final = -2
"""Places of calls that are not in the plan: not looked at yet, and on the way from a requested one."""
_NAMED = 10
"""Keys that a path or a cycle spells out."""


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


class _Node:
    """A call, from when it is found on."""

    __slots__ = ("arguments", "call", "key", "left", "needs", "place")

    def __init__(self, key: Hashable, call: tuple[Any, ...]) -> None:
        self.key, self.call, self.place = key, call, _FOUND
        self.arguments: tuple[Any, ...] = ()
        self.needs: dict[_Node, int] = {}
        self.left: Iterator[_Node] = iter(())


class PlannedCall(NamedTuple):
    """One call: `arguments` hold NodeInputs and DataNodes, `needs` the places of the calls whose results it takes."""

    key: Hashable
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    needs: tuple[int, ...]


@dataclass(slots=True)
class GraphPlan:
    """What some keys of a graph need, and nothing else."""

    calls: list[PlannedCall] = field(default_factory=list)
    takers: list[int] = field(default_factory=list)
    """How many calls take the result of each."""
    places: dict[Hashable, int] = field(default_factory=dict)
    """Of the requested calls."""
    data: dict[Hashable, DataNode] = field(default_factory=dict)
    """The requested nodes that are data."""

    def path(self, place: int, failed: Iterable[int]) -> list[Hashable]:
        """The keys on a way from a call to one of the `failed` that it depends on, itself first; or only itself."""
        targets, seen = set(failed), {place}
        way = [(place, iter(self.calls[place].needs))]
        while way:
            if way[-1][0] in targets:
                keys = dict.fromkeys(self.calls[at].key for at, _ in way)
                return list(keys)
            for need in way[-1][1]:
                if need not in seen:
                    seen.add(need)
                    way.append((need, iter(self.calls[need].needs)))
                    break
            else:
                way.pop()
        return [self.calls[place].key]


def is_call(node: object) -> bool:
    """Whether a node is `(callable, argument, …)`; everything else is data."""
    return isinstance(node, tuple) and len(node) > 0 and callable(node[0])


def plan(graph: Mapping[Any, Any], keys: Iterable[Hashable]) -> GraphPlan:
    """What the keys need, in order.

    Raises KeyError for keys that are unknown or asked for twice and for strings among the arguments that are no keys,
    TypeError for `keys` that is a string, graphlib.CycleError for a cycle.
    """
    with uncollected():
        return _Planner(graph).plan(keys)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector, which would look at millions of nodes again and again, and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Planner:
    def __init__(self, graph: Mapping[Any, Any]) -> None:
        self._graph = graph
        self._nodes: dict[Hashable, _Node | DataNode] = {}
        self._inputs: list[NodeInput] = []
        self._calls: list[PlannedCall] = []

    def plan(self, keys: Iterable[Hashable]) -> GraphPlan:
        if isinstance(keys, str | bytes):
            raise TypeError(f"keys={keys!r}: a list of keys is expected, such as [{keys!r}]")
        wanted: dict[Hashable, _Node | DataNode] = {}
        for key in keys:
            if key in wanted:
                raise KeyError(f"key {key!r} is asked for twice")
            node = self._find(key)
            if node is None:
                raise KeyError(f"key {key!r} is not in the graph{self._nearest(key)}")
            wanted[key] = node
        plan = GraphPlan(self._calls)
        for key, node in wanted.items():
            if isinstance(node, _Node):
                self._add(node)
                plan.places[key] = node.place
            else:
                plan.data[key] = node
        plan.takers = [0] * len(plan.calls)
        for call in plan.calls:
            for need in call.needs:
                plan.takers[need] += 1
        return plan

    def _find(self, key: Hashable) -> _Node | DataNode | None:
        """The node of a key; raises TypeError for what can not be hashed."""
        node = self._nodes.get(key)
        if node is None and (value := self._graph.get(key, _NOTHING)) is not _NOTHING:
            node = self._nodes[key] = _Node(key, value) if is_call(value) else DataNode(value)
        return node

    def _add(self, node: _Node) -> None:
        """Append a call after all that it needs; no recursion, for chains may be long."""
        if node.place >= 0:
            return
        calls, way = self._calls, [node]
        self._read(node)
        while way:
            node = way[-1]
            for need in node.left:
                if need.place == _FOUND:
                    self._read(need)
                    way.append(need)
                    break
                if need.place == _OPEN:
                    raise _cycle(way[way.index(need) :])
            else:
                way.pop()
                node.place = len(calls)
                needs = tuple([need.place for need in node.needs])
                calls.append(PlannedCall(node.key, node.call[0], node.arguments, needs))

    def _read(self, node: _Node) -> None:
        """Replace the needs among the arguments of a call."""
        node.place = _OPEN
        node.arguments = tuple([self._argument(node, value) for value in node.call[1:]])
        node.left = iter(node.needs)

    def _argument(self, taker: _Node, value: Any) -> Any:
        try:
            node = self._nodes.get(value) or self._find(value)
        except TypeError:  # it can not be hashed
            node = None
        if type(node) is _Node:
            at = taker.needs.setdefault(node, len(taker.needs))
            return self._inputs[at] if at < len(self._inputs) else self._input(at)
        if node is not None:
            return node
        if isinstance(value, str):
            remedy = "; text that is no key goes into a node of its own"
            where = f"node {taker.key!r} takes {value!r}"
            raise KeyError(f"{where}, which is not in the graph{self._nearest(value)}{remedy}")
        if type(value) is list:
            return [self._argument(taker, item) for item in value]
        if type(value) is dict:
            return {name: self._argument(taker, item) for name, item in value.items()}
        if is_call(value):
            nested = _Node(taker.key, value)
            return self._input(taker.needs.setdefault(nested, len(taker.needs)))
        return value

    def _input(self, at: int) -> NodeInput:
        while at >= len(self._inputs):
            self._inputs.append(NodeInput(len(self._inputs)))
        return self._inputs[at]

    def _nearest(self, key: Hashable) -> str:
        import difflib

        names = [name for name in islice(self._graph, _COMPARED) if isinstance(name, str)]
        found = difflib.get_close_matches(key, names, 1) if isinstance(key, str) else []
        return f"; the nearest key is {found[0]!r}" if found else ""


def _cycle(way: list[_Node]) -> Exception:
    from graphlib import CycleError

    keys = list(dict.fromkeys(node.key for node in way))
    cycle = [*keys, keys[0]]
    return CycleError(f"the graph has a cycle: {spell(cycle)}", cycle)


def spell(keys: list[Hashable]) -> str:
    """Keys one after the other, the middle of many left out."""
    words = [repr(key) for key in keys]
    if len(words) > _NAMED:
        half: Final = _NAMED // 2
        words[half:-half] = [f"… {len(words) - 2 * half} more …"]
    return " → ".join(words)
