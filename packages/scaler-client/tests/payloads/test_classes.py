"""Classes that travel by value: what they are where they are loaded, and that nothing sets them back."""

from __future__ import annotations

import abc
import copyreg
import gc
import pickle
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle
import pytest

from scaler_client.payloads import classes
from scaler_client.payloads.classes import begin, defining, dumps

SOURCE = """
import abc
import dataclasses
import enum

class Config:
    rate = 1
    extra = 2
    def describe(self): return rate_of(self), __class__

def rate_of(config): return config.rate
def read(_=None): return Config.rate
def has_extra(_=None): return hasattr(Config, "extra")
def is_config(value): return isinstance(value, Config)
def make(): return Config()

class Color(enum.Enum):
    RED = 1
    GREEN = 2
def is_red(value): return value is Color.RED

@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    other: "Point | None" = None

class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

class Square(Shape):
    def area(self): return super().__init__ and 4
Shape.register(Config)

log = []
class Writer:
    def write(self): log.append(1)
def write_and_count():
    Writer().write()
    return len(log)
def write_and_count_twice():
    Writer().write()
    return len(log) * 2
"""


@pytest.fixture
def script() -> dict[str, Any]:
    """What a script holds."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(SOURCE, scope)
    return scope


@contextmanager
def elsewhere() -> Iterator[None]:
    """In another process: nothing that was defined here is known, and no task has begun."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classes.scope, "defined", {})
        patch.setattr(classes.scope, "loaded", None)
        patch.setattr("cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID", weakref.WeakValueDictionary())
        yield


def loaded(function: bytes) -> Any:
    """A function, as a worker loads it, and the classes that came with it."""
    with defining() as own:
        return pickle.loads(function), own


def test_functions_see_the_class_as_it_was_when_they_were_written(script: dict[str, Any]) -> None:
    written = []
    for rate in (1, 2, 1, 3):
        script["Config"].rate = rate
        written.append(dumps(script["read"]))
    with elsewhere():
        functions = [loaded(function)[0] for function in written]
        assert [function() for function in functions] == [1, 2, 1, 3]
        assert [function() for function in reversed(functions)] == [3, 1, 2, 1]


def test_a_deleted_attribute_is_gone(script: dict[str, Any]) -> None:
    before = dumps(script["has_extra"])
    del script["Config"].extra
    after = dumps(script["has_extra"])
    with elsewhere():
        assert [loaded(function)[0]() for function in (before, after, before)] == [True, False, True]


def test_arguments_are_of_the_class_that_their_function_knows_and_leave_it_as_it_is(script: dict[str, Any]) -> None:
    functions = [dumps(script[name]) for name in ("is_config", "read")]
    both = dumps([script["is_config"], script["read"]])
    script["Config"].rate = 9  # as a counter of instances does between two calls
    argument = dumps(script["Config"]())
    with elsewhere():
        for function in functions:
            loaded(function)
        (is_config, read), own = loaded(both)
        for _ in range(2):
            begin(own)
            assert is_config(pickle.loads(argument)) and read() == 1
        begin({})
        assert not is_config(pickle.loads(argument)), "of another task"


def test_what_only_arguments_bring_is_one_class_within_a_task_and_as_it_was_sent(script: dict[str, Any]) -> None:
    first = dumps(script["Config"]())
    script["Config"].rate = 5
    second = dumps(script["Config"]())
    with elsewhere():
        begin({})
        one, other = pickle.loads(first), pickle.loads(second)
        assert type(one) is type(other) and other.rate == 1
        begin({})
        assert pickle.loads(second).rate == 5
        begin({})
        assert pickle.loads(first).rate == 1


def test_a_result_leaves_the_class_of_its_caller_alone(script: dict[str, Any]) -> None:
    cls, written = script["Config"], dumps(script["make"])
    with elsewhere():
        make, own = loaded(written)
        begin(own)
        result = make()
        type(result).rate = 77
        answer = dumps(result)
    cls.rate, describe = 3, cls.describe
    del cls.extra
    back = pickle.loads(answer)
    assert type(back) is cls and cls.rate == 3 and cls.describe is describe and not hasattr(cls, "extra")


def test_a_class_defined_in_a_task_is_one_class_for_its_caller() -> None:
    with elsewhere():
        Local = type("Local", (), {"__module__": "__main__", "size": 1})
        first, second = dumps(Local()), dumps(Local())
    with elsewhere():
        one, other = pickle.loads(first), pickle.loads(second)
        assert type(one) is type(other) is not Local and one.size == 1
        assert type(pickle.loads(dumps(one))) is type(one)


def test_nested_tasks_give_their_caller_its_own_class(script: dict[str, Any]) -> None:
    with elsewhere():
        is_config, own = loaded(dumps([script["is_config"], script["make"]]))
        begin(own)
        submitted = dumps(is_config[1])
        with elsewhere():
            make, nested = loaded(submitted)
            begin(nested)
            result = dumps(make())
        assert is_config[0](pickle.loads(result))
    assert script["is_config"](pickle.loads(result))


def test_what_tasks_write_with_cloudpickle_is_of_the_same_class_everywhere(script: dict[str, Any]) -> None:
    written = dumps(script["is_config"])
    with elsewhere():
        functions = [loaded(written) for _ in range(2)]
        is_config, own = functions[0]
        begin(own)
        answer = cloudpickle.dumps(is_config.__globals__["Config"]())
        for function, own in functions:
            begin(own)
            assert function(pickle.loads(answer))
    with elsewhere():
        is_config, own = loaded(written)
        begin(own)
        assert is_config(pickle.loads(answer))
    assert type(pickle.loads(answer)) is script["Config"]


def test_functions_and_methods_share_globals_whatever_was_loaded_before(script: dict[str, Any]) -> None:
    written = [dumps(script[name]) for name in ("write_and_count", "write_and_count_twice", "write_and_count")]
    with elsewhere():
        functions = [loaded(function)[0] for function in written]
        assert [function() for function in functions] == [1, 2, 1]
        assert [function() for function in functions] == [2, 4, 2]


@pytest.mark.parametrize("name", ["Config", "Color", "Point", "Shape", "Square"])
def test_kinds_of_classes(script: dict[str, Any], name: str) -> None:
    written = dumps(script[name])
    assert pickle.loads(written) is script[name]
    with elsewhere():
        made = pickle.loads(written)
        assert made is not script[name] and made.__qualname__ == name and type(made) is type(script[name])
        assert pickle.loads(written) is made
        assert pickle.loads(dumps(made)) is made


def test_enums_dataclasses_and_abstract_classes(script: dict[str, Any]) -> None:
    is_red, red = dumps(script["is_red"]), dumps(script["Color"].RED)
    points = dumps((script["Point"](1), script["Point"](1, script["Point"](2))))
    square, shape = dumps(script["Square"]), dumps(script["Shape"])
    config = dumps(script["Config"])
    with elsewhere():
        function, own = loaded(is_red)
        begin(own)
        assert function(pickle.loads(red)) and not function(script["Color"].RED)
        begin({})
        one, other = pickle.loads(points)
        assert one == type(other)(1) and other.other.x == 2
        assert pickle.loads(square)().area() == 4
        assert issubclass(pickle.loads(config), pickle.loads(shape))
        with pytest.raises(TypeError, match="abstract"):
            pickle.loads(shape)()
        assert issubclass(pickle.loads(shape), abc.ABC)


def test_a_state_that_cannot_be_set_is_set_the_next_time(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = dumps(script["Config"])
    with elsewhere():
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr("cloudpickle.cloudpickle._class_setstate", lambda made, state: 1 // 0)
            pickle.loads(written)
        assert pickle.loads(written).rate == 1


def test_no_class_is_kept_alive(script: dict[str, Any]) -> None:
    gone = weakref.ref(script["Config"])
    written = dumps(script["is_config"])
    script.clear()
    gc.collect()
    assert gone() is None
    with elsewhere():
        function, own = loaded(written)
        begin(own)
        made = weakref.ref(function.__globals__["Config"])
        begin({})
        del function, own
        gc.collect()
        assert made() is None


class Amount:
    def __init__(self, cents: int) -> None:
        self.cents = cents


def test_pickling_a_value_runs_one_function_for_each_object_in_it() -> None:
    """Looking up how to reduce an object runs none."""
    called: list[str] = []
    amounts = [Amount(cents) for cents in range(100)]
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        dumps(amounts)
    finally:
        sys.setprofile(None)
    assert called.count("reducer_override") >= len(amounts) and len(called) <= 2 * len(amounts), Counter(called)


def test_reductions_that_are_registered_later_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(copyreg.dispatch_table, Amount, lambda amount: (Amount, (-amount.cents,)))
    assert pickle.loads(dumps(Amount(5))).cents == -5
