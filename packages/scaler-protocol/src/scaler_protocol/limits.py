"""Limits: what each field of each message may hold, checked by the codec at both ends of a connection.

`FIELDS` is the table. A field that is not in it may hold whatever its type in the schema can (see `DEFAULTS`).
`RELATIONS` says what must hold between the columns of a message, `COLUMNS` of the message classes apart. Callers check
values with the same limits where those enter: `limits.PRIORITY.fault(priority)` says what is wrong with one, or "".
"""

from __future__ import annotations

import math
import numbers
import reprlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scaler_protocol.handshake import Role
from scaler_protocol.monitoring import PACKED_BATCH, PACKED_TASK
from scaler_protocol.profiles import PROFILE


class Limit(ABC):
    """What a value may be."""

    @property
    @abstractmethod
    def span(self) -> str:
        """The range or length alone, as docs/protocol.md writes it."""

    @property
    @abstractmethod
    def text(self) -> str:
        """What is allowed, in words that follow "not"."""

    @abstractmethod
    def fault(self, value: Any) -> str:
        """What is wrong with a value of any type, in words that follow the name of its field; "" if it is allowed."""

    @abstractmethod
    def fits(self, value: Any) -> bool:
        """Whether a value is allowed that has the right type already."""

    def all_fit(self, column: Sequence[Any]) -> bool:
        """Whether all values of a column, which is not empty, are allowed."""
        return all(map(self.fits, column))


@dataclass(frozen=True, slots=True)
class Whole(Limit):
    """A whole number of any integral type, as numpy's."""

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
        return "" if whole and self.fits(value) else f"is {_shown(value)}, not {self.text}"

    def fits(self, value: Any) -> bool:
        return bool(self.least <= value <= self.most)

    def all_fit(self, column: Sequence[int]) -> bool:
        # Columns that may hold 0 and nothing below are of unsigned types.
        return max(column) <= self.most and (not self.least or self.least <= min(column))


@dataclass(frozen=True, slots=True)
class Real(Limit):
    """A number that is finite: neither NaN nor infinite."""

    least: float = -math.inf
    most: float = math.inf

    @property
    def span(self) -> str:
        return "finite" if self.most == math.inf else f"{self.least:g} to {self.most:,.0f}"

    @property
    def text(self) -> str:
        return "a finite number" if self.most == math.inf else f"a number from {self.span}"

    def fault(self, value: Any) -> str:
        real = isinstance(value, numbers.Real)
        return "" if real and self.fits(value) else f"is {_shown(value)}, not {self.text}"

    def fits(self, value: Any) -> bool:
        try:
            return math.isfinite(value) and self.least <= value <= self.most
        except OverflowError:  # a whole number that no float can hold
            return False


@dataclass(frozen=True, slots=True)
class OneOf(Limit):
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
        return "" if whole and self.fits(value) else f"is {_shown(value)}, not {self.text}"

    def fits(self, value: Any) -> bool:
        return value in self.values

    def all_fit(self, column: Sequence[int]) -> bool:
        return self.values.issuperset(column)


@dataclass(frozen=True, slots=True)
class Text(Limit):
    """A text that UTF-8 can write (surrogates are none), of so many bytes."""

    most: int
    least: int = 0

    @property
    def span(self) -> str:
        return f"{self.least:,} to {self.most:,} bytes" if self.least else f"at most {self.most:,} bytes"

    @property
    def text(self) -> str:
        return f"a text of {self.span} of UTF-8"

    def fault(self, value: Any) -> str:
        if not isinstance(value, str):
            return f"is {_shown(value)}, not {self.text}"
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            return f"is {_shown(value)}, which UTF-8 can not write: it holds a surrogate"
        return "" if self.least <= size <= self.most else f"is {_shown(value)} of {size:,} bytes, not {self.text}"

    def fits(self, value: str) -> bool:
        if not isinstance(value, str) or len(value) < self.least:
            return False  # Cap'n Proto would write bytes as a text
        return 4 * len(value) <= self.most or len(value.encode()) <= self.most


@dataclass(frozen=True, slots=True)
class Bytes(Limit):
    """So many bytes, or none at all where `optional`."""

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
            return f"is {_shown(value)}, not {self.text}"
        return "" if self.fits(value) else f"is {_shown(value)} of {len(value):,} bytes, not {self.text}"

    def fits(self, value: Any) -> bool:
        if isinstance(value, str):
            return False  # Cap'n Proto would write a text as bytes
        return self.least <= len(value) <= self.most or (self.optional and not len(value))


@dataclass(frozen=True, slots=True)
class Flag(Limit):
    """True or false."""

    span = "true, false"
    text = "True or False"

    def fault(self, value: Any) -> str:
        return "" if self.fits(value) else f"is {_shown(value)}, not {self.text}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Anything(Limit):
    """What another check looks at: a Group."""

    span = text = "as said there"

    def fault(self, value: Any) -> str:
        return ""

    def fits(self, value: Any) -> bool:
        return True

    def all_fit(self, column: Sequence[Any]) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Column(Limit):
    """At most so many entries, of which each has a limit; where their type alone keeps it, `each_fits` is set."""

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
            return f"is {_shown(value)}, not {self.text}"
        if len(value) > self.most:
            return f"has {len(value):,} entries, at most {self.most:,} are allowed"
        for position, entry in enumerate(value):
            if fault := self.each.fault(entry):
                return f"[{position}] {fault}"
        return ""

    def fits(self, value: Any) -> bool:
        return len(value) <= self.most and (self.each_fits or not value or self.each.all_fit(value))


def _shown(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except Exception:  # the repr of a user's own type may do anything
        return f"<{type(value).__name__}>"


# --- values that several fields, and callers, have in common ---------------------------------------------------------

ENTRIES: Final = 2**24
"""Entries of a column, unless something else is said."""
ID: Final = Bytes(16, 16)
"""Of a function, an object or a process."""
NAME: Final = Text(4096)
"""Of a function, a worker or a host."""
WORDS: Final = Text(65_536)
"""What people read; see `shortened`."""
PRIORITY: Final = Whole(-(2**31), 2**31 - 1)
RETRIES: Final = Whole(0, 2**16 - 1)
SECONDS: Final = Real(0.0, 1e9)
"""A timeout or an interval; 1e9 is about 31 years."""
CAPABILITY_NAME: Final = Text(256, least=1)
CAPABILITY_VALUE: Final = Whole(-1, 2**63 - 1)
CAPABILITIES: Final = 256
"""Capabilities of a task or an agent."""
FUNCTIONS: Final = 2**16
"""Groups, or functions, in one message; positions of groups have 16 bits."""
WORKERS: Final = Whole(0, 2**16 - 1)
"""Of one agent."""
SIZE: Final = Whole(0, 2**63 - 1)
"""Bytes of an object, or a position in it: what a file can have."""

_FIGURES: Final = Text(2**17)
"""Capabilities of a task or an agent as monitors are told: all of them in one text."""
_IDS: Final = Column(ID, ENTRIES)
_FUNCTION_IDS: Final = Column(ID, FUNCTIONS)
_FUNCTION_NAMES: Final = Column(NAME, FUNCTIONS)
_NAMES: Final = Column(NAME, ENTRIES)
_STATUSES: Final = Column(Whole(0, 4), ENTRIES)
_STATES: Final = Column(Whole(0, 5), ENTRIES)
_GROUPS: Final = Column(Anything(), FUNCTIONS)
_SIZES: Final = Column(SIZE, ENTRIES)
_CAPABILITIES: Final = {
    "capability_names": Column(CAPABILITY_NAME, CAPABILITIES),
    "capability_values": Column(CAPABILITY_VALUE, CAPABILITIES),
}
_CODE: Final = {"functions": _FUNCTION_IDS, "names": _FUNCTION_NAMES}

DEFAULTS: Final[Mapping[str, Limit]] = {
    **{f"uint{bits}": Whole(0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    **{f"int{bits}": Whole(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (32, 64)},
    "float64": Real(),
    "bool": Flag(),
    "text": WORDS,
    "data": Bytes(0, 2**28),
    "payloads": Bytes(0, 2**32 - 1),
}
"""By type in the schema; a column holds at most ENTRIES of them."""

KEPT_BY_TYPE: Final = frozenset({"uint8", "uint16", "uint32", "uint64", "int32", "int64", "bool", "payloads"})
"""Types that can not hold anything outside of their default limit."""

FIELDS: Final[Mapping[str, Mapping[str, Limit]]] = {
    "Group": {
        "function": ID,
        **_CAPABILITIES,
        "retries": RETRIES,
        "timeout_seconds": SECONDS,
        "encoding": Whole(0, 2),
        "serializer": Bytes(16, 16, optional=True),
        "stream_output": Whole(0, 2),
    },
    "Hello": {
        "role": OneOf(frozenset({Role.CLIENT, Role.AGENT, Role.OPERATOR})),
        "identity": ID,
        "name": NAME,
        "host": NAME,
        "software": NAME,
        "python": Text(64),
        "cloudpickle": Text(64),
        "workers": WORKERS,
        "queue_size": Whole(0, 2**16 - 1),
        **_CAPABILITIES,
        "session_key": Bytes(0, 64),
    },
    "Welcome": {
        "heartbeat_seconds": SECONDS,
        "timeout_seconds": SECONDS,
        "storage_address": NAME,
        "monitor_address": NAME,
        "segment_directory": NAME,
    },
    "Refused": {"reasons": Column(WORDS, 64)},
    "Submit": {"groups": _GROUPS, **_CODE},
    "Run": {"groups": _GROUPS, **_CODE},
    "Done": {"statuses": _STATUSES, "worker": NAME},
    "NeedFunctions": {"functions": _FUNCTION_IDS},
    "Functions": _CODE,
    "Inputs": {"statuses": _STATUSES},
    "Output": {"streams": Column(OneOf(frozenset({1, 2})), ENTRIES)},
    "AgentStatus": {
        "cpu": Real(0.0, 1e9),
        "names": Column(NAME, WORKERS.most),
        "states": _STATES,
        "cpus": Column(Real(0.0, 1e9), ENTRIES),
    },
    "Resized": {"workers": WORKERS},
    "PutObject": {"object": ID, "size": SIZE, "offset": SIZE, "parts": Column(Bytes(0, 2**20), 1)},
    "GetObject": {"object": ID, "offset": SIZE},
    "DeleteObjects": {"objects": _IDS},
    "ObjectStored": {"object": ID},
    "ObjectList": {"objects": _IDS},
    "ObjectPart": {"object": ID, "size": SIZE, "offset": SIZE, "parts": Column(Bytes(0, 2**20), 1)},
    "HostProof": {"token": Bytes(0, 64), "life": Text(64)},
    "AllocateObject": {"object": ID, "size": SIZE},
    "ObjectAllocated": {"object": ID, "segment": NAME},
    "SealObject": {"object": ID, "segment": NAME},
    "MapObject": {"object": ID, "size": SIZE},
    "ObjectMapped": {"object": ID, "segment": NAME},
    "SpeakForHost": {"host": Bytes(16, 64)},
    "HoldObject": {"object": ID, "size": SIZE, "host": Bytes(16, 64)},
    "BringObject": {"object": ID, "size": SIZE},
    "DropObjects": {"objects": _IDS, "sizes": _SIZES},
    "MonitorStatus": {
        "address": NAME,
        "client_names": _NAMES,
        "client_hosts": _NAMES,
        "agent_names": _NAMES,
        "agent_hosts": _NAMES,
        "agent_capabilities": Column(_FIGURES, ENTRIES),
        "worker_names": _NAMES,
        "worker_states": _STATES,
        "function_names": _NAMES,
    },
    "TaskEvents": {
        "group_functions": _NAMES,
        "group_needs": Column(_FIGURES, ENTRIES),
        "text_levels": Column(OneOf(frozenset({10, 20, 30, 40, 50})), ENTRIES),
    },
}


# --- what must hold between columns ----------------------------------------------------------------------------------


class Relation(ABC):
    """What holds between the columns of a message."""

    column: str

    @abstractmethod
    def fault(self, message: Any) -> str:
        """What is wrong, in words that follow the name of `column`, which is not empty; "" if nothing is."""


@dataclass(frozen=True, slots=True)
class Positions(Relation):
    """A sparse column: positions of another column, in any order."""

    column: str
    of: str

    def fault(self, message: Any) -> str:
        last, count = max(getattr(message, self.column)), len(getattr(message, self.of))
        return "" if last < count else f"names position {last:,} of {self.of}, which has {count:,} entries"


@dataclass(frozen=True, slots=True)
class Grouped(Relation):
    """Tasks without `task_groups` are in group 0, which has to be there."""

    column: str = "tasks"

    def fault(self, message: Any) -> str:
        return "" if message.groups else "is not empty, but groups is"


@dataclass(frozen=True, slots=True)
class Distinct(Relation):
    """No entry stands twice."""

    column: str

    def fault(self, message: Any) -> str:
        entries = getattr(message, self.column)
        if len(entries) == 1 or len(set(entries)) == len(entries):
            return ""
        (twice, _), *_ = Counter(entries).most_common(1)
        return f"holds {twice!r} more than once"


@dataclass(frozen=True, slots=True)
class Records(Relation):
    """Bytes that are records of a fixed size: one for each entry of `of`, or any number; or nothing at all."""

    column: str
    size: int
    of: str = ""

    def fault(self, message: Any) -> str:
        size = len(getattr(message, self.column))
        if not self.of:
            return f"has {size:,} bytes, not a multiple of {self.size}" if size % self.size else ""
        count = len(getattr(message, self.of))
        return (
            "" if size == self.size * count else f"has {size:,} bytes, not {self.size} for each of {count:,} {self.of}"
        )


_DEFINED: Final = Positions("bodies_stored", "bodies")

RELATIONS: Final[Mapping[str, Sequence[Relation]]] = {
    "Submit": (
        Distinct("tasks"),
        Grouped(),
        Positions("task_groups", "groups"),
        Positions("stored", "calls"),
        Positions("dependents", "tasks"),
        Positions("inner", "tasks"),
        _DEFINED,
    ),
    "Run": (
        Grouped(),
        Positions("task_groups", "groups"),
        Positions("stored", "calls"),
        Positions("dependents", "tasks"),
        Positions("inputs_stored", "inputs"),
        Positions("inputs_awaited", "inputs"),
        _DEFINED,
    ),
    "Done": (Positions("stored", "results"), Records("profiles", PROFILE.size, of="tasks")),
    "Functions": (_DEFINED,),
    "Inputs": (Positions("stored", "results"),),
    "TaskEvents": (Records("batches", PACKED_BATCH.size), Records("tasks", PACKED_TASK.size)),
}


def limit_of(message: str, field: str, element: str, *, is_column: bool) -> Limit:
    """The limit of a field, whose type in the schema is `element`, or a list of that."""
    if limit := FIELDS.get(message, {}).get(field):
        return limit
    return Column(DEFAULTS[element], ENTRIES, element in KEPT_BY_TYPE) if is_column else DEFAULTS[element]


def shortened(text: str, limit: Text = WORDS) -> str:
    """A text for people as a message can hold it: what UTF-8 can not write is replaced, what is too long cut off."""
    written = text.encode(errors="backslashreplace")
    if len(written) <= limit.most:
        return written.decode()
    end = "…".encode()
    return (written[: limit.most - len(end)] + end).decode(errors="ignore")
