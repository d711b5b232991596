"""Values are known again without being kept."""

from __future__ import annotations

import gc
import math
import weakref
from types import CellType
from typing import Any

import pytest

from scaler_client.payloads.expectations import MISSING, MayChangeError, contents_of, expect, hold, is_expected


def make() -> Any:
    return lambda: None


CONSTANTS = [None, 1, 2.5, "text", b"bytes", (), (1, ("a", None)), object, int, MISSING]


@pytest.mark.parametrize("value", CONSTANTS)
def test_a_constant_is_kept_as_it_is(value: object) -> None:
    assert expect(value) is value and is_expected(value, expect(value)) and not is_expected(make(), expect(value))


@pytest.mark.parametrize("value", [[], {}, ([],), (1, (2, {})), object()])
def test_what_may_change_can_not_be_expected(value: object) -> None:
    with pytest.raises(MayChangeError):
        expect(value)


@pytest.mark.parametrize("wrap", [lambda fn: fn, lambda fn: (1, (fn,)), staticmethod, classmethod, property])
def test_anything_else_is_known_and_not_kept(wrap: Any) -> None:
    fn = make()
    gone, expected = weakref.ref(fn), expect(wrap(fn))
    assert is_expected(wrap(fn), expected)
    for other in (None, make(), wrap(make()), wrap(None) if wrap is not classmethod else 1, (), (1, (fn,), 2)):
        assert not is_expected(other, expected)
    del fn, other
    gc.collect()
    assert gone() is None and not is_expected(None, expected) and not is_expected(wrap(None), expected)


def test_descriptors_of_classes_are_known_and_do_not_keep_them() -> None:
    class Slotted:
        __slots__ = ("a", "b")

    expected, gone = expect(vars(Slotted)["a"]), weakref.ref(Slotted)
    assert is_expected(vars(Slotted)["a"], expected) and not is_expected(vars(Slotted)["b"], expected)
    del Slotted
    gc.collect()
    assert gone() is None


def test_names_and_cells() -> None:
    names = [(name, expect(value)) for name, value in {"math": math, "one": 1, "missing": MISSING}.items()]
    assert hold({"math": math, "one": 1, "more": 2}, names)
    for other in ({"math": math}, {"math": None, "one": 1}, {"math": math, "one": 1, "missing": None}):
        assert not hold(other, names)
    assert contents_of(CellType()) is MISSING and contents_of(CellType(1)) == 1
