"""Converts messages to frames and back; the only module that imports Cap'n Proto.

The codec is generated from the schema: the union member `agentStatus` is the dataclass `AgentStatus`, the field
`taskGroups` its attribute `task_groups`, and the column `callsLengths` has the lengths of the parts of `calls` in the
payload frame. The limits of fields are in `scaler_protocol.limits`; whole numbers and booleans that Cap'n Proto keeps
in range are not checked again.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import capnp

from scaler_protocol.errors import InvalidFieldError, MalformedMessageError
from scaler_protocol.limits import DEFAULTS, KEPT_BY_TYPE, RELATIONS, limit_of
from scaler_protocol.messages import Group, Message
from scaler_protocol.payloads import NONE, Payloads
from scaler_protocol.ranges import Column, Limit

_SCHEMA = capnp.load(str(Path(__file__).with_name("messages.capnp")))
_MESSAGE = _SCHEMA.Message
_PAYLOAD = "Lengths"
_GROUPS = "groups"
_KNOWN_GROUP_BYTES = 4096
_MOST_SEGMENTS = 512
_TWO_NUMBERS = struct.Struct("<II")
_NOT_WRITTEN = (capnp.KjException, OverflowError, TypeError, ValueError, AttributeError)
"""Exceptions of Cap'n Proto and of comparisons for values of the wrong type or range."""


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", lambda match: "_" + match[1].lower(), name)


class _Field(NamedTuple):
    """An attribute of a message and its schema field, because a lookup by name takes longer than the read itself."""

    attribute: str
    name: str
    place: Any
    is_list: bool
    limit: Limit
    longest: int
    """Entries of a list."""
    fits: Callable[[Any], bool] | None
    """The check of a value, or of all entries of a list that is not empty, unless the type ensures the limit."""

    @property
    def default(self) -> Any:
        """The schema's default for a value that is not a list."""
        kind = self.place.proto.slot.type.which()
        return {"text": "", "data": b""}.get(kind, 0)


def _fields(struct: Any) -> tuple[list[_Field], list[_Field]]:
    """The plain fields and the payload columns of a struct."""
    message = struct.schema.node.displayName.partition(":")[2]
    plain: list[_Field] = []
    payloads: list[_Field] = []
    for name, place in struct.schema.fields.items():
        is_payload = name.endswith(_PAYLOAD)
        slot = place.proto.slot.type
        is_list = slot.which() == "list"
        element = "payloads" if is_payload else str(slot.list.elementType.which() if is_list else slot.which())
        attribute = _snake(name.removesuffix(_PAYLOAD))
        limit = limit_of(message, attribute, element, is_column=is_list)
        fits: Callable[[Any], bool]
        if isinstance(limit, Column):
            longest, fits, kept = limit.most, limit.each.all_fit, limit.each_fits
        else:
            longest, fits, kept = 1, limit.fits, element in KEPT_BY_TYPE and limit == DEFAULTS[element]
        field = _Field(attribute, name, place, is_list, limit, longest, None if kept else fits)
        (payloads if is_payload else plain).append(field)
    return plain, payloads


_GROUP_FIELDS = _fields(_SCHEMA.Group)[0]


def _group_fault(group: Group) -> tuple[str, str] | None:
    """The first field of a group that is outside its limit, and the error text."""
    for field in _GROUP_FIELDS:
        if fault := field.limit.fault(getattr(group, field.attribute)):
            return f"Group.{field.attribute}", fault
    names, values = len(group.capability_names), len(group.capability_values)
    return None if names == values else ("Group.capability_values", f"has {values} entries, capability_names {names}")


@lru_cache(4096)
def _write_group(group: Group) -> bytes:
    if found := _group_fault(group):
        raise _invalid(*found)
    builder = _SCHEMA.Group.new_message()
    for field in _GROUP_FIELDS:
        value = getattr(group, field.attribute)
        setattr(builder, field.name, list(value) if field.is_list else value)
    written: bytes = builder.to_bytes()
    return written


def _parse_group(written: bytes) -> Group:
    with _SCHEMA.Group.from_bytes(written, traversal_limit_in_words=len(written) + 64) as reader:
        values: dict[str, Any] = {}
        for field in _GROUP_FIELDS:
            value = reader._get_by_field(field.place)
            values[field.attribute] = tuple(value) if field.is_list else value
    group = Group(**values)
    if found := _group_fault(group):
        raise _malformed(*found)
    return group


_parse_known_group = lru_cache(4096)(_parse_group)


def _read_group(written: bytes) -> Group:
    # Peers choose the size of a group: the cache keeps only small ones, which bounds its memory.
    return _parse_known_group(written) if len(written) <= _KNOWN_GROUP_BYTES else _parse_group(written)


class _Kind:
    """Writes and reads one type of message."""

    def __init__(self, member: str, kind: type[Any]) -> None:
        struct = getattr(_SCHEMA, member[0].upper() + member[1:])
        self.member, self.kind = member, kind
        self.place = _MESSAGE.schema.fields[member]
        self.plain, self.payloads = _fields(struct)
        scalars = [field for field in self.plain if not field.is_list]
        lists = [field for field in self.plain if field.is_list]
        self.writes = [(field.attribute, field.name, field.is_list, field.longest, field.fits) for field in self.plain]
        self.scalars = [(field.attribute, field.place, field.fits) for field in scalars]
        self.lists = [(field.attribute, field.place, field.longest, field.fits) for field in lists]
        self.absent: dict[str, Any] = dict.fromkeys([field.attribute for field in lists], ())
        self.absent.update((field.attribute, NONE) for field in self.payloads)
        self.columns: Sequence[tuple[str, ...]] = getattr(kind, "COLUMNS", ())
        self.optional: frozenset[str] = getattr(kind, "OPTIONAL", frozenset())
        self.relations = [(relation.column, relation) for relation in RELATIONS.get(kind.__name__, ())]
        self.required = [
            (field.attribute, field.fits) for field in scalars if field.fits and not field.fits(field.default)
        ]
        self.keeps_frames = hasattr(kind, "encoded")

    def encode(self, message: Any) -> Sequence[bytes | memoryview]:
        if self.keeps_frames and message.encoded is not None:
            frames: Sequence[bytes | memoryview] = message.encoded
            return frames
        try:
            for attribute, fits in self.required:
                if not fits(getattr(message, attribute)):
                    raise ValueError(attribute)
            return self._write(message)
        except InvalidFieldError:  # of a group
            raise
        except _NOT_WRITTEN as error:
            raise self._why_not_written(message, error) from error

    def _write(self, message: Any) -> Sequence[bytes | memoryview]:
        root = _MESSAGE.new_message()
        body = root.init(self.member)
        for attribute, name, is_list, longest, fits in self.writes:
            # A false value equals the schema's default.
            if value := getattr(message, attribute):
                if (is_list and len(value) > longest) or (fits is not None and not fits(value)):
                    raise ValueError(attribute)
                if attribute == _GROUPS:
                    value = [_write_group(group) for group in value]
                setattr(body, name, list(value) if type(value) is range else value)
        parts: list[bytes | memoryview] = []
        for attribute, name, _, _, _, longest, fits in self.payloads:
            column: Payloads = getattr(message, attribute)
            if column:
                lengths = column.lengths
                if len(lengths) > longest or (fits is not None and not fits(column)):
                    raise ValueError(attribute)
                setattr(body, name, lengths)
                parts.append(column.frame)
        if not parts:
            return [root.to_bytes()]
        return [root.to_bytes(), parts[0] if len(parts) == 1 else b"".join(parts)]

    def _why_not_written(self, message: Any, error: Exception) -> InvalidFieldError:
        for field in (*self.plain, *self.payloads):
            if fault := field.limit.fault(getattr(message, field.attribute)):
                return _invalid(f"{self.kind.__name__}.{field.attribute}", fault)
        for group in getattr(message, _GROUPS, ()):
            if found := _group_fault(group):  # also of a type that cannot be hashed
                return _invalid(*found)
        reason, _, _ = str(error).partition("\n")
        return _invalid(self.kind.__name__, f"cannot be written: {reason}")

    def _contradiction(self, message: Any, values: dict[str, Any]) -> tuple[str, str] | None:
        """The column that contradicts another one, and the error text; `values` are the values of the fields."""
        for columns in self.columns:
            size = len(values[columns[0]])
            for other in columns[1:]:
                found = len(values[other])
                if found != size and (found or other not in self.optional):
                    return f"{self.kind.__name__}.{other}", f"has {found} entries, {columns[0]} {size}"
        for column, relation in self.relations:
            if values[column] and (fault := relation.fault(message)):
                return f"{self.kind.__name__}.{column}", fault
        return None

    def decode(self, reader: Any, frames: Sequence[bytes]) -> Any:
        payload = frames[1] if len(frames) == 2 else b""
        body = reader._get_by_field(self.place)
        values = self.absent.copy()
        self._read(body, values)
        if self.payloads:
            self._cut(body, payload, values)
        elif payload:
            raise MalformedMessageError(f"{self.kind.__name__} is followed by {len(payload)} unexpected bytes")
        message = self.kind(**values)
        if found := self._contradiction(message, values):
            raise _malformed(*found)
        if self.keeps_frames:
            object.__setattr__(message, "encoded", frames)
        return message

    def _read(self, body: Any, values: dict[str, Any]) -> None:
        get, has = body._get_by_field, body._has_by_field
        try:
            for attribute, place, fits in self.scalars:
                values[attribute] = value = get(place)
                if fits is not None and not fits(value):
                    raise self._out_of_limits(attribute, value)
            for attribute, place, longest, fits in self.lists:
                if has(place):
                    column = get(place)
                    values[attribute] = value = tuple(map(_read_group, column) if attribute == _GROUPS else column)
                    if len(value) > longest or (fits is not None and value and not fits(value)):
                        raise self._out_of_limits(attribute, value)
        except UnicodeDecodeError as error:
            raise _malformed(f"{self.kind.__name__}.{attribute}", f"is not UTF-8: {error.reason}") from None

    def _out_of_limits(self, attribute: str, value: Any) -> MalformedMessageError:
        limits = {field.attribute: field.limit for field in (*self.plain, *self.payloads)}
        return _malformed(f"{self.kind.__name__}.{attribute}", limits[attribute].fault(value))

    def _cut(self, body: Any, payload: bytes, values: dict[str, Any]) -> None:
        at = 0
        only = len(self.payloads) == 1
        for attribute, _, place, _, _, longest, fits in self.payloads:
            if not body._has_by_field(place):
                continue
            lengths = list(body._get_by_field(place))
            end = at + sum(lengths)
            if end > len(payload):
                raise MalformedMessageError(f"{self.kind.__name__}.{attribute} ends at {end} of {len(payload)} bytes")
            values[attribute] = column = Payloads.cut(payload if only else payload[at:end], lengths)
            if len(lengths) > longest or (fits is not None and lengths and not fits(column)):
                raise self._out_of_limits(attribute, column)
            at = end
        if at != len(payload):
            raise MalformedMessageError(f"{self.kind.__name__} is followed by {len(payload) - at} unexpected bytes")


def _invalid(field: str, fault: str) -> InvalidFieldError:
    return InvalidFieldError(f"{field} {fault}", field=field)


def _malformed(field: str, fault: str) -> MalformedMessageError:
    return MalformedMessageError(f"{field} {fault}", field=field)


_MEMBERS = {kind: kind.__name__[0].lower() + kind.__name__[1:] for kind in get_args(Message)}
_CLASSES = {member: kind for kind, member in _MEMBERS.items()}


class _Kinds(dict[str, _Kind]):
    """Types of messages by their member of the union, each made when it is met first: a process uses few of them."""

    def __missing__(self, member: str) -> _Kind:
        kind = self[member] = _Kind(member, _CLASSES[member])
        return kind


class _Encoders(dict[type[Any], Callable[[Any], Sequence[bytes | memoryview]]]):
    """What encodes the messages of a class."""

    def __missing__(self, kind: type[Any]) -> Callable[[Any], Sequence[bytes | memoryview]]:
        encode = self[kind] = _KINDS[_MEMBERS[kind]].encode
        return encode


_KINDS = _Kinds()
_ENCODERS = _Encoders()


def encode(message: Message) -> Sequence[bytes | memoryview]:
    """The frames of a message: its columns, and the bytes of its payload columns if there are any.

    Raises InvalidFieldError for a field that is outside its limit. Relations between columns are checked by `decode`.
    """
    return _ENCODERS[type(message)](message)


def decode(frames: Sequence[bytes]) -> Message:
    """The message of these frames; raises MalformedMessageError for frames that no message has."""
    if not 1 <= len(frames) <= 2:
        raise MalformedMessageError(f"a message has one or two frames, not {len(frames)}")
    columns = frames[0]
    try:
        # The limit counts words of 8 bytes: eight times the frame, because each read of a list counts.
        reader = _MESSAGE.from_segments(_segments(columns), traversal_limit_in_words=len(columns) + 4096)
        message: Message = _KINDS[reader._which_str()].decode(reader, frames)
        return message
    except MalformedMessageError:
        raise
    except (capnp.KjException, UnicodeDecodeError, KeyError, ValueError, TypeError) as error:
        reason, _, _ = str(error).partition("\n")
        raise MalformedMessageError(f"not a message: {reason}") from error


def _segments(columns: bytes) -> list[bytes]:
    """The segments of a Cap'n Proto message in stream framing: a table of sizes, then the segments.

    pycapnp's reader of that framing is a context manager, which costs more than reading a small message.
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
