"""What a function that travels by value takes along, and whether that is still what it was."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final

import cloudpickle

_list_registered: Callable[[], set[str]] = vars(cloudpickle)["list_registry_pickle_by_value"]
_MISSING: Final = object()
_ROOT: Final = object()
"""In place of the function whose capture it is."""
_IMMUTABLE: Final = frozenset({int, float, complex, str, bytes, bool, type(None), type(...), range})
_UNCHANGING: Final = (
    BuiltinFunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)


def travels_by_name(fn: Any) -> bool:
    """Whether the pickle of a function or class is its module and name, so that nothing about it can change."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not isinstance(fn, FunctionType | BuiltinFunctionType | type) or module in (None, "__main__", "__mp_main__"):
        return False
    found: Any = sys.modules.get(module)
    parts = str(module).split(".")
    by_value = _list_registered()
    if any(".".join(parts[:size]) in by_value for size in range(1, len(parts) + 1)):
        return False
    for part in str(name).split("."):
        found = getattr(found, part, None)
    return found is fn


class Capture:
    """The objects that a pickle made by value holds copies of: globals, closure cells, defaults, of all it reaches.

    The function itself is not kept alive.
    """

    __slots__ = ("_cells", "_functions", "_names", "_sizes")

    def __init__(self) -> None:
        self._names: list[tuple[Mapping[str, Any], str, object]] = []
        self._cells: list[tuple[CellType, object]] = []
        self._functions: list[tuple[FunctionType | None, CodeType, object, object]] = []
        self._sizes: list[tuple[Mapping[str, Any], int]] = []

    def unchanged(self, root: FunctionType) -> bool:
        """Whether a pickle of `root`, whose capture this is, would hold the same now."""
        for names, name, value in self._names:
            if names.get(name, _MISSING) is not (root if value is _ROOT else value):
                return False
        for cell, value in self._cells:
            if _contents(cell) is not (root if value is _ROOT else value):
                return False
        for reached, code, defaults, keywords in self._functions:
            fn = reached or root
            if fn.__code__ is not code or fn.__defaults__ is not defaults or fn.__kwdefaults__ is not keywords:
                return False
        return all(len(names) == size for names, size in self._sizes)

    @classmethod
    def of(cls, fn: FunctionType) -> Capture | None:
        """What `fn` takes along; None where some of it may change without becoming another object."""
        capture = cls()
        return capture if capture._walk(fn) else None

    def _walk(self, root: FunctionType) -> bool:
        seen: set[int] = set()
        reached: list[object] = [root]
        while reached:
            value = reached.pop()
            kind = type(value)
            if kind in _IMMUTABLE or value is _MISSING or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, _UNCHANGING) or travels_by_name(value):
                continue
            if (isinstance(value, tuple) and kind is tuple) or (isinstance(value, frozenset) and kind is frozenset):
                reached.extend(value)
            elif isinstance(value, FunctionType):
                reached.extend(self._enter_function(value, root))
            elif isinstance(value, staticmethod | classmethod):
                reached.append(value.__func__)
            elif isinstance(value, property):
                reached += (value.fget, value.fset, value.fdel)
            elif isinstance(value, type) and kind is type:
                reached.extend(self._enter_class(value))
            else:
                return False
        return True

    def _enter_function(self, fn: FunctionType, root: FunctionType) -> Iterator[object]:
        self._functions.append((None if fn is root else fn, fn.__code__, fn.__defaults__, fn.__kwdefaults__))
        for name in sorted(_names(fn.__code__)):
            value = fn.__globals__.get(name, _MISSING)
            self._names.append((fn.__globals__, name, _ROOT if value is root else value))
            yield value
        for cell in fn.__closure__ or ():
            value = _contents(cell)
            self._cells.append((cell, _ROOT if value is root else value))
            yield value
        yield fn.__defaults__
        yield from (fn.__kwdefaults__ or {}).values()
        if fn.__dict__:
            yield fn.__dict__  # anything at all: not steady

    def _enter_class(self, cls: type) -> Iterator[object]:
        items = vars(cls)
        self._sizes.append((items, len(items)))
        for name, value in items.items():
            self._names.append((items, name, value))
            if not (name.startswith("__") and isinstance(value, dict)):  # annotations, fields of a dataclass
                yield value
        yield cls.__bases__


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _contents(cell: CellType) -> object:
    try:
        contents: object = cell.cell_contents
    except ValueError:
        return _MISSING
    return contents
