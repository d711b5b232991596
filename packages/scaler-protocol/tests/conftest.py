"""Strategies that make any message of the protocol, from the fields of its class and the sizes of the schema."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import strategies as st

from scaler_protocol import codec
from scaler_protocol.messages import Group, Message
from scaler_protocol.payloads import Payloads

KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **{f"uint{bits}": st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    **{f"int{bits}": st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (32, 64)},
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "text": TEXT,
    "data": st.binary(max_size=20),
}


def schema_types(kind: type[Any]) -> dict[str, tuple[str, bool]]:
    """For every attribute its type in the schema, and whether it is a list of that."""
    found = {}
    for name, field in getattr(codec._SCHEMA, kind.__name__).schema.fields.items():
        slot = field.proto.slot.type
        if name.endswith("Lengths"):
            found[codec._snake(name.removesuffix("Lengths"))] = ("payloads", True)
        elif slot.which() == "list":
            found[codec._snake(name)] = (str(slot.list.elementType.which()), True)
        else:
            found[codec._snake(name)] = (str(slot.which()), False)
    return found


@st.composite
def groups(draw: st.DrawFn) -> Group:
    count = draw(st.integers(0, 3))
    values: dict[str, Any] = {}
    for name, (kind, is_list) in schema_types(Group).items():
        values[name] = tuple(draw(SCALARS[kind]) for _ in range(count)) if is_list else draw(SCALARS[kind])
    return Group(**values)


@st.composite
def messages_of(draw: st.DrawFn, kind: type[Any]) -> Any:
    """Any message of this class."""
    optional = getattr(kind, "OPTIONAL", ())
    sizes = {}
    for columns in getattr(kind, "COLUMNS", ()):
        size = draw(st.integers(0, 5))
        sizes.update({column: draw(st.sampled_from([0, size])) if column in optional else size for column in columns})
    values: dict[str, Any] = {}
    for name, (element, is_list) in schema_types(kind).items():
        size = sizes[name] if name in sizes else draw(st.integers(0, 4)) if is_list else 0
        if name == "groups":
            values[name] = tuple(draw(groups()) for _ in range(size))
        elif element == "payloads":
            values[name] = Payloads([draw(st.binary(max_size=30)) for _ in range(size)])
        elif is_list:
            values[name] = tuple(draw(SCALARS[element]) for _ in range(size))
        else:
            values[name] = draw(SCALARS[element])
    return kind(**values)


class Wire:
    """What tests of the wire share."""

    kinds = KINDS
    any_message = st.sampled_from(sorted(KINDS)).flatmap(lambda name: messages_of(KINDS[name]))
    groups = groups()

    @staticmethod
    def messages_of(kind: type[Any]) -> st.SearchStrategy[Any]:
        """Any message of this class."""
        return messages_of(kind)

    @staticmethod
    def schema_types(kind: type[Any]) -> dict[str, tuple[str, bool]]:
        """For every attribute its type in the schema, and whether it is a list of that."""
        return schema_types(kind)

    @staticmethod
    def frames_of(message: Any) -> list[bytes]:
        """As they come from the wire."""
        return [bytes(frame) for frame in codec.encode(message)]


@pytest.fixture(scope="session")
def wire() -> Wire:
    """Strategies that make any message."""
    return Wire()
