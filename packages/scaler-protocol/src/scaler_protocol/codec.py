"""Messages to frames and back: the one module that knows Cap'n Proto.

The schema drives it: a union member `doneMessage` is the dataclass `DoneMessage`, a field `taskGroups` its attribute
`task_groups`, and a column `callsLengths` says where the parts of `calls` stand in the payload frame.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import capnp

from scaler_protocol.errors import MalformedMessageError
from scaler_protocol.messages import Group, Message
from scaler_protocol.payloads import NONE, Payloads

_SCHEMA = capnp.load(str(Path(__file__).with_name("messages.capnp")))
_MESSAGE = _SCHEMA.Message
_PAYLOAD = "Lengths"
_GROUPS = "groups"
_KNOWN_GROUP_BYTES = 4096
_MOST_SEGMENTS = 512
_TWO_NUMBERS = struct.Struct("<II")


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", lambda match: "_" + match[1].lower(), name)


class _Field(NamedTuple):
    """An attribute of a message, and its place in the schema: to look that up by name takes longer than to read it."""

    attribute: str
    name: str
    place: Any
    is_list: bool


def _fields(struct: Any) -> tuple[list[_Field], list[_Field]]:
    """The plain fields and the payload columns of a struct."""
    plain, payloads = [], []
    for name, place in struct.schema.fields.items():
        if name.endswith(_PAYLOAD):
            payloads.append(_Field(_snake(name.removesuffix(_PAYLOAD)), name, place, True))
        else:
            plain.append(_Field(_snake(name), name, place, place.proto.slot.type.which() == "list"))
    return plain, payloads


_GROUP_FIELDS = _fields(_SCHEMA.Group)[0]


@lru_cache(4096)
def _write_group(group: Group) -> bytes:
    builder = _SCHEMA.Group.new_message()
    for attribute, name, _, is_list in _GROUP_FIELDS:
        value = getattr(group, attribute)
        setattr(builder, name, list(value) if is_list else value)
    written: bytes = builder.to_bytes()
    return written


def _parse_group(written: bytes) -> Group:
    with _SCHEMA.Group.from_bytes(written, traversal_limit_in_words=len(written) + 64) as reader:
        values: dict[str, Any] = {}
        for attribute, _, place, is_list in _GROUP_FIELDS:
            value = reader._get_by_field(place)
            values[attribute] = tuple(value) if is_list else value
    group = Group(**values)
    if len(group.capability_names) != len(group.capability_values):
        raise MalformedMessageError("a group has as many capability names as values")
    return group


_parse_known_group = lru_cache(4096)(_parse_group)


def _read_group(written: bytes) -> Group:
    # Strangers choose what they send: what is remembered of it must stay small.
    return _parse_known_group(written) if len(written) <= _KNOWN_GROUP_BYTES else _parse_group(written)


class _Kind:
    """How one type of message is written and read."""

    def __init__(self, member: str, kind: type[Any]) -> None:
        struct = getattr(_SCHEMA, member[0].upper() + member[1:])
        self.member, self.kind = member, kind
        self.place = _MESSAGE.schema.fields[member]
        self.plain, self.payloads = _fields(struct)
        self.scalars = [(field.attribute, field.place) for field in self.plain if not field.is_list]
        self.lists = [(field.attribute, field.place) for field in self.plain if field.is_list]
        self.absent: dict[str, Any] = dict.fromkeys([attribute for attribute, _ in self.lists], ())
        self.absent.update((field.attribute, NONE) for field in self.payloads)
        self.columns: Sequence[tuple[str, ...]] = getattr(kind, "COLUMNS", ())
        self.optional: frozenset[str] = getattr(kind, "OPTIONAL", frozenset())
        self.keeps_frames = hasattr(kind, "encoded")

    def encode(self, message: Any) -> Sequence[bytes | memoryview]:
        if self.keeps_frames and message.encoded is not None:
            frames: Sequence[bytes | memoryview] = message.encoded
            return frames
        root = _MESSAGE.new_message()
        body = root.init(self.member)
        for attribute, name, _, _ in self.plain:
            # Whatever is false is the schema's default, too.
            if value := getattr(message, attribute):
                if attribute == _GROUPS:
                    value = [_write_group(group) for group in value]
                setattr(body, name, list(value) if type(value) is range else value)
        parts: list[bytes | memoryview] = []
        for attribute, name, _, _ in self.payloads:
            column: Payloads = getattr(message, attribute)
            if column:
                setattr(body, name, column.lengths)
                parts.append(column.frame)
        if not parts:
            return [root.to_bytes()]
        return [root.to_bytes(), parts[0] if len(parts) == 1 else b"".join(parts)]

    def decode(self, reader: Any, frames: Sequence[bytes]) -> Any:
        payload = frames[1] if len(frames) == 2 else b""
        body = reader._get_by_field(self.place)
        get, has = body._get_by_field, body._has_by_field
        values = self.absent.copy()
        for attribute, place in self.scalars:
            values[attribute] = get(place)
        for attribute, place in self.lists:
            if has(place):
                column = get(place)
                values[attribute] = tuple(map(_read_group, column) if attribute == _GROUPS else column)
        if self.payloads:
            self._cut(body, payload, values)
        elif payload:
            raise MalformedMessageError(f"{self.kind.__name__} is followed by {len(payload)} bytes of nobody")
        for columns in self.columns:
            size = len(values[columns[0]])
            for other in columns[1:]:
                found = len(values[other])
                if found != size and (found or other not in self.optional):
                    where = f"{self.kind.__name__}.{other}"
                    raise MalformedMessageError(f"{where} has {found} entries, {columns[0]} {size}")
        message = self.kind(**values)
        if self.keeps_frames:
            object.__setattr__(message, "encoded", frames)
        return message

    def _cut(self, body: Any, payload: bytes, values: dict[str, Any]) -> None:
        at = 0
        only = len(self.payloads) == 1
        for attribute, _, place, _ in self.payloads:
            if not body._has_by_field(place):
                continue
            lengths = list(body._get_by_field(place))
            end = at + sum(lengths)
            if end > len(payload):
                raise MalformedMessageError(f"{self.kind.__name__}.{attribute} ends at {end} of {len(payload)} bytes")
            values[attribute] = Payloads.cut(payload if only else payload[at:end], lengths)
            at = end
        if at != len(payload):
            raise MalformedMessageError(f"{self.kind.__name__} is followed by {len(payload) - at} bytes of nobody")


_CLASSES = {kind.__name__: kind for kind in get_args(Message)}
_KINDS = {member: _Kind(member, _CLASSES[member[0].upper() + member[1:]]) for member in _MESSAGE.schema.union_fields}
_ENCODERS: dict[type[Any], Callable[[Any], Sequence[bytes | memoryview]]] = {
    kind.kind: kind.encode for kind in _KINDS.values()
}


def encode(message: Message) -> Sequence[bytes | memoryview]:
    """The frames of a message: its columns, and the bytes of its payload columns where there are any."""
    return _ENCODERS[type(message)](message)


def decode(frames: Sequence[bytes]) -> Message:
    """The message of these frames; raises MalformedMessageError for anything that `encode` could not have made."""
    if not 1 <= len(frames) <= 2:
        raise MalformedMessageError(f"a message has one or two frames, not {len(frames)}")
    columns = frames[0]
    try:
        # Reading a list twice counts twice, so the limit (in words) is eight times what the frame holds.
        reader = _MESSAGE.from_segments(_segments(columns), traversal_limit_in_words=len(columns) + 4096)
        message: Message = _KINDS[reader._which_str()].decode(reader, frames)
        return message
    except MalformedMessageError:
        raise
    except (capnp.KjException, UnicodeDecodeError, KeyError, ValueError, TypeError) as error:
        reason, _, _ = str(error).partition("\n")
        raise MalformedMessageError(f"not a message: {reason}") from error


def _segments(columns: bytes) -> list[bytes]:
    """The segments of a Cap'n Proto message in its stream framing: a table of sizes, and one behind the other.

    pycapnp's own reader of that framing is a context manager, which takes longer than a small message is worth.
    """
    if len(columns) < _TWO_NUMBERS.size:
        raise MalformedMessageError(f"not a message: {len(columns)} bytes")
    more, words = _TWO_NUMBERS.unpack_from(columns)
    if not more and len(columns) == 8 * (1 + words):
        return [columns[8:]]
    at = 8 * ((more + 1) // 2 + 1)
    if more >= _MOST_SEGMENTS or len(columns) < at:
        raise MalformedMessageError(f"not a message: {more + 1} segments in {len(columns)} bytes")
    sizes = struct.unpack_from(f"<{more + 1}I", columns, 4)
    segments = []
    for size in sizes:
        segments.append(columns[at : at + 8 * size])
        at += 8 * size
    if at != len(columns):
        raise MalformedMessageError(f"not a message: segments of {at} bytes in {len(columns)}")
    return segments
