"""Plans graphs: from a mapping of named calls that consume each other's results to calls in order. Pure, no IO.

A node is a call, `(callable, argument, …)`, or data, which is everything else and is not searched. An argument that
equals a key refers to that node. Lists, the values of dicts and nested call tuples are searched; a nested call becomes
a node without a key. A string that is no key is an error, and any other value is a constant.

Calls are ordered (`scaler_client.graphs.ordering`) so that few results are held at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from graphlib import CycleError
from itertools import chain, islice
from reprlib import Repr
from typing import Any, Final

from scaler_client.graphs.ordering import depth_first, heights
from scaler_client.task_context import load_nth_input
from scaler_protocol.lazy_dataclass import dataclass

_COMPARED = 10_000
"""Keys that are compared at most to suggest the nearest one."""
_SHOWN_CHARACTERS: Final = 200
"""Characters of a key that are compared, or shown in an error: a longer one may be a whole document."""
_NOTHING: Final = object()
_DATA: Final = -1
_NO_KEY: Final = -2
"""Instead of the number of a call: the node is data, or there is no such node."""
_SHOWN_KEYS = 10
"""Keys of a path or a cycle that an error shows."""


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHOWN_CHARACTERS
_shown = _SHORT.repr


class NodeInput:
    """Replaces an argument by the result of the dependency with this index."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at

    def __reduce__(self) -> tuple[Any, ...]:
        return load_nth_input, (self.at,)


class DataNode:
    """A data node, as an argument of the calls that consume it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(slots=True)
class GraphPlan:
    """The calls that the requested keys of a graph need, as columns, in the order in which to run them."""

    keys: list[Hashable] = field(default_factory=list)
    functions: list[Callable[..., Any]] = field(default_factory=list)
    arguments: list[tuple[Any, ...]] = field(default_factory=list)
    """With NodeInputs and DataNodes in the place of nodes."""
    needs: list[tuple[int, ...]] = field(default_factory=list)
    """The positions of the dependencies of each call."""
    consumers: list[int] = field(default_factory=list)
    """The number of consumers of each call."""
    positions: dict[Hashable, int] = field(default_factory=dict)
    """The positions of the requested calls."""
    data: dict[Hashable, DataNode] = field(default_factory=dict)
    """The requested data nodes."""
    shapes: dict[int, tuple[NodeInput, ...]] = field(default_factory=dict)
    """Shared arguments of calls whose arguments are nodes only, by their number."""

    def failure_causes(self, failed: Container[int]) -> dict[int, int]:
        """For each call that failed or depends on a failed one: the dependency that caused it, or the call itself."""
        causes: dict[int, int] = {}
        for position, needs in enumerate(self.needs):
            for need in needs:
                if need in causes:
                    causes[position] = need
                    break
            else:
                if position in failed:
                    causes[position] = position
        return causes

    def path(self, position: int, causes: Mapping[int, int]) -> list[Hashable]:
        """The keys of the path from a call to the failed call that caused its failure."""
        keys: dict[Hashable, None] = {self.keys[position]: None}
        while (before := causes.get(position, position)) != position:
            position = before
            keys[self.keys[position]] = None
        return list(keys)


def is_call(node: object) -> bool:
    """Whether a node is a call, `(callable, argument, …)`; everything else, named tuples included, is data."""
    return type(node) is tuple and len(node) > 0 and callable(node[0])


def plan(graph: Mapping[Any, Any], keys: Iterable[Hashable]) -> GraphPlan:
    """The calls that the keys need, in order.

    Raises KeyError for a key that is unknown or requested twice and for a string argument that is no key, TypeError if
    `keys` is a string, graphlib.CycleError for a cycle, ValueError for an argument that contains itself.
    """
    with gc_paused():
        return _Planner(graph).plan(keys)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector, which would traverse millions of nodes repeatedly without finding garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Numbers(dict[Hashable, int]):
    """The number of each call of a graph, assigned at its first lookup; _DATA and _NO_KEY for other keys."""

    def __init__(self, graph: Mapping[Any, Any]) -> None:
        super().__init__()
        self._find = graph.get
        self.names: list[Hashable] = []
        self.calls: list[tuple[Any, ...]] = []
        self.data: dict[Hashable, DataNode] = {}

    def __missing__(self, key: Hashable) -> int:
        node = self._find(key, _NOTHING)
        # is_call, inlined: calling it would double the time of this method.
        if type(node) is tuple and node and callable(node[0]):
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
        """Number a nested call, under the key of the call that contains it."""
        self.names.append(key)
        self.calls.append(call)
        return len(self.calls) - 1


class _Planner:
    """Numbers calls as it reaches them and reads them in that order, so that unneeded nodes are never read."""

    def __init__(self, graph: Mapping[Any, Any]) -> None:
        self._graph = graph
        self._numbers = _Numbers(graph)
        self._arguments: list[tuple[Any, ...]] = []
        self._needs: list[Sequence[int]] = []
        self._inputs: list[NodeInput] = []
        self._shapes: dict[int, tuple[NodeInput, ...]] = {}
        self._around: dict[int, int] = {}
        """By the number of a nested call: that of the call that contains it."""

    def plan(self, keys: Iterable[Hashable]) -> GraphPlan:
        if isinstance(keys, str | bytes):
            raise TypeError(f"keys={keys!r}: a list of keys is expected, such as [{keys!r}]")
        wanted: dict[Hashable, int] = {}
        for key in keys:
            try:
                hash(key)
            except TypeError as error:
                raise TypeError(f"keys contains {_shown(key)}, which is no key: {error}") from None
            if key in wanted:
                raise KeyError(f"key {_shown(key)} is requested twice")
            wanted[key] = number = self._numbers[key]
            if number == _NO_KEY:
                raise KeyError(f"key {_shown(key)} is not in the graph{self._nearest(key)}")
        self._read()
        data = {key: self._numbers.data[key] for key, number in wanted.items() if number == _DATA}
        return self._ordered({key: number for key, number in wanted.items() if number >= 0}, data)

    def _read(self) -> None:
        """Replace nodes among the arguments of all needed calls; this reaches further calls."""
        look = self._numbers.__getitem__
        for number, call in enumerate(self._numbers.calls):  # grows during the loop
            try:
                found: Sequence[int] = tuple(map(look, call[1:]))
            except TypeError:  # an argument is not hashable
                found = (_NO_KEY,)
            size = len(found)
            if min(found, default=0) >= 0 and (size < 2 or len(set(found)) == size):
                self._arguments.append(self._shapes.get(size) or self._shape(size))
            else:
                needs: dict[int, int] = {}
                try:
                    self._arguments.append(tuple([self._argument(number, needs, value) for value in call[1:]]))
                except RecursionError:
                    raise self._too_deep(number) from None
                found = tuple(needs)
            self._needs.append(found)

    def _nested(self, consumer: int, call: tuple[Any, ...]) -> int:
        """The number of a new node for a nested call; raises ValueError if the call contains itself."""
        calls, around = self._numbers.calls, consumer
        while calls[around] is not call:
            if around not in self._around:
                number = self._numbers.add(self._numbers.names[consumer], call)
                self._around[number] = consumer
                return number
            around = self._around[around]
        raise self._too_deep(consumer)

    def _too_deep(self, number: int) -> ValueError:
        where = f"node {_shown(self._numbers.names[number])}"
        problem = "has an argument that contains itself or is nested too deeply to be searched for keys"
        return ValueError(f"{where} {problem}; put the argument into a node of its own")

    def _argument(self, consumer: int, needs: dict[int, int], value: Any) -> Any:
        try:
            number = self._numbers[value]
        except TypeError:  # not hashable
            number = _NO_KEY
        if number >= 0:
            return self._input(needs.setdefault(number, len(needs)))
        if number == _DATA:
            return self._numbers.data[value]
        if isinstance(value, str):
            remedy = "; put text that is no key into a node of its own"
            where = f"node {_shown(self._numbers.names[consumer])} refers to {_shown(value)}"
            raise KeyError(f"{where}, which is not in the graph{self._nearest(value)}{remedy}")
        if type(value) is list:
            return [self._argument(consumer, needs, item) for item in value]
        if type(value) is dict:
            return {name: self._argument(consumer, needs, item) for name, item in value.items()}
        if is_call(value):
            return self._input(needs.setdefault(self._nested(consumer, value), len(needs)))
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
        positions = [0] * len(order)
        for position, number in enumerate(order):
            positions[number] = position
        position_of, calls = positions.__getitem__, self._numbers.calls
        plan = GraphPlan(
            [self._numbers.names[number] for number in order],
            [calls[number][0] for number in order],
            [self._arguments[number] for number in order],
            [tuple(map(position_of, needs[number])) for number in order],
            [0] * len(order),
            {key: positions[number] for key, number in wanted.items()},
            data,
            self._shapes,
        )
        consumers = plan.consumers
        for need in chain.from_iterable(plan.needs):
            consumers[need] += 1
        return plan

    def _nearest(self, key: Hashable) -> str:
        import difflib

        if not isinstance(key, str) or len(key) > _SHOWN_CHARACTERS:
            return ""
        names = [
            name for name in islice(self._graph, _COMPARED) if isinstance(name, str) and len(name) <= _SHOWN_CHARACTERS
        ]
        found = difflib.get_close_matches(key, names, 1)
        return f"; the nearest key is {found[0]!r}" if found else ""


def format_path(keys: list[Hashable]) -> str:
    """A path as text, without the middle of a long one."""
    words = [_shown(key) for key in keys]
    if len(words) > _SHOWN_KEYS:
        half: Final = _SHOWN_KEYS // 2
        words[half:-half] = [f"… {len(words) - 2 * half} more …"]
    return " → ".join(words)
