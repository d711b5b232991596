"""Graphs: named calls that take each other's results. From a mapping to calls in order; pure, no IO.

A node is a call, `(callable, argument, …)`, or data, which is all else and is not searched. An argument that equals a
key is that node. Lists, dicts (their values) and nested call tuples are searched, too; a nested call becomes a node
without a name. A string that is no key is an error, and any other value a constant.

Calls are ordered depth first, each after what it needs: whoever runs them in this order holds few results at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from scaler_client.task_context import load_nth_input

_COMPARED = 10_000
"""Keys among which the nearest one is looked for."""
_NOTHING: Final = object()
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


class _NestedCall:
    """The key of a call that stands inside of another one; of the node that it belongs to."""

    __slots__ = ("call", "outer")

    def __init__(self, call: tuple[Any, ...], outer: Hashable) -> None:
        self.call, self.outer = call, outer


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
    return _Planner(graph).plan(keys)


class _Planner:
    def __init__(self, graph: Mapping[Any, Any]) -> None:
        self._graph = graph
        self._data: dict[Hashable, DataNode] = {}
        self._inputs: list[NodeInput] = []
        self._places: dict[Hashable, int] = {}
        self._plan = GraphPlan()

    def plan(self, keys: Iterable[Hashable]) -> GraphPlan:
        if isinstance(keys, str | bytes):
            raise TypeError(f"keys={keys!r}: a list of keys is expected, such as [{keys!r}]")
        wanted: dict[Hashable, None] = {}
        for key in keys:
            if key in wanted:
                raise KeyError(f"key {key!r} is asked for twice")
            if key not in self._graph:
                raise KeyError(f"key {key!r} is not in the graph{self._nearest(key)}")
            wanted[key] = None
        plan = self._plan
        for key in wanted:
            if is_call(self._graph[key]):
                self._add(key)
                plan.places[key] = self._places[key]
            else:
                plan.data[key] = self._datum(key)
        plan.takers = [0] * len(plan.calls)
        for call in plan.calls:
            for need in call.needs:
                plan.takers[need] += 1
        return plan

    def _add(self, key: Hashable) -> None:
        """Append a call after all that it needs; no recursion, for chains may be long."""
        places, calls = self._places, self._plan.calls
        if key in places:
            return
        way: dict[Hashable, tuple[tuple[Any, ...], dict[Hashable, int], Iterator[Hashable]]] = {key: self._read(key)}
        while way:
            key = next(reversed(way))
            arguments, needs, left = way[key]
            for need in left:
                if need in way:
                    raise _cycle(list(way), need)
                if need not in places:
                    way[need] = self._read(need)
                    break
            else:
                del way[key]
                places[key] = len(calls)
                name, call = self._call(key)
                calls.append(PlannedCall(name, call[0], arguments, tuple(map(places.__getitem__, needs))))

    def _read(self, key: Hashable) -> tuple[tuple[Any, ...], dict[Hashable, int], Iterator[Hashable]]:
        """The arguments of a call with its needs replaced, and these."""
        needs: dict[Hashable, int] = {}
        name, call = self._call(key)
        arguments = tuple([self._argument(name, value, needs) for value in call[1:]])
        return arguments, needs, iter(needs)

    def _call(self, key: Hashable) -> tuple[Hashable, tuple[Any, ...]]:
        """A call, and the key that it is known by."""
        return (key.outer, key.call) if isinstance(key, _NestedCall) else (key, self._graph[key])

    def _argument(self, key: Hashable, value: Any, needs: dict[Hashable, int]) -> Any:
        try:
            node = self._graph.get(value, _NOTHING)
        except TypeError:  # it can not be hashed
            node = _NOTHING
        if node is not _NOTHING:
            return self._input(value, needs) if is_call(node) else self._datum(value)
        if isinstance(value, str):
            remedy = "; text that is no key goes into a node of its own"
            raise KeyError(f"node {key!r} takes {value!r}, which is not in the graph{self._nearest(value)}{remedy}")
        if type(value) is list:
            return [self._argument(key, item, needs) for item in value]
        if type(value) is dict:
            return {name: self._argument(key, item, needs) for name, item in value.items()}
        return self._input(_NestedCall(value, key), needs) if is_call(value) else value

    def _input(self, need: Hashable, needs: dict[Hashable, int]) -> NodeInput:
        at = needs.setdefault(need, len(needs))
        while at >= len(self._inputs):
            self._inputs.append(NodeInput(len(self._inputs)))
        return self._inputs[at]

    def _datum(self, key: Hashable) -> DataNode:
        node = self._data.get(key)
        if node is None:
            node = self._data[key] = DataNode(self._graph[key])
        return node

    def _nearest(self, key: Hashable) -> str:
        import difflib

        names = [name for name in islice(self._graph, _COMPARED) if isinstance(name, str)]
        found = difflib.get_close_matches(key, names, 1) if isinstance(key, str) else []
        return f"; the nearest key is {found[0]!r}" if found else ""


def _cycle(way: list[Hashable], again: Hashable) -> Exception:
    from graphlib import CycleError

    keys = [key.outer if isinstance(key, _NestedCall) else key for key in way[way.index(again) :]]
    cycle = [*dict.fromkeys(keys), keys[0]]
    return CycleError(f"the graph has a cycle: {spell(cycle)}", cycle)


def spell(keys: list[Hashable]) -> str:
    """Keys one after the other, the middle of many left out."""
    words = [repr(key) for key in keys]
    if len(words) > _NAMED:
        half: Final = _NAMED // 2
        words[half:-half] = [f"… {len(words) - 2 * half} more …"]
    return " → ".join(words)
