"""The structs of messages.capnp, and where Cap'n Proto puts their fields.

This module reads the part of the schema language that messages.capnp uses: structs whose fields are numbers, booleans,
texts, bytes and lists of these, and one struct that is a union. Each struct is laid out when it is needed first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_FILE = Path(__file__).with_name("messages.capnp")
_COMMENT = re.compile(r"#.*")
_STRUCT = re.compile(r"^struct (\w+) \{((?:[^{}]|\{[^{}]*\})*)\}", re.MULTILINE)
_FIELD = re.compile(r"(\w+) @(\d+) :(List\()?(\w+)\)?;")
_PAYLOADS = "Lengths"
_BITS = {"bool": 1, "uint8": 8, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64, "uint64": 64, "float64": 64}
_WORD_BITS = 64


class Field(NamedTuple):
    """A field of a struct."""

    name: str
    attribute: str
    """The attribute of the message class: `task_groups` for `taskGroups`, `calls` for `callsLengths`."""
    kind: str
    """`uint8` to `float64`, `bool`, `text` or `data`, also of the entries of a list; `payloads` for lengths of them."""
    is_list: bool
    place: int
    """The offset in bits in the data section, or the index of the pointer."""

    @property
    def is_pointer(self) -> bool:
        """Whether the struct has a pointer to the value."""
        return self.is_list or self.kind not in _BITS


class Struct(NamedTuple):
    """A struct; its data section has `words` of 8 bytes, and `pointers` follow."""

    name: str
    fields: tuple[Field, ...]
    words: int
    pointers: int


@lru_cache(None)
def _bodies() -> dict[str, str]:
    """The text of each struct of the file."""
    text = _COMMENT.sub("", _FILE.read_text(encoding="utf-8"))
    return {found[1]: found[2] for found in _STRUCT.finditer(text)}


@lru_cache(None)
def union() -> tuple[str, ...]:
    """The types of messages in the order of their numbers in the union `Message`."""
    members = sorted((int(number), kind) for _, number, _, kind in _FIELD.findall(_bodies()["Message"]))
    return tuple(kind for _, kind in members)


@lru_cache(None)
def struct(name: str) -> Struct:
    """The struct of this name, with its fields in the order of their numbers."""
    found = sorted(_FIELD.findall(_bodies()[name]), key=lambda each: int(each[1]))
    data = _DataSection()
    fields = tuple(_placed([(field, kind.lower(), bool(listed)) for field, _, listed, kind in found], data))
    return Struct(name, fields, data.words, sum(field.is_pointer for field in fields))


def _placed(found: list[tuple[str, str, bool]], data: _DataSection) -> Iterator[Field]:
    pointers = 0
    for name, kind, is_list in found:
        is_payload = name.endswith(_PAYLOADS)
        field = Field(name, _snake(name.removesuffix(_PAYLOADS)), "payloads" if is_payload else kind, is_list, pointers)
        if field.is_pointer:
            pointers += 1
            yield field
        else:
            yield field._replace(place=data.allocate(_BITS[kind]))


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", lambda match: "_" + match[1].lower(), name)


class _DataSection:
    """Offsets of numbers: each goes into the smallest gap that earlier ones have left, or else into a new word.

    A number of N bits lies at a multiple of N bits, so what it leaves of a word is one gap of each power of two.
    """

    def __init__(self) -> None:
        self.words = 0
        self._gaps: dict[int, int] = {}
        """The offset of the gap of each size, both in bits: there is at most one of each."""

    def allocate(self, bits: int) -> int:
        size = min((size for size in self._gaps if size >= bits), default=_WORD_BITS)
        at = self._gaps.pop(size) if size < _WORD_BITS else self._new_word()
        while size > bits:
            size //= 2
            self._gaps[size] = at + size
        return at

    def _new_word(self) -> int:
        self.words += 1
        return (self.words - 1) * _WORD_BITS
