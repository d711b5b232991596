"""Captures: what the pickle of a function contains, and whether that has changed since.

Theory. A function that can be imported travels by name: it is written again when that name leads to something else, as
after a reload, or when its code changes. Any other travels by value, with the globals, cells and defaults that it and
all that it reaches use. It is written again when one of these is another object. Where one of them can change without
becoming another object (a list, an instance, a bound method of either), nothing tells, and the function has no capture:
it is written for every call. A capture keeps alive nothing but code and constants
(`scaler_client.payloads.expectations`).

Not noticed: names, docstrings and annotations of functions; the fields that a dataclass declares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple
from weakref import ref

import cloudpickle

from scaler_client.payloads.expectations import (
    IMMUTABLE,
    MISSING,
    Expected,
    MayChangeError,
    contents_of,
    expect,
    hold,
    is_expected,
    parts_of,
    weakly,
)

by_value_modules: Final[Set[str]] = vars(vars(cloudpickle)["cloudpickle"])["_PICKLE_BY_VALUE_MODULES"]
"""The modules that are registered to travel by value. This is the set of cloudpickle itself: its public function copies
the set, which takes longer than all other checks before a call."""
_NO_NAMES: Final[dict[str, Any]] = {}
Unchanged = Callable[[Any], bool]
"""Whether a function is the one that was pickled, and its pickle would be the same now."""
_PASSED_OVER: Final = frozenset({"__annotations__", "__annotations_cache__", "__dataclass_fields__"})
"""Dicts of classes of which no change is noticed."""
_NOT_WRITTEN: Final = frozenset({"__dict__", "__weakref__"})
"""Names of classes that cloudpickle leaves out."""


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


class _Function(NamedTuple):
    """The expected state of a reached function."""

    held: ref[Any]
    code: CodeType
    defaults: object
    plain: bool
    """Whether it has no defaults of keyword-only arguments; those are a namespace."""
    cells: Expected
    names: Expected = ()
    """Its globals, unless another function with the same ones has them."""


class _Namespace(NamedTuple):
    """The expected values of names in a dict, which is an attribute of a function, class or module."""

    held: ref[Any]
    attribute: str
    size: int | None
    """The expected number of names; None if names may be added."""
    names: Expected


class Capture:
    """What a pickle by value holds, or where a dotted name leads, as it was when the function was written."""

    __slots__ = ("_bases", "_functions", "_modules", "_namespaces", "_root")

    def __init__(self, root: Any, walk: _Walk) -> None:
        self._root = ref(root)
        self._functions, self._modules, self._namespaces, self._bases = walk.found()

    def unchanged(self, root: Any) -> bool:
        """Whether this is the capture of `root`, and a pickle of it would hold the same now."""
        if self._root() is not root:
            return False
        for held, code, defaults, plain, cells, names in self._functions:
            fn = held()
            if (
                fn is None
                or fn.__code__ is not code
                or fn.__dict__
                or (plain and fn.__kwdefaults__ is not None)
                or (fn.__defaults__ is not defaults and not is_expected(fn.__defaults__, defaults))
            ):
                return False
            if cells:
                closure = fn.__closure__
                for at, expected in cells:
                    if not is_expected(contents_of(closure[at]), expected):
                        return False
            if names and not hold(fn.__globals__, names):
                return False
        if self._modules and not hold(sys.modules, self._modules):
            return False
        return not self._namespaces or self._namespaces_unchanged()

    def _namespaces_unchanged(self) -> bool:
        for held, attribute, size, names in self._namespaces:
            namespace = getattr(held(), attribute, None)
            if namespace is None or (size is not None and len(namespace) != size) or not hold(namespace, names):
                return False
        return all(is_expected(getattr(held(), "__bases__", None), bases) for held, bases in self._bases)

    @classmethod
    def of(cls, fn: FunctionType) -> Capture | None:
        """What a function that travels by value takes along; None where some of it may change and stay the same."""
        walk = _Walk()
        try:
            walk.enter_all(fn)
        except (MayChangeError, RecursionError):
            return None
        return cls(fn, walk)

    @classmethod
    def of_path(cls, fn: Any) -> Capture | None:
        """What decides where the dotted name of a function that travels by name leads."""
        walk = _Walk()
        try:
            walk.enter_name(fn)
        except MayChangeError:
            return None
        return cls(fn, walk)


@dataclass(slots=True)
class _NamesReached:
    """Builder of a _Namespace."""

    held: ref[Any]
    attribute: str
    size: int | None = None
    expected: dict[str, object] = field(default_factory=dict)


class _Walk:
    """Goes through all that the pickle of a function holds. Raises MayChangeError where some of it can not be watched.

    It keeps what it has reached, so that no id is used twice meanwhile.
    """

    def __init__(self) -> None:
        self._functions: list[tuple[FunctionType, _Function]] = []
        self._bases: list[tuple[ref[type], object]] = []
        self._reached: dict[int, object] = {}
        self._modules: dict[str, object] = {}
        self._names: dict[int, _NamesReached] = {}

    def found(self) -> tuple[list[_Function], Expected, list[_Namespace], Sequence[tuple[ref[type], object]]]:
        """Functions, modules by name, namespaces, and the bases of classes."""
        functions = []
        for fn, function in self._functions:
            names = self._names.pop(id(fn.__globals__), None)
            functions.append(function._replace(names=tuple(names.expected.items())) if names is not None else function)
        namespaces = [
            _Namespace(names.held, names.attribute, names.size, tuple(names.expected.items()))
            for names in self._names.values()
        ]
        return functions, tuple(self._modules.items()), namespaces, self._bases

    def enter_all(self, root: FunctionType) -> None:
        """The function, and whatever is reached from it."""
        waiting: list[object] = [root]
        while waiting:
            value = waiting.pop()
            if type(value) in IMMUTABLE or value is MISSING or id(value) in self._reached:
                continue
            self._reached[id(value)] = value
            if travels_by_name(value):
                self.enter_name(value)
            elif isinstance(value, ModuleType):
                self._enter_module(value)
            else:
                waiting.extend(self._enter(value))

    def enter_name(self, value: Any) -> None:
        """Each step on the way that the name of a function or class leads."""
        holder: Any = sys.modules[value.__module__]
        self._modules[value.__module__] = expect(holder)
        for part in value.__qualname__.split("."):
            names = getattr(holder, "__dict__", {})
            if part not in names:
                raise MayChangeError
            self._note(holder, "__dict__", part, names[part])
            holder = getattr(holder, part)

    def _note(self, holder: Any, attribute: str, name: str, value: object) -> None:
        """A name in a dict of the holder leads to this value."""
        names = self._names_of(holder, attribute)
        if name not in names.expected:
            names.expected[name] = expect(value)

    def _names_of(self, holder: Any, attribute: str) -> _NamesReached:
        # The functions of a module share their globals; what a class gives is a new proxy each time.
        key = id(holder) if isinstance(holder, type) else id(getattr(holder, attribute))
        found = self._names.get(key)
        if found is None:
            found = self._names[key] = _NamesReached(weakly(holder), attribute)
        return found

    def _enter(self, value: object) -> Iterable[object]:
        """What is reached from a value that travels by value."""
        if (parts := parts_of(value)) is not None:
            return parts
        if type(value) is frozenset:
            return value
        if isinstance(value, FunctionType) and not value.__dict__:
            return self._enter_function(value)
        if isinstance(value, BuiltinFunctionType):
            return (value.__self__,)  # a method of this object, or a function of this module
        if type(value) is type:
            return self._enter_class(value)
        raise MayChangeError

    def _enter_module(self, module: ModuleType) -> None:
        """A module travels by name, or, with contents that may change at any time, by value."""
        found = sys.modules.get(module.__name__)
        self._modules[module.__name__] = expect(found)
        if found is None or _is_registered(module.__name__):
            raise MayChangeError

    def _enter_submodules(self, package: object, names: Sequence[str]) -> None:
        """A function that uses `package.a.b` travels with the modules of these names that were imported by then."""
        if not isinstance(package, ModuleType) or not hasattr(package, "__path__"):
            return
        for name in names:
            submodule = f"{package.__name__}.{name}"
            found = sys.modules.get(submodule, MISSING)
            if found is not MISSING or name not in vars(package):  # or else it is no module
                self._modules[submodule] = expect(found)
                self._enter_submodules(found, names)

    def _enter_function(self, fn: FunctionType) -> Iterator[object]:
        keywords, cells = fn.__kwdefaults__, [contents_of(cell) for cell in fn.__closure__ or ()]
        expected = tuple(enumerate(map(expect, cells)))
        function = _Function(ref(fn), fn.__code__, expect(fn.__defaults__), keywords is None, expected)
        self._functions.append((fn, function))
        if keywords is not None:
            self._names_of(fn, "__kwdefaults__").size = len(keywords)
            for name, value in keywords.items():
                self._note(fn, "__kwdefaults__", name, value)
                yield value
        names = sorted(_names(fn.__code__))
        for name in names:
            value = fn.__globals__.get(name, MISSING)
            self._note(fn, "__globals__", name, value)
            self._enter_submodules(value, names)
            yield value
        for value in cells:
            self._enter_submodules(value, names)
            yield value
        yield fn.__defaults__

    def _enter_class(self, cls: type) -> Iterator[object]:
        items = vars(cls)
        self._names_of(cls, "__dict__").size = len(items)
        self._bases.append((weakly(cls), expect(cls.__bases__)))
        for name, value in items.items():
            if name not in _NOT_WRITTEN and not (name in _PASSED_OVER and isinstance(value, dict)):
                self._note(cls, "__dict__", name, value)
                yield value
        yield cls.__bases__


def watch(fn: Any) -> Unchanged | None:
    """Tells whether a pickle of `fn` would hold the same as now; None where nothing tells."""
    if not travels_by_name(fn):
        capture = Capture.of(fn) if isinstance(fn, FunctionType) else None
        return capture.unchanged if capture is not None else None
    if vars(sys.modules[fn.__module__]).get(fn.__qualname__) is fn:
        return _watch_name(fn)
    return _watch_path(fn)


def _watch_path(fn: Any) -> Unchanged | None:
    """The same for a function within a class: whether its dotted name still leads there."""
    path = Capture.of_path(fn)
    if path is None or not isinstance(fn, FunctionType):
        return path.unchanged if path is not None else None
    if fn.__dict__:
        return None
    leads_there, code, optional = path.unchanged, fn.__code__, _optional(fn)

    def leads_there_and_takes_the_same(fn: Any) -> bool:
        return leads_there(fn) and fn.__code__ is code and _optional(fn) == optional

    return leads_there_and_takes_the_same


def _optional(fn: FunctionType) -> tuple[int, frozenset[str]]:
    """Which arguments may be left out."""
    return len(fn.__defaults__ or ()), frozenset(fn.__kwdefaults__ or ())


def _watch_name(fn: Any) -> Unchanged | None:
    """Whether the name still leads to the function, and its code, by which arguments are checked, is the same.

    This is asked before each call of most functions, hence variables instead of attributes. They are let go with the
    module, whose names may lead to the function.
    """
    module_name, name = fn.__module__, fn.__qualname__
    find_module: Callable[[str], Any] = sys.modules.get
    find: Callable[[str], Any] = vars(sys.modules[module_name]).get
    code = defaults = keywords = None
    if isinstance(fn, FunctionType):
        code, defaults, keywords = fn.__code__, fn.__defaults__, fn.__kwdefaults__

    def let_go(gone: object) -> None:
        nonlocal find, defaults, keywords
        find, defaults, keywords = _NO_NAMES.get, None, None

    try:
        module = ref(sys.modules[module_name], let_go)
    except TypeError:
        return None

    def leads_there(fn: Any) -> bool:
        return find(name) is fn and find_module(module_name) is module()

    def leads_there_and_does_the_same(fn: Any) -> bool:
        if find(name) is not fn or find_module(module_name) is not module():
            return False
        return fn.__code__ is code and fn.__defaults__ is defaults and fn.__kwdefaults__ is keywords

    return leads_there if code is None else leads_there_and_does_the_same


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found
