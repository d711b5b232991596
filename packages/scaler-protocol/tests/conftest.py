"""Strategies that make any message of the protocol, from the fields of its class, the schema and the limits.

Here pycapnp reads the schema and writes messages, so that tests compare two implementations of Cap'n Proto.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import capnp
import pytest
from hypothesis import strategies as st

from scaler_protocol import codec, limits, schema
from scaler_protocol.byte_planes import to_planes
from scaler_protocol.messages import Group, Message
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import NO_PROFILE
from scaler_protocol.ranges import (
    Acyclic,
    AnyOf,
    Anything,
    Bytes,
    Column,
    Distinct,
    Ends,
    Flag,
    Grouped,
    Limit,
    Planes,
    Positions,
    Profiles,
    Real,
    Relation,
    Text,
    Whole,
)

KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}
SCHEMA = capnp.load(str(Path(schema.__file__).with_name("messages.capnp")))
_FEW = 20
"""Bytes of what a test draws, where more are allowed."""


Made = TypeVar("Made", bound=Callable[..., Any])


def made_once(function: Made) -> Made:
    """functools.cache, whose types refuse type[Any] as an argument."""
    return cast("Made", functools.cache(function))


@made_once
def schema_types(kind: type[Any]) -> dict[str, tuple[str, bool]]:
    """For every attribute its type in the schema, and whether it is a list of that."""
    found = {}
    for name, field in getattr(SCHEMA, kind.__name__).schema.fields.items():
        slot = field.proto.slot.type
        if name.endswith("Lengths"):
            found[snake(name.removesuffix("Lengths"))] = ("payloads", True)
        elif slot.which() == "list":
            found[snake(name)] = (str(slot.list.elementType.which()), True)
        else:
            found[snake(name)] = (str(slot.which()), False)
    return found


def snake(name: str) -> str:
    return re.sub("([A-Z])", lambda match: "_" + match[1].lower(), name)


@made_once
def limits_of(kind: type[Any]) -> dict[str, Limit]:
    """For every attribute what it may be."""
    return {
        name: limits.limit_of(kind.__name__, name, element, is_column=is_list)
        for name, (element, is_list) in schema_types(kind).items()
    }


def texts(limit: Text) -> st.SearchStrategy[str]:
    anything = st.characters(codec="utf-8")
    plain = st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters=limit.without)
    return st.text(plain if limit.without else anything, min_size=limit.least, max_size=8)


@made_once
def allowed(limit: Limit) -> st.SearchStrategy[Any]:
    """Values within a limit."""
    if isinstance(limit, Whole):
        return st.integers(limit.least, limit.most)
    if isinstance(limit, Real):
        return st.floats(limit.least, limit.most, allow_nan=False, allow_infinity=False)
    if isinstance(limit, AnyOf):
        return st.sampled_from(sorted(limit.values))
    if isinstance(limit, Text):
        return texts(limit)
    if isinstance(limit, Bytes):
        some = st.binary(min_size=limit.least, max_size=max(limit.least, min(limit.most, _FEW)))
        return some | st.just(b"") if limit.optional else some
    if isinstance(limit, Flag):
        return st.booleans()
    assert isinstance(limit, Anything)
    return groups()


@made_once
def refused(limit: Limit, element: str) -> st.SearchStrategy[Any] | None:
    """Values out of a limit that a field of this type can carry, if there are any."""
    if isinstance(limit, Whole):
        least, most = limits.DEFAULTS[element].least, limits.DEFAULTS[element].most  # type: ignore[attr-defined]
        ranges = [(least, limit.least - 1), (limit.most + 1, most)]
        found = [st.integers(low, high) for low, high in ranges if low <= high]
        return st.one_of(*found) if found else None
    if isinstance(limit, Real):
        wrong = [float("nan"), float("inf"), -float("inf")]
        return st.sampled_from([*wrong, -1.0, limit.most * 2] if limit.least == 0 else wrong)
    if isinstance(limit, AnyOf):
        return st.integers(0, 255).filter(lambda number: number not in limit.values)
    if isinstance(limit, Text):
        sizes = [size for size in (limit.least - 1, limit.most + 1) if size >= 0]
        unprintable = [f"n{each}n" for each in (*limit.without, "\x1b")] if limit.without else []
        return st.sampled_from(["n" * size for size in sizes] + ["é" * (limit.most // 2 + 1)] + unprintable)
    if isinstance(limit, Bytes):
        sizes = [size for size in (limit.least - 1, limit.most + 1) if 0 <= size <= 2**20 + 1]
        return st.sampled_from([bytes(size) for size in sizes]) if sizes else None
    return None


@made_once
def foreign(limit: Limit) -> st.SearchStrategy[Any]:
    """Values of another type, or such as no field can carry. What is false is written as the default of its type."""
    values = {Text: ["name\udc80", 1, b"name"], Bytes: ["text", 1], Flag: [2, "yes"]}
    return st.sampled_from(values.get(type(limit), ["1", b"1", [1], 1j, 2**2000, -(2**2000)]))


@made_once
@st.composite
def groups(draw: st.DrawFn) -> Group:
    count = draw(st.integers(0, 3))
    values: dict[str, Any] = {}
    for name, limit in limits_of(Group).items():
        if isinstance(limit, Column):
            values[name] = tuple(draw(allowed(limit.each)) for _ in range(count))
        else:
            values[name] = draw(allowed(limit))
    return Group(**values)


@made_once
@st.composite
def messages_of(draw: st.DrawFn, kind: type[Any]) -> Any:
    """Any message of this class."""
    optional = getattr(kind, "OPTIONAL", ())
    types, sizes = schema_types(kind), {}
    for columns in getattr(kind, "COLUMNS", ()):
        size = draw(st.integers(0, 5))
        sizes.update({column: draw(st.sampled_from([0, size])) if column in optional else size for column in columns})
    values: dict[str, Any] = {}
    for name, limit in limits_of(kind).items():
        if isinstance(limit, Column):
            size = sizes[name] if name in sizes else draw(st.integers(0, min(4, limit.most)))
            entries = tuple(draw(allowed(limit.each)) for _ in range(size))
            values[name] = Payloads(entries) if types[name][0] == "payloads" else entries
        else:
            values[name] = draw(allowed(limit))
    for relation in limits.RELATIONS.get(kind.__name__, ()):
        values[relation.column] = draw(related(relation, values))
    return kind(**values)


@st.composite
def ends(draw: st.DrawFn, size: int, count: int) -> Any:
    """So many increasing ends of pieces of a column of this size; none if it has fewer entries."""
    if not 0 < count <= size:
        return ()
    others = st.lists(st.integers(1, max(1, size - 1)), min_size=count - 1, max_size=count - 1, unique=True)
    return (*sorted(draw(others)), size)


@st.composite
def related(draw: st.DrawFn, relation: Relation, values: dict[str, Any]) -> Any:
    """A column that keeps a relation with others."""
    entries = values[relation.column]
    if isinstance(relation, Positions):
        if count := len(values[relation.of]):
            return tuple(draw(st.integers(0, count - 1)) for _ in entries)
        if relation.column == "dependents":
            values["needs"] = ()
            if "inputs" in values:
                values["inputs"] = Payloads(())
        return ()
    if isinstance(relation, Ends):
        return draw(ends(len(values[relation.of]), len(entries)))
    if isinstance(relation, Profiles):
        return NO_PROFILE * len(values[relation.of])
    if isinstance(relation, Planes):
        count = draw(st.integers(0, 3))
        return to_planes(draw(st.binary(min_size=count * relation.size, max_size=count * relation.size)), relation.size)
    if isinstance(relation, Grouped):
        values["groups"] = values["groups"] or (draw(groups()),)
        return entries
    if isinstance(relation, Acyclic):  # tasks count from 1
        return tuple(0 for _ in values["dependents"])
    assert isinstance(relation, Distinct)
    return tuple(draw(st.lists(st.integers(1, 2**64 - 1), min_size=len(entries), max_size=len(entries), unique=True)))


def smallest(limit: Limit) -> Any:
    """One value within a limit."""
    if isinstance(limit, Whole | Real):
        return max(0, limit.least)
    if isinstance(limit, AnyOf):
        return min(limit.values)
    if isinstance(limit, Text):
        return "n" * limit.least
    if isinstance(limit, Bytes):
        return bytes(limit.least)
    return False if isinstance(limit, Flag) else ()


@made_once
def smallest_of(kind: type[Any]) -> Any:
    """The smallest message of this class."""
    values = {name: smallest(limit) for name, limit in limits_of(kind).items()}
    payloads = {name: Payloads(()) for name, (element, _) in schema_types(kind).items() if element == "payloads"}
    return kind(**values | payloads)


def unchecked(message: Any) -> list[bytes]:
    """The frames of a message as pycapnp writes them; its fields may hold whatever Cap'n Proto can write."""
    name = type(message).__name__
    fields = schema.struct(name).fields
    root = SCHEMA.Message.new_message()
    body = root.init(name[0].lower() + name[1:])
    for field in fields:
        value = getattr(message, field.attribute)
        if field.attribute == "groups":
            value = [_unchecked_group(group) for group in value]
        if value and field.kind != "payloads":
            setattr(body, field.name, list(value) if field.is_list else value)
    payload = b""
    for field in fields:
        if field.kind == "payloads" and (column := getattr(message, field.attribute)):
            setattr(body, field.name, column.lengths)
            payload += column.frame
    return [root.to_bytes(), payload] if payload else [root.to_bytes()]


def _unchecked_group(group: Group) -> bytes:
    builder = SCHEMA.Group.new_message()
    for field in schema.struct("Group").fields:
        if value := getattr(group, field.attribute):
            setattr(builder, field.name, list(value) if field.is_list else value)
    written: bytes = builder.to_bytes()
    return written


class Wire:
    """What tests of the wire share."""

    kinds = KINDS
    any_message = st.sampled_from(sorted(KINDS)).flatmap(lambda name: messages_of(KINDS[name]))
    groups = groups()
    allowed = staticmethod(allowed)
    refused = staticmethod(refused)
    foreign = staticmethod(foreign)
    limits_of = staticmethod(limits_of)
    smallest_of = staticmethod(smallest_of)
    unchecked = staticmethod(unchecked)

    @staticmethod
    def messages_of(kind: type[Any]) -> st.SearchStrategy[Any]:
        """Any message of this class."""
        return messages_of(kind)

    @staticmethod
    def schema_types(kind: type[Any]) -> dict[str, tuple[str, bool]]:
        """For every attribute its type in the schema, and whether it is a list of that."""
        return schema_types(kind)

    @staticmethod
    def layout_of(name: str) -> tuple[int, int, dict[str, int]]:
        """What pycapnp says of a struct: its words of data, its pointers, and the place of each field.

        The place is the offset in bits in the data section, or the index of the pointer.
        """
        node = getattr(SCHEMA, name).schema.node
        sizes = {"bool": 1, "uint8": 8, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64, "uint64": 64}
        sizes |= {"float64": 64, "text": 1, "data": 1, "list": 1}
        places = {field.name: field.slot.offset * sizes[str(field.slot.type.which())] for field in node.struct.fields}
        return node.struct.dataWordCount, node.struct.pointerCount, places

    @staticmethod
    def union() -> list[str]:
        """The members of the union in the order of their numbers."""
        fields = sorted(SCHEMA.Message.schema.node.struct.fields, key=lambda field: field.discriminantValue)
        return [field.name for field in fields]

    @staticmethod
    def frames_of(message: Any) -> list[bytes]:
        """As they come from the wire."""
        return [bytes(frame) for frame in codec.encode(message)]


@pytest.fixture(scope="session")
def wire() -> Wire:
    """Strategies that make any message."""
    return Wire()
