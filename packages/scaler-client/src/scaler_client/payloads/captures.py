"""Captures: what the pickle of a function contains, and whether that has changed since.

Theory. A function that can be imported is pickled *by name*: again when the name refers to another object, as after a
reload, or when the code has changed. Any other function is pickled *by value*, with the globals, cells and defaults
used by it and by the functions and classes that it reaches: again when one of these is another object. A list, an
instance, or a bound method of one can change and stay the same object, so that a change cannot be detected. A function
that reaches one of those has no capture, and is pickled for every call. A capture keeps nothing alive but code and
constants (`scaler_client.payloads.expectations`).

Changes that are not detected: names, docstrings and annotations of functions; the fields that a dataclass declares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import field
from functools import lru_cache
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
from scaler_protocol.lazy_dataclass import dataclass

by_value_modules: Final[Set[str]] = vars(vars(cloudpickle)["cloudpickle"])["_PICKLE_BY_VALUE_MODULES"]
"""The modules whose contents are registered to be pickled by value. This is cloudpickle's own set: its public function
copies the set, which takes longer than all other checks before a call."""
CACHED_FUNCTION: Final[Any] = type(lru_cache(len))
"""The type of functions with the decorator `functools.cache` or `lru_cache`."""
CACHE_ATTRIBUTES: Final = vars(lru_cache(lambda: None)).keys()
"""The attributes that the decorator sets."""
_NAMED: Final = (FunctionType, BuiltinFunctionType, CACHED_FUNCTION, type)
_NO_NAMES: Final[dict[str, Any]] = {}
Unchanged = Callable[[Any], bool]
"""Whether a function is the pickled one and its pickle would be the same now."""
_PASSED_OVER: Final = frozenset({"__annotations__", "__annotations_cache__", "__dataclass_fields__"})
"""Dicts of classes in which changes are not detected."""
_NOT_WRITTEN: Final = frozenset({"__dict__", "__weakref__"})
"""Attributes of classes that cloudpickle leaves out."""


def is_pickled_by_name(fn: Any) -> bool:
    """Whether the pickle of a function or class is its module and name."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not isinstance(fn, _NAMED) or module in (None, "__main__", "__mp_main__"):
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

    function: ref[Any]
    code: CodeType
    defaults: object
    plain: bool
    """Whether it has no defaults of keyword-only arguments; if it has, they are a _Namespace."""
    cells: Expected
    names: Expected = ()
    """Its globals, unless they are recorded with another function of the same module."""


class _Namespace(NamedTuple):
    """The expected values of names in a dict, which is an attribute of a function, class or module, its owner."""

    owner: ref[Any]
    attribute: str
    size: int | None
    """The expected number of names; None if names may be added."""
    names: Expected


class Capture:
    """The contents of a pickle by value, or the object of a dotted name, at the time when the function was pickled."""

    __slots__ = ("_bases", "_functions", "_modules", "_namespaces", "_root")

    def __init__(self, root: Any, walk: _Walk) -> None:
        self._root = ref(root)
        self._functions, self._modules, self._namespaces, self._bases = walk.found()

    def unchanged(self, root: Any) -> bool:
        """Whether this is the capture of `root` and a pickle of it would contain the same now."""
        if self._root() is not root:
            return False
        for function, code, defaults, plain, cells, names in self._functions:
            fn = function()
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
        for owner, attribute, size, names in self._namespaces:
            namespace = getattr(owner(), attribute, None)
            if namespace is None or (size is not None and len(namespace) != size) or not hold(namespace, names):
                return False
        return all(is_expected(getattr(cls(), "__bases__", None), bases) for cls, bases in self._bases)

    @classmethod
    def of(cls, fn: Any) -> Capture | None:
        """The capture of a function that is pickled by value; None if changes of a part of it cannot be detected."""
        walk = _Walk()
        try:
            walk.enter_all(fn)
        except (MayChangeError, RecursionError):
            return None
        return cls(fn, walk)

    @classmethod
    def of_path(cls, fn: Any) -> Capture | None:
        """The capture of the objects on the path of a function's dotted name; None if they cannot be watched."""
        walk = _Walk()
        try:
            walk.enter_name(fn)
        except MayChangeError:
            return None
        return cls(fn, walk)


@dataclass(slots=True)
class _NamesReached:
    """Builder of a _Namespace."""

    owner: ref[Any]
    attribute: str
    size: int | None = None
    expected: dict[str, object] = field(default_factory=dict)


class _Walk:
    """Visits all that the pickle of a function contains. Raises MayChangeError if some of it cannot be watched.

    It keeps visited objects alive, because it tells them apart by their ids.
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
            _Namespace(names.owner, names.attribute, names.size, tuple(names.expected.items()))
            for names in self._names.values()
        ]
        return functions, tuple(self._modules.items()), namespaces, self._bases

    def enter_all(self, root: object) -> None:
        """Visit a function and all that it reaches."""
        waiting: list[object] = [root]
        while waiting:
            value = waiting.pop()
            if type(value) in IMMUTABLE or value is MISSING or id(value) in self._reached:
                continue
            self._reached[id(value)] = value
            if is_pickled_by_name(value):
                self.enter_name(value)
            elif isinstance(value, ModuleType):
                self._enter_module(value)
            else:
                waiting.extend(self._enter(value))

    def enter_name(self, value: Any) -> None:
        """Visit each object that the dotted name of a function or class passes through."""
        holder: Any = sys.modules[value.__module__]
        self._modules[value.__module__] = expect(holder)
        for part in value.__qualname__.split("."):
            names = getattr(holder, "__dict__", {})
            if part not in names:
                raise MayChangeError
            self._note(holder, "__dict__", part, names[part])
            holder = getattr(holder, part)

    def _note(self, holder: Any, attribute: str, name: str, value: object) -> None:
        """Expect this value for a name in a dict of the holder."""
        names = self._names_of(holder, attribute)
        if name not in names.expected:
            names.expected[name] = expect(value)

    def _names_of(self, holder: Any, attribute: str) -> _NamesReached:
        # Functions of one module share their globals, so the dict is the key; `__dict__` of a class is a new proxy
        # at each access, so there the class is.
        key = id(holder) if isinstance(holder, type) else id(getattr(holder, attribute))
        found = self._names.get(key)
        if found is None:
            found = self._names[key] = _NamesReached(weakly(holder), attribute)
        return found

    def _enter(self, value: object) -> Iterable[object]:
        """The objects reached from one that is pickled by value."""
        if (parts := parts_of(value)) is not None:
            return parts
        if type(value) is frozenset:
            return value
        if isinstance(value, FunctionType) and not value.__dict__:
            return self._enter_function(value)
        if type(value) is CACHED_FUNCTION and vars(value).keys() == CACHE_ATTRIBUTES:
            return (vars(value)["__wrapped__"],)
        if isinstance(value, BuiltinFunctionType):
            return (value.__self__,)  # a method of this object, or a function of this module
        if type(value) is type:
            return self._enter_class(value)
        raise MayChangeError

    def _enter_module(self, module: ModuleType) -> None:
        """A module is pickled by name, or, if it is registered for that, by value, so that it cannot be watched."""
        found = sys.modules.get(module.__name__)
        self._modules[module.__name__] = expect(found)
        if found is None or _is_registered(module.__name__):
            raise MayChangeError

    def _enter_submodules(self, package: object, names: Sequence[str]) -> None:
        """A function that uses `package.a.b` is pickled with the imported modules of these names."""
        if not isinstance(package, ModuleType) or not hasattr(package, "__path__"):
            return
        for name in names:
            submodule = f"{package.__name__}.{name}"
            found = sys.modules.get(submodule, MISSING)
            if found is not MISSING or name not in vars(package):  # otherwise it is another attribute
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
    """A test of whether a pickle of `fn` would contain the same later as now; None if changes cannot be detected."""
    if not is_pickled_by_name(fn):
        capture = Capture.of(fn) if isinstance(fn, FunctionType | CACHED_FUNCTION) else None
        return capture.unchanged if capture is not None else None
    if vars(sys.modules[fn.__module__]).get(fn.__qualname__) is fn:
        return _watch_name(fn)
    return _watch_path(fn)


def _watch_path(fn: Any) -> Unchanged | None:
    """The test for a function within a class: whether its dotted name still refers to it."""
    path = Capture.of_path(fn)
    if path is None or not isinstance(fn, FunctionType):
        return path.unchanged if path is not None else None
    if fn.__dict__:
        return None
    refers_to_it, code, optional = path.unchanged, fn.__code__, _optional(fn)

    def refers_to_it_with_the_same_parameters(fn: Any) -> bool:
        return refers_to_it(fn) and fn.__code__ is code and _optional(fn) == optional

    return refers_to_it_with_the_same_parameters


def _optional(fn: FunctionType) -> tuple[int, frozenset[str]]:
    """The number of optional positional parameters, and the names of optional keyword-only ones."""
    return len(fn.__defaults__ or ()), frozenset(fn.__kwdefaults__ or ())


def _watch_name(fn: Any) -> Unchanged | None:
    """The test for most functions: whether the name still refers to it, and its code and defaults are the same.

    It runs before each call, hence variables instead of attributes. They are dropped with the module, because they
    may refer to the function.
    """
    module_name, name = fn.__module__, fn.__qualname__
    find_module: Callable[[str], Any] = sys.modules.get
    find: Callable[[str], Any] = vars(sys.modules[module_name]).get
    code = defaults = keywords = None
    if isinstance(fn, FunctionType):
        code, defaults, keywords = fn.__code__, fn.__defaults__, fn.__kwdefaults__

    def drop(gone: object) -> None:
        nonlocal find, defaults, keywords
        find, defaults, keywords = _NO_NAMES.get, None, None

    try:
        module = ref(sys.modules[module_name], drop)
    except TypeError:
        return None

    def refers_to_it(fn: Any) -> bool:
        return find(name) is fn and find_module(module_name) is module()

    def refers_to_it_unchanged(fn: Any) -> bool:
        if find(name) is not fn or find_module(module_name) is not module():
            return False
        return fn.__code__ is code and fn.__defaults__ is defaults and fn.__kwdefaults__ is keywords

    return refers_to_it if code is None else refers_to_it_unchanged


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found
