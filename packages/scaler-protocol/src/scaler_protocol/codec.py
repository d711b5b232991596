"""Converts messages to frames and back.

The codec follows the schema: the union member `agentStatus` is the dataclass `AgentStatus`, the field `taskGroups` its
attribute `task_groups`, and the column `callsLengths` has the lengths of the parts of `calls` in the payload frame. The
limits of fields are in `scaler_protocol.limits`; whole numbers and booleans that their type keeps in range are not
checked again.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, get_args

from scaler_protocol import capnproto, schema
from scaler_protocol.capnproto import Reader
from scaler_protocol.errors import InvalidFieldError, MalformedMessageError
from scaler_protocol.limits import DEFAULTS, KEPT_BY_TYPE, RELATIONS, limit_of
from scaler_protocol.messages import Group, Message
from scaler_protocol.payloads import NONE, Payloads
from scaler_protocol.ranges import Column, Limit

_GROUPS = "groups"
_KNOWN_GROUP_BYTES = 4096
_UNION = struct.Struct("<QQ")
"""The struct `Message`: the number of the member, and the pointer to it."""
_NOT_WRITTEN = (struct.error, OverflowError, TypeError, ValueError, AttributeError)
"""Exceptions of packing and of comparisons for values of the wrong type or range."""

_KNOWN_LAYOUT_BYTES = 1024
_KNOWN_LAYOUTS = 64
"""Layouts of one type of message that are kept: messages about one task, or a few, repeat them."""

_Fits = Callable[[Any], bool]


class _Field(NamedTuple):
    """An attribute of a message with its limit."""

    attribute: str
    limit: Limit
    longest: int
    """Entries of a list."""
    fits: _Fits | None
    """The check of a value, or of all entries of a list, unless the type ensures the limit."""
    schema: schema.Field

    @property
    def default(self) -> Any:
        """The value that is not written."""
        if self.schema.kind == "payloads":
            return NONE
        return () if self.schema.is_list else {"text": "", "data": b"", "bool": False}.get(self.schema.kind, 0)


def _fields(name: str) -> list[_Field]:
    """The fields of a struct in the order of the schema."""
    found = []
    for field in schema.struct(name).fields:
        limit = limit_of(name, field.attribute, field.kind, is_column=field.is_list)
        fits: _Fits
        if isinstance(limit, Column):
            longest, fits, kept = limit.most, limit.each.all_fit, limit.each_fits
        else:
            kept = field.kind in KEPT_BY_TYPE and limit == DEFAULTS[field.kind]
            longest, fits = sys.maxsize, limit.fits
        found.append(_Field(field.attribute, limit, longest, None if kept else fits, field))
    return found


class _Layout(NamedTuple):
    """Where the values of a struct are.

    It follows from the pointers of the struct, its place and the length of the frame, if there is one segment, and no
    pointer leads to another one.
    """

    plain: list[tuple[str, capnproto.Take, int, int, int, _Fits | None]]
    """Lists without pointers: how they are taken, their beginnings and entries, and the most entries."""
    lists: list[tuple[str, capnproto.Read, int, int, int, _Fits | None]]
    """Lists of blobs: how they are read, the pointers and their places, and the most entries."""
    size: int
    """Bytes of the lists without pointers."""


class _Struct:
    """Writes and reads one type of struct."""

    def __init__(self, name: str) -> None:
        layout = schema.struct(name)
        self.name, self.words, self.pointers = name, layout.words, layout.pointers
        self.pointer = capnproto.struct_pointer(layout.words, layout.pointers)
        self.fields = _fields(name)
        self.defaults = {field.attribute: field.default for field in self.fields}
        pointed = [field for field in self.fields if field.schema.is_pointer]
        numbers = [field for field in self.fields if field.schema.kind in capnproto.NUMBERS and field not in pointed]
        flags = [field for field in self.fields if field.schema.kind == "bool" and field not in pointed]
        numbers.sort(key=lambda field: field.schema.place)
        self.data = capnproto.data_section([(field.schema.kind, field.schema.place) for field in numbers], self.words)
        self.table = struct.Struct(f"<{self.pointers}Q")
        self.number_names = [field.attribute for field in numbers]
        self.checked_numbers = [(field.attribute, field.fits) for field in numbers if field.fits]
        self.flags = [(field.attribute, *divmod(field.schema.place, 8)) for field in flags]
        payloads = [field for field in pointed if field.schema.kind == "payloads"]
        self.payloads = [(field.attribute, field.fits) for field in payloads]
        written = sorted(pointed, key=payloads.__contains__)
        self.writes = [
            (field.attribute, field.schema.place, _functions(field)[0], field.longest, field.fits) for field in written
        ]
        self.values_of = _values_of([field.attribute for field in (*written, *numbers, *flags)])
        self.first_number, self.first_flag = len(written), len(written) + len(numbers)
        self.reads = [
            (field.attribute, *_functions(field)[1:], field.longest, None if field in payloads else field.fits)
            for field in pointed
        ]
        self.layouts: dict[tuple[tuple[int, ...], int, int], _Layout] = {}
        self.required = [
            (field.attribute, field.fits)
            for field in self.fields
            if field.fits and not field.schema.is_list and not field.fits(field.default)
        ]

    def write(self, source: Any) -> tuple[list[bytes], list[bytes | memoryview]]:
        """The content of a struct with the attributes of `source`, and the frames of its payload columns.

        Raises one of _NOT_WRITTEN for a value that is out of its limit.
        """
        # A false value equals the schema's default, also -0.0 and None.
        for name, is_allowed in self.checked_numbers:
            if (value := getattr(source, name)) and not is_allowed(value):
                raise ValueError(name)
        values = self.values_of(source)
        data = self.data.pack(*[value or 0 for value in values[self.first_number : self.first_flag]])
        if self.flags and any(flags := values[self.first_flag :]):
            data = self._with_flags(flags, data)
        content, table, after = [data, b""], [0] * self.pointers, self.pointers - 1
        frames: list[bytes | memoryview] = []
        for value, field in zip(values, self.writes, strict=False):
            if value:
                attribute, place, write, longest, fits = field
                if len(value) > longest or (fits is not None and not fits(value)):
                    raise ValueError(attribute)
                pointer, written = write(value)
                table[place] = pointer | (after - place) << capnproto.OFFSET_SHIFT
                content.append(written)
                after += len(written) >> 3
                if type(value) is Payloads:
                    frames.append(value.frame)
        content[1] = self.table.pack(*table)
        return content, frames

    def _with_flags(self, flags: Sequence[Any], data: bytes) -> bytes:
        packed = bytearray(data)
        for value, (_, byte, bit) in zip(flags, self.flags, strict=True):
            packed[byte] |= capnproto.flag(value or False) << bit
        return bytes(packed)

    def read(self, reader: Reader, at: int, segment: int, words: int, pointers: int) -> dict[str, Any]:
        """The attributes of the struct at this place; those of payload columns are the lengths of their parts.

        Raises MalformedMessageError for a value that is out of its limit.
        """
        values = self.defaults.copy()
        if self.words:
            self._read_data(reader.frame, at, words, values)
        frame, place = reader.frame, at + 8 * words
        enough = pointers >= self.pointers
        table = self.table.unpack_from(frame, place) if enough else reader.pointers(place, pointers)
        if reader.is_whole and (known := self.layouts.get((table, place, len(frame)))) is not None:
            layout = known
            reader.allowance -= layout.size
        else:
            layout = self._layout(reader, table, place, segment)
        attribute = ""
        try:
            for attribute, take, start, count, longest, fits in layout.plain:
                values[attribute] = value = take(frame, start, count)
                if len(value) > longest or (fits is not None and value and not fits(value)):
                    raise self._out_of_limits(attribute, value)
            for attribute, read, pointer, place, longest, fits in layout.lists:
                values[attribute] = value = read(reader, pointer, place, segment)
                if len(value) > longest or (fits is not None and value and not fits(value)):
                    raise self._out_of_limits(attribute, value)
        except UnicodeDecodeError as error:
            raise _malformed(f"{self.name}.{attribute}", f"is not UTF-8: {error.reason}") from None
        for attribute, fits in self.required:
            if not values[attribute] and not fits(values[attribute]):
                raise self._out_of_limits(attribute, values[attribute])
        return values

    def _layout(self, reader: Reader, table: tuple[int, ...], place: int, segment: int) -> _Layout:
        """Follow the pointers of a table."""
        layout, before, at = _Layout([], [], 0), reader.allowance, place
        for (attribute, plain, read, longest, fits), pointer in zip(self.reads, table, strict=False):
            if pointer and plain is not None:
                start, _, count = reader.list(pointer, at, segment, plain.list_size, plain.size)
                layout.plain.append((attribute, plain.take, start, count, longest, fits))
            elif pointer and read is not None:
                layout.lists.append((attribute, read, pointer, at, longest, fits))
            at += 8
        is_small = reader.is_whole and len(reader.frame) <= _KNOWN_LAYOUT_BYTES
        if is_small and not any(map(capnproto.is_far, table)):
            if len(self.layouts) >= _KNOWN_LAYOUTS:
                self.layouts.clear()
            self.layouts[table, place, len(reader.frame)] = layout._replace(size=before - reader.allowance)
        return layout

    def _read_data(self, frame: bytes, at: int, words: int, values: dict[str, Any]) -> None:
        if words < self.words:  # of an earlier version of the schema
            frame, at = frame[at : at + 8 * words] + bytes(8 * (self.words - words)), 0
        values.update(zip(self.number_names, self.data.unpack_from(frame, at), strict=True))
        for attribute, byte, bit in self.flags:
            values[attribute] = bool(frame[at + byte] >> bit & 1)
        for attribute, fits in self.checked_numbers:
            if not fits(values[attribute]):
                raise self._out_of_limits(attribute, values[attribute])

    def _out_of_limits(self, attribute: str, value: Any) -> MalformedMessageError:
        limits = {field.attribute: field.limit for field in self.fields}
        return _malformed(f"{self.name}.{attribute}", limits[attribute].fault(value))

    def fault(self, source: Any) -> tuple[str, str] | None:
        """The first attribute that is out of its limit, and the error text."""
        for field in self.fields:
            if fault := field.limit.fault(getattr(source, field.attribute)):
                return f"{self.name}.{field.attribute}", fault
        return None


def _group_fault(group: Group) -> tuple[str, str] | None:
    """The first field of a group that is outside its limit, and the error text."""
    if found := _GROUP.fault(group):
        return found
    names, values = len(group.capability_names), len(group.capability_values)
    return None if names == values else ("Group.capability_values", f"has {values} entries, capability_names {names}")


def _write_group(group: Group) -> bytes:
    if found := _group_fault(group):
        raise _invalid(*found)
    content, _ = _GROUP.write(group)
    return capnproto.message(_GROUP.pointer, content)


@lru_cache(4096)
def _write_known_group(group: Group) -> capnproto.Written:
    return _WRITE_BYTES(_write_group(group))


def _parse_group(written: bytes) -> Group:
    reader = Reader(written)
    group = Group(**_GROUP.read(reader, *reader.root()))
    if found := _group_fault(group):
        raise _malformed(*found)
    return group


_parse_known_group = lru_cache(4096)(_parse_group)


def _read_group(written: bytes) -> Group:
    # Peers choose the size of a group: the cache keeps only small ones, which bounds its memory.
    return _parse_known_group(written) if len(written) <= _KNOWN_GROUP_BYTES else _parse_group(written)


class _Kind:
    """Writes and reads one type of message."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind, self.number = kind, schema.union().index(kind.__name__)
        self.struct = _Struct(kind.__name__)
        self.columns: Sequence[tuple[str, ...]] = getattr(kind, "COLUMNS", ())
        self.optional: frozenset[str] = getattr(kind, "OPTIONAL", frozenset())
        self.relations = [(relation.column, relation) for relation in RELATIONS.get(kind.__name__, ())]
        self.keeps_frames = hasattr(kind, "encoded")

    def encode(self, message: Any) -> Sequence[bytes | memoryview]:
        if self.keeps_frames and message.encoded is not None:
            frames: Sequence[bytes | memoryview] = message.encoded
            return frames
        try:
            for attribute, fits in self.struct.required:
                if not fits(getattr(message, attribute)):
                    raise ValueError(attribute)
            content, parts = self.struct.write(message)
        except InvalidFieldError:  # of a group
            raise
        except _NOT_WRITTEN as error:
            raise self._why_not_written(message, error) from error
        columns = capnproto.message(capnproto.UNION, [_UNION.pack(self.number, self.struct.pointer), *content])
        if not parts:
            return [columns]
        return [columns, parts[0] if len(parts) == 1 else b"".join(parts)]

    def _why_not_written(self, message: Any, error: Exception) -> InvalidFieldError:
        if found := self.struct.fault(message):
            return _invalid(*found)
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

    def decode(self, reader: Reader, place: tuple[int, int, int, int], frames: Sequence[bytes]) -> Any:
        values = self.struct.read(reader, *place)
        payload = frames[1] if len(frames) == 2 else b""
        if self.struct.payloads:
            self._cut(payload, values)
        elif payload:
            raise MalformedMessageError(f"{self.kind.__name__} is followed by {len(payload)} unexpected bytes")
        message = self.kind(**values)
        if found := self._contradiction(message, values):
            raise _malformed(*found)
        if self.keeps_frames:
            object.__setattr__(message, "encoded", frames)
        return message

    def _cut(self, payload: bytes, values: dict[str, Any]) -> None:
        """Replace the lengths of parts by the parts."""
        at = 0
        only = len(self.struct.payloads) == 1
        for attribute, fits in self.struct.payloads:
            lengths = values[attribute]
            if lengths is NONE:
                continue
            end = at + sum(lengths)
            if end > len(payload):
                raise MalformedMessageError(f"{self.kind.__name__}.{attribute} ends at {end} of {len(payload)} bytes")
            values[attribute] = column = Payloads.cut(payload if only else payload[at:end], lengths)
            if fits is not None and lengths and not fits(column):
                raise self.struct._out_of_limits(attribute, column)
            at = end
        if at != len(payload):
            raise MalformedMessageError(f"{self.kind.__name__} is followed by {len(payload) - at} unexpected bytes")


def _values_of(attributes: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that returns these attributes of an object."""
    if len(attributes) > 1:
        return attrgetter(*attributes)
    return lambda source: tuple([getattr(source, attribute) for attribute in attributes])


def _functions(field: _Field) -> tuple[capnproto.Write, capnproto.Plain | None, capnproto.Read | None]:
    """How the value of a pointer field is written, and how it is taken out of a frame, or read if it has pointers."""
    if field.attribute == _GROUPS:
        return capnproto.write_blobs(_write_known_group), None, _read_groups
    kind = field.schema.kind
    if field.schema.is_list and kind in capnproto.BLOB_LISTS:
        write, read = capnproto.BLOB_LISTS[kind]
        return write, None, read
    is_list = field.schema.is_list or kind == "payloads"
    plain = (capnproto.LISTS if is_list else capnproto.BLOBS)[kind]
    return _write_lengths if kind == "payloads" else plain.write, plain, None


_WRITE_BYTES = capnproto.BLOBS["data"].write
_WRITE_LENGTHS = capnproto.LISTS["payloads"].write
_READ_DATA = capnproto.BLOB_LISTS["data"][1]


def _write_lengths(column: Payloads) -> capnproto.Written:
    return _WRITE_LENGTHS(column.lengths)


def _read_groups(reader: Reader, pointer: int, at: int, segment: int) -> tuple[Group, ...]:
    return tuple(map(_read_group, _READ_DATA(reader, pointer, at, segment)))


def _invalid(field: str, fault: str) -> InvalidFieldError:
    return InvalidFieldError(f"{field} {fault}", field=field)


def _malformed(field: str, fault: str) -> MalformedMessageError:
    return MalformedMessageError(f"{field} {fault}", field=field)


class _Kinds(dict[type[Any], _Kind]):
    """Types of messages by their class, each made when it is met first: a process uses few of them."""

    def __missing__(self, kind: type[Any]) -> _Kind:
        found = self[kind] = _Kind(kind)
        return found


class _Members(dict[int, _Kind]):
    """Types of messages by their number in the union."""

    def __missing__(self, number: int) -> _Kind:
        members = schema.union()
        if number >= len(members):
            raise MalformedMessageError(f"not a message: unknown type {number}")
        found = self[number] = _KINDS[_CLASSES[members[number]]]
        return found


_CLASSES = {kind.__name__: kind for kind in get_args(Message)}
_GROUP = _Struct("Group")
_KINDS = _Kinds()
_MEMBERS = _Members()


def encode(message: Message) -> Sequence[bytes | memoryview]:
    """The frames of a message: its columns, and the bytes of its payload columns if there are any.

    Raises InvalidFieldError for a field that is outside its limit. Relations between columns are checked by `decode`.
    """
    return _KINDS[type(message)].encode(message)


def decode(frames: Sequence[bytes]) -> Message:
    """The message of these frames; raises MalformedMessageError for frames that no message has."""
    if not 1 <= len(frames) <= 2:
        raise MalformedMessageError(f"a message has one or two frames, not {len(frames)}")
    reader = Reader(frames[0])
    number, place = reader.member()
    message: Message = _MEMBERS[number].decode(reader, place, frames)
    return message
