"""What Python would refuse is refused with the same words."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from scaler_client.payloads.signatures import check_for


def plain(a: int, b: int = 1) -> None: ...
def positional(a: int, /, b: int) -> None: ...
def keywords(a: int, *, b: int, c: int = 1) -> None: ...
def anything(*args: int, **kwargs: int) -> None: ...
def mixed(a: int, /, b: int = 2, *rest: int, c: int, **more: int) -> None: ...
def profiled(*, profiling: bool) -> None: ...
def positional_profiling(profiling: bool, /) -> None: ...


class Thing:
    def __init__(self, a: int) -> None: ...
    def method(self, a: int) -> None: ...
    def __call__(self, a: int, b: int) -> None: ...

    @classmethod
    def made(cls, a: int) -> None: ...
    @staticmethod
    def free(a: int) -> None: ...


class Base:
    def __new__(cls, a: int, b: int = 1) -> Base:
        return super().__new__(cls)


class Bare: ...


class Static:
    @staticmethod
    def __call__(a: int) -> None: ...


class OfClass:
    @classmethod
    def __call__(cls, a: int) -> None: ...


class OfPartial:
    __call__ = functools.partial(pow, 2)


class Made:
    __init__ = functools.partialmethod(lambda self, a, b: None, 1)


class OfMeta(type):
    __call__ = staticmethod(lambda a: a)


class Counted(metaclass=OfMeta):
    def __init__(self) -> None: ...


class ClaimsForHeirs:
    __signature__ = inspect.signature(lambda: None)


class Heir(ClaimsForHeirs):
    def __call__(self, a: int) -> None: ...


def wrapper(fn: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(fn)
    def adds_one(*args: Any, **kwargs: Any) -> None:
        fn(1, *args, **kwargs)

    return adds_one


CALLABLES: list[Callable[..., Any]] = [
    plain, positional, keywords, anything, mixed, lambda a, *b: None, Thing(1).method, Thing.made, Thing.free,
    Thing, Thing(1), Base, functools.partial(mixed, 1, c=2), functools.partial(Thing(1), 1), Heir(),
]  # fmt: skip
CALLS: list[tuple[tuple[int, ...], dict[str, int]]] = [
    ((), {}), ((1,), {}), ((1, 2), {}), ((1, 2, 3), {}), ((), {"a": 1}), ((1,), {"a": 1}), ((1,), {"b": 1}),
    ((1,), {"b": 1, "c": 2}), ((1,), {"z": 1}), ((1, 2), {"b": 3}), ((1,), {"c": 1}),
]  # fmt: skip


@pytest.mark.parametrize("fn", CALLABLES)
@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_a_check_raises_exactly_what_the_call_does(
    fn: Callable[..., Any], args: tuple[int, ...], kwargs: dict[str, int]
) -> None:
    expected = found = None
    try:
        fn(*args, **kwargs)
    except TypeError as error:
        expected = str(error)
    check = check_for(fn)
    assert check.known
    try:
        check.check(*args, **kwargs)
    except TypeError as error:
        found = str(error)
    assert found == expected


@pytest.mark.parametrize("fn", [Thing, Thing(1), functools.partial(plain, 1, b=2), math.sqrt, operator.add, round])
def test_other_callables_refuse_too(fn: Callable[..., Any]) -> None:
    with pytest.raises(TypeError):
        check_for(fn).check(1, 2, 3, 4)


def test_callables_without_a_signature_take_anything() -> None:
    for fn in (max, dict):
        check = check_for(fn)
        check.check(1, 2, 3, key=4)
        assert not check.known


@pytest.mark.parametrize(
    "fn",
    [
        Static(),
        OfClass(),
        pytest.param(
            OfPartial(),
            marks=[
                pytest.mark.filterwarnings("ignore:functools.partial:FutureWarning"),
                pytest.mark.skipif(sys.version_info >= (3, 14), reason="a partial of a class is a method there"),
            ],
        ),
        Made,
        Counted,
        functools.partial(Static()),
        Static().__call__,
        OfClass().__call__,
    ],
)
def test_what_python_takes_is_not_refused(fn: Callable[..., Any]) -> None:
    fn(3)
    check_for(fn).check(3)


def test_arguments_of_a_partial_are_not_kept() -> None:
    class Argument: ...

    argument = Argument()
    gone = weakref.ref(argument)
    fn: Callable[..., None] = plain
    check = check_for(functools.partial(fn, argument))
    del argument
    assert gone() is None
    check.check()


def test_a_claimed_signature_is_not_believed() -> None:
    class Claims:
        __signature__ = "nonsense"

        def __call__(self, a: int) -> None: ...

    with pytest.raises(TypeError):
        check_for(Claims()).check()
    check_for(Claims()).check(1)
    check_for(wrapper(plain)).check(1, 2, 3)  # what it wraps will refuse that, when it runs


@pytest.mark.parametrize(
    ("fn", "takes"), [(plain, False), (anything, True), (profiled, True), (positional_profiling, False), (max, True)]
)
def test_who_takes_profiling(fn: Callable[..., Any], takes: bool) -> None:
    assert check_for(fn).takes_profiling is takes
