"""Kinds of limits: ranges of numbers, lengths of texts, bytes and columns, and relations between columns."""

from __future__ import annotations

import math
import numbers
import reprlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from scaler_protocol.byte_planes import fault_of_planes
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.profiles import LONGEST_RUN_US, PROFILE, has_endless_run


class Limit(ABC):
    """The set of allowed values of a field."""

    @property
    @abstractmethod
    def span(self) -> str:
        """The range or length, as docs/protocol.md writes it."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The allowed values in words; error texts put it after "not"."""

    @abstractmethod
    def fault(self, value: Any) -> str:
        """Return the error text for a value of any type, without the name of its field; "" if it is allowed."""

    @abstractmethod
    def fits(self, value: Any) -> bool:
        """Whether a value of the right type is allowed."""

    def all_fit(self, column: Sequence[Any]) -> bool:
        """Whether all values of a column that is not empty are allowed."""
        return all(map(self.fits, column))


@dataclass(frozen=True, slots=True)
class Whole(Limit):
    """A whole number of any integral type, including those of numpy."""

    least: int
    most: int

    @property
    def span(self) -> str:
        return f"{self.least:,} to {self.most:,}"

    @property
    def text(self) -> str:
        return f"a whole number from {self.span}"

    def fault(self, value: Any) -> str:
        whole = isinstance(value, numbers.Integral)
        return "" if whole and self.fits(value) else f"is {shown(value)}, not {self.text}"

    def fits(self, value: Any) -> bool:
        return bool(self.least <= value <= self.most)

    def all_fit(self, column: Sequence[int]) -> bool:
        # A column whose minimum is 0 has an unsigned type, so that its entries need no check.
        return max(column) <= self.most and (not self.least or self.least <= min(column))


@dataclass(frozen=True, slots=True)
class Real(Limit):
    """A number whose square is finite, too; neither NaN nor infinite."""

    least: float = -1e30
    most: float = 1e30

    @property
    def span(self) -> str:
        return f"{self.least:g} to {self.most:g}" if self.most >= 1e15 else f"{self.least:g} to {self.most:,.0f}"

    @property
    def text(self) -> str:
        return f"a number from {self.span}"

    def fault(self, value: Any) -> str:
        real = isinstance(value, numbers.Real)
        return "" if real and self.fits(value) else f"is {shown(value)}, not {self.text}"

    def fits(self, value: Any) -> bool:
        try:
            return math.isfinite(value) and self.least <= value <= self.most
        except OverflowError:  # a whole number beyond the range of floats
            return False

    def all_fit(self, column: Sequence[float]) -> bool:
        # A sum is finite only if all its numbers are. That of great numbers may not be, although they are.
        try:
            if math.isfinite(sum(column, 0.0)):
                return self.least <= min(column) and max(column) <= self.most
        except OverflowError:  # a whole number beyond the range of floats
            return False
        return all(map(self.fits, column))


@dataclass(frozen=True, slots=True)
class AnyOf(Limit):
    """One of a few numbers."""

    values: frozenset[int]

    @property
    def span(self) -> str:
        return ", ".join(map(str, sorted(self.values)))

    @property
    def text(self) -> str:
        return f"one of {self.span}"

    def fault(self, value: Any) -> str:
        whole = isinstance(value, numbers.Integral)
        return "" if whole and self.fits(value) else f"is {shown(value)}, not {self.text}"

    def fits(self, value: Any) -> bool:
        return value in self.values

    def all_fit(self, column: Sequence[int]) -> bool:
        return self.values.issuperset(column)


@dataclass(frozen=True, slots=True)
class Text(Limit):
    """A text of `least` to `most` bytes of UTF-8, without surrogates.

    With `without` all its characters can be printed, none of them is in `without`, and it neither begins nor ends with
    a space.
    """

    most: int
    least: int = 0
    without: str = ""

    @property
    def span(self) -> str:
        return self._size + self._manner

    @property
    def text(self) -> str:
        return f"a text of {self._size} of UTF-8{self._manner}"

    @property
    def _size(self) -> str:
        return f"{self.least:,} to {self.most:,} bytes" if self.least else f"at most {self.most:,} bytes"

    @property
    def _manner(self) -> str:
        return f", printable, without {' '.join(self.without)}" if self.without else ""

    def fault(self, value: Any) -> str:
        if not isinstance(value, str):
            return f"is {shown(value)}, not {self.text}"
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            return f"is {shown(value)}, which UTF-8 cannot write: it holds a surrogate"
        if not self.least <= size <= self.most:
            return f"is {shown(value)} of {size:,} bytes, not {self.text}"
        return "" if not self.without or self._is_plain(value) else f"is {shown(value)}, not {self.text}"

    def _is_plain(self, value: str) -> bool:
        return value.isprintable() and value.strip() == value and not any(each in value for each in self.without)

    def fits(self, value: str) -> bool:
        if not isinstance(value, str) or len(value) < self.least or (self.without and not self._is_plain(value)):
            return False  # Cap'n Proto would write bytes as text
        return 4 * len(value) <= self.most or len(value.encode()) <= self.most


@dataclass(frozen=True, slots=True)
class Bytes(Limit):
    """A length from `least` to `most` bytes, or also 0 if `optional`."""

    least: int
    most: int
    optional: bool = False

    @property
    def span(self) -> str:
        size = f"{self.least:,}" if self.least == self.most else f"{self.least:,} to {self.most:,}"
        if not self.least:
            size = f"at most {self.most:,}"
        return f"0 or {size} bytes" if self.optional else f"{size} bytes"

    @property
    def text(self) -> str:
        return self.span

    def fault(self, value: Any) -> str:
        if not isinstance(value, bytes | bytearray | memoryview):
            return f"is {shown(value)}, not {self.text}"
        return "" if self.fits(value) else f"is {shown(value)} of {len(value):,} bytes, not {self.text}"

    def fits(self, value: Any) -> bool:
        if isinstance(value, str):
            return False  # Cap'n Proto would write text as bytes
        return self.least <= len(value) <= self.most or (self.optional and not len(value))


@dataclass(frozen=True, slots=True)
class Flag(Limit):
    """True or false."""

    span = "true, false"
    text = "True or False"

    def fault(self, value: Any) -> str:
        return "" if self.fits(value) else f"is {shown(value)}, not {self.text}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Anything(Limit):
    """Any value: the fields of a Group are checked separately."""

    span = text = "as said there"

    def fault(self, value: Any) -> str:
        return ""

    def fits(self, value: Any) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Column(Limit):
    """At most `most` entries within the limit `each`; `each_fits` if their type alone ensures that."""

    each: Limit
    most: int
    each_fits: bool = False

    @property
    def span(self) -> str:
        return f"{self.each.span}; at most {self.most:,} entries"

    @property
    def text(self) -> str:
        return f"a column of at most {self.most:,} entries"

    def fault(self, value: Any) -> str:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            return f"is {shown(value)}, not {self.text}"
        if len(value) > self.most:
            return f"has {len(value):,} entries, at most {self.most:,} are allowed"
        for position, entry in enumerate(value):
            if fault := self.each.fault(entry):
                return f"[{position}] {fault}"
        return ""

    def fits(self, value: Any) -> bool:
        return len(value) <= self.most and (self.each_fits or not value or self.each.all_fit(value))


def shown(value: Any) -> str:
    """The repr of a value for an error text; long ones are cut off."""
    try:
        return reprlib.repr(value)
    except Exception:  # the repr of a user's class may raise anything
        return f"<{type(value).__name__}>"


# --- between columns -----------------------------------------------------------------------------------------------


class Relation(ABC):
    """A condition between the columns of a message."""

    column: str

    @abstractmethod
    def fault(self, message: Any) -> str:
        """Return the error text without the name of `column`, which is not empty; "" if the condition holds."""


@dataclass(frozen=True, slots=True)
class Positions(Relation):
    """A sparse column: each entry is a position in column `of`, in any order."""

    column: str
    of: str

    def fault(self, message: Any) -> str:
        last, count = max(getattr(message, self.column)), len(getattr(message, self.of))
        return "" if last < count else f"names position {last:,} of {self.of}, which has {count:,} entries"


@dataclass(frozen=True, slots=True)
class Grouped(Relation):
    """A message with tasks has at least one group."""

    column: str = "tasks"

    def fault(self, message: Any) -> str:
        return "" if message.groups else "is not empty, but groups is"


@dataclass(frozen=True, slots=True)
class Distinct(Relation):
    """No two entries are equal."""

    column: str

    def fault(self, message: Any) -> str:
        entries = getattr(message, self.column)
        if len(entries) == 1 or len(set(entries)) == len(entries):
            return ""
        (twice, _), *_ = Counter(entries).most_common(1)
        return f"holds {twice!r} more than once"


@dataclass(frozen=True, slots=True)
class Profiles(Relation):
    """Bytes that are profiles of possible runs, one for each entry of `of`, or none."""

    column: str
    of: str

    def fault(self, message: Any) -> str:
        profiles, count = getattr(message, self.column), len(getattr(message, self.of))
        if len(profiles) != PROFILE.size * count:
            return f"has {len(profiles):,} bytes, not {PROFILE.size} for each of {count:,} {self.of}"
        return f"has a run of more than {LONGEST_RUN_US:,} microseconds" if has_endless_run(profiles) else ""


@dataclass(frozen=True, slots=True)
class Ends(Relation):
    """Increasing positions that cut column `of` into pieces: of each piece the position after its last entry."""

    column: str
    of: str

    def fault(self, message: Any) -> str:
        ends, size = getattr(message, self.column), len(getattr(message, self.of))
        if ends[-1] == size and all(end < following for end, following in pairwise((0, *ends))):
            return ""
        return f"does not increase from 1 or more to the {size:,} entries of {self.of}"


@dataclass(frozen=True, slots=True)
class Planes(Relation):
    """Bytes that are byte planes of records of `size` bytes, or none."""

    column: str
    size: int

    def fault(self, message: Any) -> str:
        return fault_of_planes(getattr(message, self.column), self.size)


@dataclass(frozen=True, slots=True)
class Acyclic(Relation):
    """No task needs itself, and a task of a graph needs only tasks of that graph that have smaller ids."""

    column: str = "needs"

    def fault(self, message: Any) -> str:
        tasks, end = message.tasks, message.graph + message.graph_size
        for position, need in zip(message.dependents, message.needs, strict=True):
            task = tasks[position]
            if need == task or (need > task and message.graph <= need < end):
                return f"names task {need:#x}, which is not before task {task:#x}, which needs it"
        return ""
