"""The part of a value that cannot be pickled is named with the path to it."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from scaler_client.payloads.pickles import dump
from scaler_client.payloads.unpicklable import fault_in


class Node:
    """Has any attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def method(self) -> None:
        """Does nothing."""


class Slotted:
    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Unwilling:
    def __repr__(self) -> str:
        return "<Unwilling>"

    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


LOCKED = Node(layers=[1, 2, Node(lock=threading.Lock())])


def uses_a_global() -> object:
    return LOCKED


def with_parents() -> Node:
    """A tree whose leaves cannot be pickled only because they refer to their parent."""
    root = Node()
    vars(root).update(children=[Node(parent=root), Node(parent=root)], lock=threading.Lock())
    return root


def nested(depth: int) -> Any:
    value: Any = threading.Lock()
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (LOCKED, " -> .layers[2].lock"),
        ({"a": [LOCKED]}, " -> ['a'][0].layers[2].lock"),
        ({(1, Unwilling()): 2}, " -> key (1, <Unwilling>)[1]"),
        (partial(print, key=LOCKED), " -> .keywords['key'].layers[2].lock"),
        (LOCKED.method, " -> .__self__.layers[2].lock"),
        ((Slotted(),), " -> [0].lock"),
        (lambda: uses_a_global() or LOCKED, " -> LOCKED.layers[2].lock"),
        (with_parents(), " -> .lock"),
        (threading.Lock(), ""),
        (nested(300), " -> " + "[0]" * 50),
    ],
)
def test_the_culprit_is_named_with_its_path(value: Any, path: str) -> None:
    assert fault_in("argument 1", value, dump).partition(" cannot be pickled: ")[0] == f"argument 1{path}"


def test_what_can_be_pickled_has_no_fault() -> None:
    assert fault_in("argument 1", [1, {"a": Node()}], dump) == ""
    assert fault_in("argument 1", uses_a_global, dump) == "", "it is pickled by name"
