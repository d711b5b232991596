"""Which part of a value cannot be pickled, as the path from the value to it.

Theory. A part is to blame if it cannot be pickled although all its own parts can. Parts are pickled one by one, from
the value downwards, so the search costs a few times what pickling costs; it is done when pickling has failed. A part
that fails because it refers to a value above it, as a child does to its parent, is not to blame.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

from scaler_client.payloads.captures import CACHED_FUNCTION
from scaler_client.payloads.expectations import contents_of
from scaler_protocol.ranges import shown

_TRIES: Final = 20_000
"""How many parts are pickled at most, to see which of them fails."""
_DEPTH: Final = 50
_Step = tuple[str, object]
"""How a part is written behind the value that it is a part of, and the part."""


def fault_in(name: str, value: object, dump: Callable[[Any], object]) -> str:
    """Which part of the value that is called `name` makes `dump` raise: `name -> .layers[3].lock cannot be pickled: …`.

    "" if the value can be dumped.
    """

    def fails(part: object) -> bool:
        try:
            dump(part)
        except Exception:
            return True
        return False

    if not fails(value):
        return ""
    path, culprit = _Search(fails).search(value) or ("", value)
    arrow = " -> " if path and not path.startswith(" ") else ""
    return f"{name}{arrow}{path} cannot be pickled: {shown(culprit)}"


class _Search:
    """The search for the first part that fails although none of its own parts does."""

    def __init__(self, fails: Callable[[object], bool]) -> None:
        self._fails, self._tries = fails, _TRIES
        self._above: dict[int, object] = {}
        """The values on the path, which may be parts of their parts."""

    def search(self, value: object) -> _Step | None:
        """The way from a value that fails to the culprit in it; None if it fails only because of a value above it."""
        if len(self._above) >= _DEPTH:
            return "", value
        self._above[id(value)] = value
        to_blame = True
        for step, part in _parts(value):
            if id(part) in self._above:
                to_blame = False
            elif self._tries > 0 and self._is_bad(part):
                to_blame = False
                if (found := self.search(part)) is not None:
                    return step + found[0], found[1]
        del self._above[id(value)]
        return ("", value) if to_blame else None

    def _is_bad(self, part: object) -> bool:
        self._tries -= 1
        return self._fails(part)


def _parts(value: Any) -> Iterator[_Step]:
    """The parts of a value that its pickle contains."""
    for kind, parts in _PARTS.items():
        if isinstance(value, kind):
            return parts(value)
    return _attributes(value)


def _entries(value: dict[Any, Any]) -> Iterator[_Step]:
    for key, item in value.items():
        yield f"[{shown(key)}]", item
        yield f" -> key {shown(key)}", key


def _items(value: Iterable[object]) -> Iterator[_Step]:
    return ((f"[{at}]", item) for at, item in enumerate(value))


def _elements(value: Iterable[object]) -> Iterator[_Step]:
    return ((f" -> element {shown(item)}", item) for item in value)


def _named(*names: str) -> Callable[[Any], Iterator[_Step]]:
    return lambda value: ((f".{name}", getattr(value, name)) for name in names)


def _of_class(value: type) -> Iterator[_Step]:
    return ((f".{name}", item) for name, item in vars(value).items() if name not in ("__dict__", "__weakref__"))


def _variables(fn: FunctionType) -> Iterator[_Step]:
    code = fn.__code__
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
        yield f" -> {name}", contents_of(cell)
    for name in code.co_names:
        if name in fn.__globals__:
            yield f" -> {name}", fn.__globals__[name]
    yield ".__defaults__", fn.__defaults__
    yield ".__kwdefaults__", fn.__kwdefaults__


def _attributes(value: Any) -> Iterator[_Step]:
    """What `__reduce_ex__` gives as state of an instance; nothing if it fails."""
    try:
        reduced = value.__reduce_ex__(4)
        state = reduced[2] if isinstance(reduced, tuple) and len(reduced) > 2 else None
    except Exception:
        return
    for part in state if isinstance(state, tuple) else (state,):  # attributes, slots
        if isinstance(part, dict):
            for name, item in part.items():
                yield f".{name}", item


_PARTS: Final[dict[Any, Callable[[Any], Iterator[_Step]]]] = {
    dict: _entries,
    (list, tuple, deque): _items,
    (set, frozenset): _elements,
    FunctionType: _variables,
    CACHED_FUNCTION: _named("__wrapped__"),
    MethodType: _named("__self__"),
    partial: _named("func", "args", "keywords"),
    type: _of_class,
}
