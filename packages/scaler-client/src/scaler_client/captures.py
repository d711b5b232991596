"""What the pickle of a function holds, and whether that is still so.

Theory. A function that can be imported travels by name: it is written again when that name leads to something else, as
after a reload, or when its code changes. Any other travels by value, with the globals, cells and defaults that it and
all it reaches use. It is written again when one of these is another object. Where one of them can change without
becoming another object (a list, an instance, a bound method of either), nothing tells, and the function has no capture:
it is written for every call.

Not noticed: names, docstrings and annotations of functions; the fields that a dataclass declares.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
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
from typing import Any, Final, NamedTuple

import cloudpickle

by_value_modules: Final[Set[str]] = vars(vars(cloudpickle)["cloudpickle"])["_PICKLE_BY_VALUE_MODULES"]
"""The modules that are registered to travel by value, at any time: to have `list_registry_pickle_by_value` copy them
takes longer than all else that is asked of a function before a call."""
_MISSING: Final = object()
_ROOT: Final = object()
"""In place of the function whose capture it is."""
_IMMUTABLE: Final = frozenset({int, float, complex, str, bytes, bool, type(None), type(...), range})
_DESCRIPTORS: Final = (GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType)
Unchanged = Callable[[Any], bool]
"""Whether a function is one that was written, and would be written as it was then."""
_PASSED_OVER: Final = frozenset({"__annotations__", "__annotations_cache__", "__dataclass_fields__"})
"""Dicts of classes of which no change is noticed."""


def travels_by_name(fn: Any) -> bool:
    """Whether the pickle of a function or class is its module and name."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not isinstance(fn, FunctionType | BuiltinFunctionType | type) or module in (None, "__main__", "__mp_main__"):
        return False
    found: Any = sys.modules.get(module)
    if _is_registered(str(module)):
        return False
    for part in str(name).split("."):
        found = getattr(found, part, None)
    return found is fn


def _is_registered(module: str) -> bool:
    if not by_value_modules:
        return False
    parts = module.split(".")
    return any(".".join(parts[:size]) in by_value_modules for size in range(1, len(parts) + 1))


class _Code(NamedTuple):
    """What of a function decides what it does, and what arguments it takes."""

    code: CodeType
    defaults: tuple[Any, ...] | None
    keywords: dict[str, Any] | None

    @classmethod
    def of(cls, fn: FunctionType) -> _Code:
        return cls(fn.__code__, fn.__defaults__, fn.__kwdefaults__)


class Capture:
    """What a pickle by value holds, as it was when the function was written. The function itself is not kept alive."""

    __slots__ = ("_bases", "_cells", "_codes", "_noted", "_root", "_values", "_watched")

    def __init__(self, root: Any) -> None:
        self._root = weakref.ref(root)
        self._values: list[tuple[Mapping[str, Any], str, object]] = []
        self._cells: list[tuple[CellType, object]] = []
        self._codes: list[tuple[FunctionType | None, _Code]] = []
        self._watched: list[tuple[Mapping[str, Any], int]] = []
        """Namespaces in which nothing may be added."""
        self._bases: list[tuple[type, object]] = []
        self._noted: set[tuple[int, str]] = set()

    def unchanged(self, root: Any) -> bool:
        """Whether this is the capture of `root`, and a pickle of it would hold the same now."""
        if self._root() is not root:
            return False
        for names, name, value in self._values:
            found = names.get(name, _MISSING)
            if found is not value and (value is not _ROOT or found is not root):
                return False
        for reached, (code, defaults, keywords) in self._codes:
            fn: Any = reached or root
            if fn.__code__ is not code or fn.__defaults__ is not defaults or fn.__kwdefaults__ is not keywords:
                return False
            if fn.__dict__:
                return False
        for cell, value in self._cells:
            if _contents(cell) is not (root if value is _ROOT else value):
                return False
        return not self._watched or self._namespaces_unchanged()

    def _namespaces_unchanged(self) -> bool:
        if any(cls.__bases__ is not bases for cls, bases in self._bases):
            return False
        return all(len(names) == size for names, size in self._watched)

    @classmethod
    def of(cls, fn: FunctionType) -> Capture | None:
        """What a function that travels by value takes along; None where some of it may change and stay the same."""
        capture = cls(fn)
        whole = capture._walk(fn)
        capture._noted.clear()
        return capture if whole else None

    @classmethod
    def of_path(cls, fn: Any) -> Capture | None:
        """What decides where the dotted name of a function that travels by name leads."""
        capture = cls(fn)
        if isinstance(fn, FunctionType):
            if fn.__dict__:
                return None
            capture._codes.append((None, _Code.of(fn)))
        return capture if capture._enter_name(fn, fn) else None

    def _walk(self, root: FunctionType) -> bool:
        seen: set[int] = set()
        reached: list[object] = [root]
        while reached:
            value = reached.pop()
            if type(value) in _IMMUTABLE or value is _MISSING or id(value) in seen:
                continue
            seen.add(id(value))
            if travels_by_name(value):
                if not self._enter_name(value, root):
                    return False
            elif isinstance(value, ModuleType):
                if not self._enter_module(value):
                    return False
            else:
                within = self._enter(value, root)
                if within is None:
                    return False
                reached.extend(within)
        return True

    def _enter(self, value: object, root: FunctionType) -> Iterator[object] | None:
        """What is reached from a value that travels by value; None where that may change."""
        kind = type(value)
        if kind is tuple or kind is frozenset:
            return iter(value)  # type: ignore[call-overload,no-any-return]
        if isinstance(value, FunctionType):
            return None if value.__dict__ else self._enter_function(value, root)
        if isinstance(value, BuiltinFunctionType):
            return iter((value.__self__,))  # a method of this object, or a function of this module
        if isinstance(value, _DESCRIPTORS):
            return iter((value.__objclass__,))
        if isinstance(value, staticmethod | classmethod):
            return iter((value.__func__,))
        if isinstance(value, property):
            return iter((value.fget, value.fset, value.fdel))
        if isinstance(value, type) and kind is type:
            return self._enter_class(value)
        return None

    def _note(self, names: Mapping[str, Any], owner: object, name: str, value: object) -> None:
        """A name of a namespace, which is its owner's, leads to this value."""
        if (id(owner), name) not in self._noted:
            self._noted.add((id(owner), name))
            self._values.append((names, name, value))

    def _enter_name(self, value: Any, root: object) -> bool:
        """Each step on the way that a name leads; False where one can not be watched."""
        module = sys.modules[value.__module__]
        self._note(sys.modules, sys.modules, value.__module__, module)
        holder: Any = module
        for part in value.__qualname__.split("."):
            names = getattr(holder, "__dict__", {})
            if part not in names:
                return False
            self._note(names, holder, part, _ROOT if names[part] is root else names[part])
            holder = getattr(holder, part)
        return True

    def _enter_module(self, module: ModuleType) -> bool:
        """A module travels by name, or, with contents that may change at any time, by value."""
        found = sys.modules.get(module.__name__)
        self._note(sys.modules, sys.modules, module.__name__, found)
        return found is not None and not _is_registered(module.__name__)

    def _enter_submodules(self, package: ModuleType, names: Sequence[str]) -> None:
        """A function that uses `package.name` travels with that submodule if it was imported by then."""
        for name in names:
            if name not in vars(package):
                submodule = f"{package.__name__}.{name}"
                self._note(sys.modules, sys.modules, submodule, sys.modules.get(submodule, _MISSING))

    def _enter_function(self, fn: FunctionType, root: FunctionType) -> Iterator[object]:
        self._codes.append((None if fn is root else fn, _Code.of(fn)))
        if keywords := fn.__kwdefaults__:
            self._watched.append((keywords, len(keywords)))
            for name, value in keywords.items():
                self._note(keywords, keywords, name, _ROOT if value is root else value)
                yield value
        names = sorted(_names(fn.__code__))
        for name in names:
            value = fn.__globals__.get(name, _MISSING)
            self._note(fn.__globals__, fn.__globals__, name, _ROOT if value is root else value)
            if isinstance(value, ModuleType) and hasattr(value, "__path__"):
                self._enter_submodules(value, names)
            yield value
        for cell in fn.__closure__ or ():
            value = _contents(cell)
            self._cells.append((cell, _ROOT if value is root else value))
            yield value
        yield fn.__defaults__

    def _enter_class(self, cls: type) -> Iterator[object]:
        items = vars(cls)
        self._watched.append((items, len(items)))
        self._bases.append((cls, cls.__bases__))
        for name, value in items.items():
            self._note(items, cls, name, value)
            if not (name in _PASSED_OVER and isinstance(value, dict)):
                yield value
        yield cls.__bases__


def watch(fn: Any) -> Unchanged | None:
    """Tells whether a pickle of `fn` would hold the same as now; None where nothing tells."""
    if not travels_by_name(fn):
        capture = Capture.of(fn) if isinstance(fn, FunctionType) else None
    elif vars(sys.modules[fn.__module__]).get(fn.__qualname__) is fn:
        return _watch_name(fn)
    else:
        capture = Capture.of_path(fn)
    return capture.unchanged if capture is not None else None


def _watch_name(fn: Any) -> Unchanged:
    """Whether the name still leads to the function, and its code, by which arguments are checked, is the same.

    This is asked before each call of most functions, hence variables instead of attributes.
    """
    module_name, name = fn.__module__, fn.__qualname__
    module = sys.modules[module_name]
    find_module: Callable[[str], Any] = sys.modules.get
    find: Callable[[str], Any] = vars(module).get

    def leads_there(fn: Any) -> bool:
        return find(name) is fn and find_module(module_name) is module

    if not isinstance(fn, FunctionType):
        return leads_there
    code, defaults, keywords = _Code.of(fn)

    def leads_there_and_does_the_same(fn: Any) -> bool:
        if find(name) is not fn or find_module(module_name) is not module:
            return False
        return fn.__code__ is code and fn.__defaults__ is defaults and fn.__kwdefaults__ is keywords

    return leads_there_and_does_the_same


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
