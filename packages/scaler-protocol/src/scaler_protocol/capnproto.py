"""Cap'n Proto's encoding: structs of numbers, booleans, texts, bytes and lists of these.

A struct is written into one segment; lists follow it in the order in which they are given. What is read may have
several segments and far pointers, and comes from strangers: every pointer is checked, and `Reader` gives out at most
8 times the bytes of the message and 32 KiB, as pointers may alias each other.
Source: the Cap'n Proto encoding specification, version 1.0.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from scaler_protocol.errors import MalformedMessageError

Written = tuple[int, bytes]
"""A list: its pointer without the offset, and its bytes, which fill whole words."""
OFFSET_SHIFT = 2
"""Above these bits a pointer has its offset: how many words after it the list begins."""
Write = Callable[[Any], Written]
Read = Callable[["Reader", int, int, int], Any]
"""Reads what a pointer leads to; the pointer is followed by its place."""
Take = Callable[[bytes, int, int], Any]
"""Takes a list without pointers out of a frame, from its beginning and the number of its entries."""

_LIST = 1
_FAR = 2
_BITS_LIST, _BYTES_LIST, _POINTERS_LIST = 1, 2, 6
_MOST_SEGMENTS = 512
_AMPLIFICATION = 8
_EXTRA_BYTES = 32 * 1024
_EMPTY_STRUCT = 0xFFFF_FFFC
"""A pointer to a struct without content: its offset is -1, so that it is not null."""
_TWO_NUMBERS = struct.Struct("<II")
_WORD = struct.Struct("<Q")
_START = struct.Struct("<IIQ")
_USUAL = struct.Struct("<QQQQ")
"""One segment of less than 32 GiB with a root that is a union of structs, and the struct follows at once."""
_PADDING = [bytes(-length & 7) for length in range(8)]


class _Number(NamedTuple):
    """How a number is packed: its code for `struct`, its bytes, and the number of its size in pointers of lists."""

    code: str
    size: int
    list_size: int


NUMBERS = {
    "uint8": _Number("B", 1, 2),
    "uint16": _Number("H", 2, 3),
    "int32": _Number("i", 4, 4),
    "uint32": _Number("I", 4, 4),
    "payloads": _Number("I", 4, 4),
    "int64": _Number("q", 8, 5),
    "uint64": _Number("Q", 8, 5),
    "float64": _Number("d", 8, 5),
}


# --- writing --------------------------------------------------------------------------------------------------------


def message(root: int, body: Sequence[bytes]) -> bytes:
    """A message of one segment in stream framing: the root pointer is followed by the content that it points to."""
    words = 1 + sum(map(len, body)) // 8
    return b"".join((_START.pack(0, words, root), *body))


def data_section(numbers: Sequence[tuple[str, int]], words: int) -> struct.Struct:
    """A packer of the numbers of a data section, given by type and offset in bits, in the order of their offsets."""
    codes, end = ["<"], 0
    for kind, place in numbers:
        code, size, _ = NUMBERS[kind]
        codes.append(f"{place // 8 - end}x{code}")
        end = place // 8 + size
    return struct.Struct("".join((*codes, f"{8 * words - end}x")))


def struct_pointer(words: int, pointers: int) -> int:
    """A pointer to the struct that follows it at once."""
    return words << 32 | pointers << 48 if words or pointers else _EMPTY_STRUCT


UNION = struct_pointer(1, 1)
"""The pointer to a struct that is a union of structs."""


def _write_bytes(value: Any) -> Written:
    if isinstance(value, str):
        raise TypeError("text where bytes are expected")
    written = b"".join((value,))  # of any buffer; bytes are not copied
    length = len(written)
    return _LIST | _BYTES_LIST << 32 | length << 35, written + _PADDING[length & 7] if length & 7 else written


def _write_text(value: str) -> Written:
    return _write_bytes(value.encode() + b"\0")


def write_blobs(write: Write) -> Write:
    """Writes a list of what `write` writes."""

    def write_list(values: Sequence[Any]) -> Written:
        count = len(values)
        table, parts, after = [], [b""], count - 1
        for value in values:
            pointer, part = write(value)
            table.append(pointer | after << OFFSET_SHIFT)
            parts.append(part)
            after += len(part) // 8 - 1
        parts[0] = _list_of(count, "Q").pack(*table)
        return _LIST | _POINTERS_LIST << 32 | count << 35, b"".join(parts)

    return write_list


@lru_cache(4096)
def _list_of(count: int, code: str) -> struct.Struct:
    """A packer of so many numbers; the cache of `struct` is emptied whenever it holds 100."""
    return struct.Struct(f"<{count}{code}")


def _write_numbers(number: _Number) -> Write:
    code, _, list_size = number

    def write_list(values: Sequence[Any]) -> Written:
        count = len(values)
        packed = _list_of(count, code).pack(*values)
        if gap := len(packed) & 7:
            packed += _PADDING[gap]
        return _LIST | list_size << 32 | count << 35, packed

    return write_list


def _write_flags(values: Sequence[Any]) -> Written:
    count = len(values)
    packed = bytearray((count + 63) // 64 * 8)
    for position, value in enumerate(values):
        packed[position >> 3] |= flag(value) << (position & 7)
    return _LIST | _BITS_LIST << 32 | count << 35, bytes(packed)


def flag(value: Any) -> bool:
    """A boolean; raises TypeError for any other value."""
    if value not in (True, False):
        raise TypeError(f"{value!r} is neither True nor False")
    return bool(value)


# --- reading --------------------------------------------------------------------------------------------------------


class Reader:
    """Reads a message in stream framing; its methods raise MalformedMessageError.

    A place is a position in `frame` and the number of the segment that it is in. `allowance` is how many bytes it still
    gives out, and `is_whole` whether there is one segment.
    """

    __slots__ = ("_segments", "allowance", "frame", "is_whole")

    def __init__(self, frame: bytes) -> None:
        length = len(frame)
        self.frame = frame
        self.allowance = _AMPLIFICATION * length + _EXTRA_BYTES
        usual = length >= 8 and frame[:4] == b"\0\0\0\0" and _TWO_NUMBERS.unpack_from(frame)[1] == length // 8 - 1
        self._segments = [(8, length)] if usual and not length & 7 else _segments(frame)
        self.is_whole = len(self._segments) == 1

    def member(self) -> tuple[int, tuple[int, int, int, int]]:
        """Of a root struct that is a union of structs: the number of the member, and the place of its struct."""
        frame = self.frame
        if len(frame) >= _USUAL.size:
            table, root, number, pointer = _USUAL.unpack_from(frame)
            if root == UNION and not table & 0xFFFF_FFFF and number < 1 << 16 and not pointer & 0xFFFF_FFFF:
                words, pointers = pointer >> 32 & 0xFFFF, pointer >> 48
                self._claim(_USUAL.size, _USUAL.size + 8 * (words + pointers), 0)
                return number, (_USUAL.size, 0, words, pointers)
        at, segment, words, pointers = self.root()
        place = at + 8 * words
        number = int.from_bytes(frame[at : at + 2], "little") if words else 0
        return number, self.struct(self.pointers(place, 1)[0] if pointers else 0, place, segment)

    def root(self) -> tuple[int, int, int, int]:
        """The place of the root struct, and the sizes of its sections, as `struct` has them."""
        at, end = self._segments[0]
        if end - at < 8:
            raise MalformedMessageError("not a message: no root pointer")
        return self.struct(_WORD.unpack_from(self.frame, at)[0], at, 0)

    def struct(self, pointer: int, at: int, segment: int) -> tuple[int, int, int, int]:
        """Follow the pointer that is at this place: the place of the struct, its words of data and its pointers."""
        if not pointer:
            return at, segment, 0, 0
        start = at + 8
        if pointer & 0xFFFF_FFFF:  # it is not there
            pointer, start, segment = self._follow(pointer, at, segment)
        if pointer & 3:
            raise MalformedMessageError("not a message: no struct where one is expected")
        words, pointers = pointer >> 32 & 0xFFFF, pointer >> 48
        self._claim(start, start + 8 * (words + pointers), segment)
        return start, segment, words, pointers

    def pointers(self, at: int, count: int) -> tuple[int, ...]:
        """The words of a table of pointers that was claimed with its struct or list."""
        return _list_of(count, "Q").unpack_from(self.frame, at)

    def list(self, pointer: int, at: int, segment: int, list_size: int, size: int) -> tuple[int, int, int]:
        """Follow a pointer to a list of entries of `size` bytes: where it begins, its segment, and its entries."""
        if pointer & 0x8000_0003 == _LIST:  # in this segment, and further on
            start = at + 8 + ((pointer & 0x7FFF_FFFC) << 1)
        else:
            pointer, start, segment = self._follow(pointer, at, segment)
        if pointer & 3 != _LIST or pointer >> 32 & 7 != list_size:
            raise MalformedMessageError("not a message: no list of the expected type")
        count = pointer >> 35
        end = start + (count * size if size else (count + 7) // 8)
        first, last = self._segments[segment]
        self.allowance -= (end - start) or 8  # as _claim does
        if not first <= start <= end <= last or self.allowance < 0:
            self._claim(start, end, segment)
        return start, segment, count

    def blobs(self, pointer: int, at: int, segment: int) -> Iterator[tuple[int, int]]:
        """Follow a pointer to a list of texts or bytes: start and end of each; (0, 0) for a null pointer."""
        place, segment, count = self.list(pointer, at, segment, _POINTERS_LIST, 8)
        _, last = self._segments[segment]
        for entry in self.pointers(place, count):
            if entry & 0x7_8000_0003 == _LIST | _BYTES_LIST << 32:  # in this segment, and further on
                start = place + 8 + ((entry & 0x7FFF_FFFC) << 1)
                end = start + (entry >> 35)
                self.allowance -= (end - start) or 8  # as _claim does
                if end > last or self.allowance < 0:
                    self._claim(start, end, segment)
                yield start, end
            elif entry:
                start, _, length = self.list(entry, place, segment, _BYTES_LIST, 1)
                yield start, start + length
            else:
                yield 0, 0
            place += 8

    def _follow(self, pointer: int, at: int, segment: int) -> tuple[int, int, int]:
        """Resolve a far pointer; returns the pointer with type and size, and the place of the content."""
        if pointer & 3 == _FAR:
            at, segment = self._landing_pad(pointer)
            double = pointer & 4
            pointer = _WORD.unpack_from(self.frame, at)[0]
            if double:
                if pointer & 7 != _FAR:
                    raise MalformedMessageError("not a message: no pointer where a far pointer leads")
                tag = _WORD.unpack_from(self.frame, at + 8)[0]
                start, segment = self._far_place(pointer)
                return tag, start, segment
            if pointer & 3 == _FAR:
                raise MalformedMessageError("not a message: a far pointer leads to another one")
        offset = (pointer & 0xFFFF_FFFC) << 1
        return pointer, at + 8 + (offset - (1 << 33) if offset >> 32 else offset), segment

    def _landing_pad(self, pointer: int) -> tuple[int, int]:
        at, segment = self._far_place(pointer)
        self._claim(at, at + (16 if pointer & 4 else 8), segment)
        return at, segment

    def _far_place(self, pointer: int) -> tuple[int, int]:
        segment = pointer >> 32
        if segment >= len(self._segments):
            raise MalformedMessageError(f"not a message: no segment {segment}")
        return self._segments[segment][0] + (pointer & 0xFFFF_FFF8), segment

    def _claim(self, start: int, end: int, segment: int) -> None:
        first, last = self._segments[segment]
        if not first <= start <= end <= last:
            raise MalformedMessageError("not a message: a pointer leads out of its segment")
        # Each list counts as at least one word, so that many pointers to nothing are not free.
        self.allowance -= (end - start) or 8
        if self.allowance < 0:
            raise MalformedMessageError("not a message: exceeds the traversal limit")


def is_far(pointer: int) -> bool:
    """Whether it leads to another pointer."""
    return pointer & 3 == _FAR


def _segments(frame: bytes) -> list[tuple[int, int]]:
    """Start and end of the segments in stream framing: a table of sizes, then the segments."""
    if len(frame) < _TWO_NUMBERS.size:
        raise MalformedMessageError(f"not a message: {len(frame)} bytes")
    more, _ = _TWO_NUMBERS.unpack_from(frame)
    at = 8 * ((more + 1) // 2 + 1)
    if more >= _MOST_SEGMENTS or len(frame) < at:
        raise MalformedMessageError(f"not a message: {more + 1} segments in {len(frame)} bytes")
    segments = []
    for size in struct.unpack_from(f"<{more + 1}I", frame, 4):
        segments.append((at, at + 8 * size))
        at += 8 * size
    if at != len(frame):
        raise MalformedMessageError(f"not a message: segments of {at} bytes in {len(frame)}")
    return segments


def _take_bytes(frame: bytes, start: int, count: int) -> bytes:
    return frame[start : start + count]


def _take_text(frame: bytes, start: int, count: int) -> str:
    return _text(frame[start : start + count])


def _text(written: bytes) -> str:
    if written[-1:] != b"\0":
        raise MalformedMessageError("not a message: a text does not end with a zero byte")
    return written[:-1].decode()


def _read_texts(reader: Reader, pointer: int, at: int, segment: int) -> tuple[str, ...]:
    frame = reader.frame
    return tuple([_text(frame[start:end]) if end else "" for start, end in reader.blobs(pointer, at, segment)])


def _read_data(reader: Reader, pointer: int, at: int, segment: int) -> tuple[bytes, ...]:
    frame = reader.frame
    return tuple([frame[start:end] for start, end in reader.blobs(pointer, at, segment)])


def _take_numbers(number: _Number) -> Take:
    code = number.code

    def take_list(frame: bytes, start: int, count: int) -> tuple[Any, ...]:
        return _list_of(count, code).unpack_from(frame, start)

    return take_list


def _take_flags(frame: bytes, start: int, count: int) -> tuple[bool, ...]:
    return tuple(bool(frame[start + (position >> 3)] >> (position & 7) & 1) for position in range(count))


class Plain(NamedTuple):
    """A type of list without pointers."""

    write: Write
    list_size: int
    """The number of the size of its entries in pointers."""
    size: int
    """Bytes of an entry, 0 for a bit."""
    take: Take


BLOBS = {
    "text": Plain(_write_text, _BYTES_LIST, 1, _take_text),
    "data": Plain(_write_bytes, _BYTES_LIST, 1, _take_bytes),
}
"""Texts and bytes."""

LISTS = {
    "bool": Plain(_write_flags, _BITS_LIST, 0, _take_flags),
    **{
        name: Plain(_write_numbers(each), each.list_size, each.size, _take_numbers(each))
        for name, each in NUMBERS.items()
    },
}
"""Lists of booleans and numbers, by the type of their entries."""

BLOB_LISTS: dict[str, tuple[Write, Read]] = {
    "text": (write_blobs(_write_text), _read_texts),
    "data": (write_blobs(_write_bytes), _read_data),
}
"""Lists of texts and bytes."""
