"""Expectations: whether a value is the one that was there before, told without keeping alive what may lead elsewhere.

Invariant: an expectation keeps alive nothing but constants (numbers, strings, bytes, tuples of these). Whatever else a
function reaches may lead back to it, as the cell of a recursive closure does, and it would never be freed. Functions,
classes and modules are therefore expected by weak references, and tuples of them by what is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from types import CellType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType
from typing import Any, Final, NamedTuple
from weakref import ref

Expected = Sequence[tuple[Any, object]]
"""What names, or cells by their position, are to hold."""
MISSING: Final = object()
"""In place of what a name or an empty cell would hold."""
IMMUTABLE: Final = frozenset({int, float, complex, str, bytes, bool, type(None), type(...), range})
_DESCRIPTORS: Final = (GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType)
_HEAP_TYPE: Final = 1 << 9
"""The flag of classes that Python code, or a module, has made. The others, as `object`, lead to nothing that was."""


class MayChangeError(Exception):
    """A value may change and stay the same object."""


class _Parts(NamedTuple):
    """What is expected of a value that is no constant and can not be held weakly: its type and what it consists of."""

    kind: type
    parts: tuple[object, ...]


def parts_of(value: object) -> tuple[object, ...] | None:
    """What a tuple, descriptor, property, static or class method consists of; None for anything else."""
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
    """A weak reference; raises MayChangeError where there can be none, as to a list or a dict."""
    try:
        return ref(value)
    except TypeError:
        raise MayChangeError from None


def expect(value: object) -> object:
    """What `is_expected` compares with later: a constant, _Parts, or a weak reference. Raises MayChangeError."""
    if type(value) in IMMUTABLE or value is MISSING or (type(value) is type and not value.__flags__ & _HEAP_TYPE):
        return value
    parts = parts_of(value)
    if parts is not None:
        expected = tuple(map(expect, parts))
        constant = type(value) is tuple and all(map(is_, parts, expected))
        return value if constant else _Parts(type(value), expected)
    return weakly(value)


def is_expected(found: object, expected: object) -> bool:
    """Whether a value is the one that is expected."""
    kind = type(expected)
    if kind is ref:
        return found is not None and found is expected()  # type: ignore[operator]
    if isinstance(expected, _Parts):
        parts = parts_of(found) if type(found) is expected.kind else None
        return parts is not None and len(parts) == len(expected.parts) and all(map(is_expected, parts, expected.parts))
    return found is expected


def hold(namespace: Any, names: Expected) -> bool:
    """Whether names hold what is expected.

    This calls `is_expected` only where it must: the call takes longer than the two quick checks.
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
    """What is in a cell, or MISSING."""
    try:
        contents: object = cell.cell_contents
    except ValueError:
        return MISSING
    return contents
