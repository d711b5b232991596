"""A function that travels by value is written again when, and only when, it would hold something else."""

from __future__ import annotations

import functools
import gc
import math
import pickle
import sys
import weakref
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle
import pytest

from scaler_client.payloads.captures import Capture, is_pickled_by_name, watch
from scaler_client.payloads.serializers import DefaultSerializer


def script(source: str, **scope: Any) -> dict[str, Any]:
    """What a script holds after this source was run."""
    scope = {"__name__": "__main__", **scope}
    exec(source, scope)
    return scope


def capture(fn: FunctionType) -> Capture:
    found = Capture.of(fn)
    assert found is not None
    return found


def test_who_is_pickled_by_name() -> None:
    assert is_pickled_by_name(math.sqrt) and is_pickled_by_name(dict) and is_pickled_by_name(pytest.raises)
    local = lambda: None  # noqa: E731
    assert not is_pickled_by_name(local)
    assert not is_pickled_by_name(script("def f(): pass")["f"])
    assert not is_pickled_by_name("".upper) and not is_pickled_by_name(3)


def test_a_module_registered_by_value_does_not_travel_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = ModuleType("owned"), ModuleType("owned.part")
    exec("def f(): pass", vars(module))
    monkeypatch.setitem(sys.modules, "owned", package)
    monkeypatch.setitem(sys.modules, "owned.part", module)
    assert is_pickled_by_name(module.f)
    cloudpickle.register_pickle_by_value(package)
    try:
        assert not is_pickled_by_name(module.f)
    finally:
        cloudpickle.unregister_pickle_by_value(package)


@pytest.mark.parametrize(
    "change",
    [
        "factor = 20",
        "def helper(x): return -x",
        "del factor",
        "helper.__defaults__ = (5,)",
        "f.__code__ = (lambda x: x).__code__",
        "Kind.size = 8",
        "Kind.extra = 1",
        "Kind.__bases__ = (Other,)",
        "math = None",
        "sys.modules['math'] = Other",
        "f.note = 'later'",
        "helper.note = 'later'",
        "helper.__kwdefaults__['step'] = 2",
        "helper.__kwdefaults__['more'] = 3",
        "helper.__kwdefaults__ = None",
        "helper = None",
        "table = (f, g, 2)",
        "g.__code__ = helper.__code__",
        "Kind.made = staticmethod(helper)",
        "Kind.side = property(helper)",
    ],
)
def test_changes_are_seen(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math", math)
    scope = script(
        "import math, sys\n"
        "factor = 10\n"
        "class Base: pass\n"
        "class Other: pass\n"
        "class Kind(Base):\n"
        "    size = 7\n"
        "    def area(self): return self.size * factor\n"
        "    @property\n"
        "    def side(self): return 1\n"
        "    @staticmethod\n"
        "    def made(): return Kind()\n"
        "def helper(x=1, *, step=1): return x * factor\n"
        "def g(x): return x\n"
        "table = (g, g, 2)\n"
        "def f(x): return [helper(x) + math.pi + Kind().area() + table[2] for _ in range(missing)]\n"
    )
    fn = scope["f"]
    found = capture(fn)
    assert found.unchanged(fn)
    exec(change, scope)
    assert not found.unchanged(fn)


def test_a_cell_that_changes_is_seen() -> None:
    def make() -> tuple[FunctionType, FunctionType]:
        value = 1

        def read() -> int:
            return value

        def write() -> None:
            nonlocal value
            value = 2

        return read, write  # type: ignore[return-value]

    read, write = make()
    read = FunctionType(read.__code__, {"__name__": "__main__"}, "read", None, read.__closure__)
    found = capture(read)
    assert found.unchanged(read)
    write()
    assert not found.unchanged(read)


def test_a_recursive_function_is_steady() -> None:
    fn = script("def f(n): return n and f(n - 1)")["f"]
    assert capture(fn).unchanged(fn)


RECURSIVE = {
    "itself": "def f(): return f, data",
    "each other": "def f(): return g\ndef g(): return f, data",
    "a tuple": "def f(): return table, data\ntable = (f, (f, 1))",
    "a default": "def f(other=None): return data\nf.__defaults__ = (f,)",
    "a keyword": "def f(*, other=None): return data\nf.__kwdefaults__ = {'other': f}",
    "a class": "class K:\n    def m(self): return f\ndef f(): return K, data",
    "a static method": "class K:\n    @staticmethod\n    def m(): return f\ndef f(): return K, data",
    "a property": "class K:\n    @property\n    def p(self): return f\ndef f(): return K, data",
    "a base": "class B:\n    def m(self): return f\nclass K(B): pass\ndef f(): return K, data",
    "a slot": "class K:\n    __slots__ = ('a',)\n    def m(self): return f\ndef f(): return K, K.a, data",
}


@pytest.mark.parametrize("closure", [False, True], ids=["globals", "cells"])
@pytest.mark.parametrize("source", RECURSIVE.values(), ids=RECURSIVE.keys())
def test_a_function_that_leads_back_to_itself_is_steady_and_freed(source: str, closure: bool) -> None:
    if closure:
        lines = "".join(f"    {line}\n" for line in source.split("\n"))
        made = script(f"def make(data):\n{lines}    return f")["make"](b"data")
    else:
        made = script(source, data=b"data")["f"]
    unchanged, gone = watch(made), weakref.ref(made)
    assert unchanged is not None and unchanged(made)
    del made
    gc.collect()
    assert gone() is None


def test_a_function_by_name_is_freed_with_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("owned")
    monkeypatch.setitem(sys.modules, "owned", module)
    exec("known = []\ndef f(known=known): pass\nknown.append(f)\nclass K:\n    def m(self): return known", vars(module))
    watched = [watch(fn) for fn in (module.f, module.K, module.K.m)]
    gone = [weakref.ref(fn) for fn in (module.f, module.K, module.K.m)]
    assert all(unchanged is not None and unchanged(fn()) for unchanged, fn in zip(watched, gone, strict=True))
    kept = module.f
    del sys.modules["owned"], module
    assert watched[0] is not None and not watched[0](kept)
    del kept
    gc.collect()
    assert [fn() for fn in gone] == [None] * 3


@pytest.mark.parametrize(
    "value",
    [
        "[1]",
        "{}",
        "object()",
        "(1, [2])",
        "type('K', (), {'a': []})",
        "type('K', (), {'__registry__': {}})",
        "{}.get",
        "[1].count",
        "type(sys)('dynamic')",
    ],
)
def test_what_may_change_in_place_is_never_steady(value: str) -> None:
    assert Capture.of(script(f"import sys\nit = {value}\ndef f(): return it")["f"]) is None
    assert Capture.of(script(f"import sys\ndef f(a={value}): return a")["f"]) is None


@pytest.mark.parametrize(
    "value", ["'text'.upper", "math.sqrt", "dict.fromkeys", "str.upper", "type('K', (), {}).__init__"]
)
def test_builtins_of_what_can_not_change_are_steady(value: str) -> None:
    fn = script(f"import math\nit = {value}\ndef f(): return it")["f"]
    assert capture(fn).unchanged(fn)


def test_a_module_registered_by_value_is_never_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("owned")
    monkeypatch.setitem(sys.modules, "owned", module)
    fn = script("def f(): return module", module=module)["f"]
    assert capture(fn).unchanged(fn)
    cloudpickle.register_pickle_by_value(module)
    try:
        assert Capture.of(fn) is None
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def test_a_submodule_that_is_imported_later_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("package")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "package", package)
    fn = script("def f(): return package.part.value", package=package)["f"]
    found = capture(fn)
    assert found.unchanged(fn)
    monkeypatch.setitem(sys.modules, "package.part", ModuleType("package.part"))
    assert not found.unchanged(fn)


@pytest.mark.parametrize("closure", [False, True], ids=["globals", "cells"])
def test_a_submodule_of_a_submodule_that_is_imported_later_is_seen(
    monkeypatch: pytest.MonkeyPatch, closure: bool
) -> None:
    package, part = ModuleType("package"), ModuleType("package.part")
    package.__path__, part.__path__ = [], []
    package.__package__, part.__package__ = "package", "package.part"
    vars(package).update(part=part, value=1)
    monkeypatch.setitem(sys.modules, "package", package)
    monkeypatch.setitem(sys.modules, "package.part", part)
    if closure:
        fn = script("def make(package):\n    def f(): return package.part.inner.value\n    return f")["make"](package)
    else:
        fn = script("def f(): return package.part.inner.value", package=package)["f"]
    found, before = capture(fn), cloudpickle.dumps(fn)
    assert found.unchanged(fn)
    monkeypatch.setitem(sys.modules, "package.part.inner", ModuleType("package.part.inner"))
    assert cloudpickle.dumps(fn) != before and not found.unchanged(fn)


@pytest.mark.parametrize(
    "change", ["def f(): pass", "del f", "f.__code__ = g.__code__", "f.__defaults__ = (1,)", "reload"]
)
def test_a_name_that_leads_elsewhere_is_seen(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    module = ModuleType("owned")
    monkeypatch.setitem(sys.modules, "owned", module)
    exec("def f(a): pass\ndef g(): pass\nclass K: pass", vars(module))
    fn = module.f
    outer = script("def outer(): return f, K", f=fn, K=module.K)["outer"]
    named, taken = watch(fn), capture(outer)
    assert named is not None and named(fn) and taken.unchanged(outer)
    if change == "reload":
        monkeypatch.setitem(sys.modules, "owned", ModuleType("owned"))
    else:
        exec(change, vars(module))
    assert not named(fn)
    assert taken.unchanged(outer) == change.startswith("f.")  # a name is all that its pickle holds of it


def test_methods_and_classes_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("owned")
    monkeypatch.setitem(sys.modules, "owned", module)
    exec("class K:\n    def method(self): pass", vars(module))
    kind, method = module.K, module.K.method
    outer = script("def outer(): return method", method=method)["outer"]
    taken, of_kind, of_method = capture(outer), watch(kind), watch(method)
    assert of_kind is not None and of_kind(kind) and taken.unchanged(outer)
    assert of_method is not None and of_method(method) and not of_method(outer)
    monkeypatch.setattr(module, "K", ModuleType("elsewhere"))
    assert not of_kind(kind) and not taken.unchanged(outer) and not of_method(method)


CACHED = """
from functools import lru_cache
step = 1
@lru_cache(maxsize=7, typed=True)
def fib(n):
    calls.append(n)
    return n if n < 2 else fib(n - step) + fib(n - 2)
"""


def test_a_function_with_a_cache_travels_by_value_and_is_watched() -> None:
    made = script(CACHED, calls=())
    fib = made["fib"]
    del made["calls"]
    unchanged = watch(fib)
    assert unchanged is not None and unchanged(fib)
    made["step"] = 2
    assert not unchanged(fib)
    made["step"] = 1
    loaded = pickle.loads(DefaultSerializer.serialize(fib))
    calls: list[int] = []
    loaded.__wrapped__.__globals__["calls"] = calls
    assert loaded(10) == 55 == loaded(10) and len(calls) == 11, "it finds its own results"
    assert loaded.cache_parameters() == fib.cache_parameters() and loaded.__name__ == "fib"
    made["calls"] = []
    assert watch(fib) is None, "a list can change unnoticed"


def test_a_function_with_a_cache_that_can_be_imported_travels_by_name() -> None:
    assert is_pickled_by_name(importable) and DefaultSerializer.serialize(importable).count(b"importable") == 1
    unchanged = watch(importable)
    assert unchanged is not None and unchanged(importable)


@functools.cache
def importable() -> int:
    return 1
