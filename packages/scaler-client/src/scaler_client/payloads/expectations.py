"""Expectations: a later check whether a name still refers to the same value, without keeping that value alive.

Invariant: an expectation keeps alive nothing but constants (numbers, strings, bytes, tuples of these). Any other value
that a function reaches may refer back to the function, as the cell of a recursive closure does, and the function would
never be freed. Functions, classes and modules are therefore held by weak references, and so are the items of tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from types import CellType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType
from typing import Any, Final, NamedTuple
from weakref import ref

Expected = Sequence[tuple[Any, object]]
"""Pairs of a name, or of the position of a cell, and the expectation of its value."""
MISSING: Final = object()
"""The value of a name that does not exist, and of an empty cell."""
IMMUTABLE: Final = frozenset({int, float, complex, str, bytes, bool, type(None), type(...), range})
_DESCRIPTORS: Final = (GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType)
_HEAP_TYPE: Final = 1 << 9
"""The flag of classes that were made at run time. The others, such as `object`, refer to nothing made at run time."""


class MayChangeError(Exception):
    """A change of the value cannot be detected: it may change and stay the same object."""


class _Parts(NamedTuple):
    """The expectation of a value that is not a constant and has no weak references: its type and those of its parts."""

    kind: type
    parts: tuple[object, ...]


def parts_of(value: object) -> tuple[object, ...] | None:
    """The parts of a tuple, descriptor, property, static or class method; None for any other value."""
    if type(value) is tuple:
        return value
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return (value.fget, value.fset, value.fdel)
    if isinstance(value, _DESCRIPTORS):
        return (value.__objclass__, value.__name__)
    return None


def weakly(value: Any) -> ref[Any]:
    """A weak reference; raises MayChangeError for a type without weak references, such as a list or a dict."""
    try:
        return ref(value)
    except TypeError:
        raise MayChangeError from None


def expect(value: object) -> object:
    """The expectation of a value: a constant, _Parts, or a weak reference. Raises MayChangeError."""
    if type(value) in IMMUTABLE or value is MISSING or (type(value) is type and not value.__flags__ & _HEAP_TYPE):
        return value
    parts = parts_of(value)
    if parts is not None:
        expected = tuple(map(expect, parts))
        constant = type(value) is tuple and all(map(is_, parts, expected))
        return value if constant else _Parts(type(value), expected)
    return weakly(value)


def is_expected(found: object, expected: object) -> bool:
    """Whether a value meets an expectation."""
    kind = type(expected)
    if kind is ref:
        return found is not None and found is expected()  # type: ignore[operator]
    if isinstance(expected, _Parts):
        parts = parts_of(found) if type(found) is expected.kind else None
        return parts is not None and len(parts) == len(expected.parts) and all(map(is_expected, parts, expected.parts))
    return found is expected


def hold(namespace: Any, names: Expected) -> bool:
    """Whether the values of all names meet their expectations.

    Two quick checks come before `is_expected`, because its call takes longer than both.
    """
    find = namespace.get
    for name, expected in names:
        found = find(name, MISSING)
        if found is expected or (type(expected) is ref and found is not None and found is expected()):
            continue
        if not is_expected(found, expected):
            return False
    return True


def contents_of(cell: CellType) -> object:
    """The value in a cell; MISSING if the cell is empty."""
    try:
        contents: object = cell.cell_contents
    except ValueError:
        return MISSING
    return contents
