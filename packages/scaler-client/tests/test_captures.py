"""A function that travels by value is written again when, and only when, it would hold something else."""

from __future__ import annotations

import math
import sys
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle
import pytest

from scaler_client.captures import Capture, travels_by_name


def script(source: str, **scope: Any) -> dict[str, Any]:
    """What a script holds after this source was run."""
    scope = {"__name__": "__main__", **scope}
    exec(source, scope)
    return scope


def capture(fn: FunctionType) -> Capture:
    found = Capture.of(fn)
    assert found is not None
    return found


def test_who_travels_by_name() -> None:
    assert travels_by_name(math.sqrt) and travels_by_name(dict) and travels_by_name(pytest.raises)
    local = lambda: None  # noqa: E731
    assert not travels_by_name(local)
    assert not travels_by_name(script("def f(): pass")["f"])
    assert not travels_by_name("".upper) and not travels_by_name(3)


def test_a_module_registered_by_value_does_not_travel_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = ModuleType("owned"), ModuleType("owned.part")
    exec("def f(): pass", vars(module))
    monkeypatch.setitem(sys.modules, "owned", package)
    monkeypatch.setitem(sys.modules, "owned.part", module)
    assert travels_by_name(module.f)
    cloudpickle.register_pickle_by_value(package)
    try:
        assert not travels_by_name(module.f)
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
        "math = None",
    ],
)
def test_changes_are_seen(change: str) -> None:
    scope = script(
        "import math\n"
        "factor = 10\n"
        "class Kind:\n"
        "    size = 7\n"
        "    def area(self): return self.size * factor\n"
        "    @property\n"
        "    def side(self): return 1\n"
        "    @staticmethod\n"
        "    def made(): return Kind()\n"
        "def helper(x=1): return x * factor\n"
        "def f(x): return [helper(x) + math.pi + Kind().area() for _ in range(missing)]\n"
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


@pytest.mark.parametrize("value", ["[1]", "{}", "object()", "(1, [2])", "type('K', (), {'a': []})"])
def test_what_may_change_in_place_is_never_steady(value: str) -> None:
    assert Capture.of(script(f"it = {value}\ndef f(): return it")["f"]) is None
    assert Capture.of(script(f"def f(a={value}): return a")["f"]) is None
