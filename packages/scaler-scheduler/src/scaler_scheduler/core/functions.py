"""The functions that tasks call, by content hash.

Theory. A record lives as long as a group of tasks refers to it, or as long as it is among the RECORDS_LIMIT functions
used last, so memory stays bounded however many functions a cluster sees. Bytes are kept for the functions used last
only, and are requested again when they are needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from weakref import WeakValueDictionary

from scaler_scheduler.core.function_record import FunctionRecord

BYTES_LIMIT = 256 * 1024 * 1024
RECORDS_LIMIT = 4096


class FunctionStore:
    """Functions by id. Each operation takes constant time per function."""

    def __init__(self, bytes_limit: int = BYTES_LIMIT, records_limit: int = RECORDS_LIMIT) -> None:
        self._bytes_limit = bytes_limit
        self._records_limit = records_limit
        self._body_bytes = 0
        self._known: WeakValueDictionary[bytes, FunctionRecord] = WeakValueDictionary()
        self._recent: OrderedDict[bytes, FunctionRecord] = OrderedDict()
        """The least recently used one first."""

    def __len__(self) -> int:
        return len(self._known)

    def use(self, function: bytes) -> FunctionRecord:
        """The function of this id, as the most recently used one."""
        record = self._recent.get(function)
        if record is not None:
            self._recent.move_to_end(function)
            return record
        record = self._known.get(function)
        if record is None:
            record = self._known[function] = FunctionRecord(function)
        self._recent[function] = record
        if len(self._recent) > self._records_limit:
            self._drop_oldest()
        return record

    def expect(self, function: bytes) -> FunctionRecord:
        """The function of this id, as the least recently used one if it is unknown: anybody may name any id."""
        record = self._known.get(function)
        if record is not None:
            return self.use(function)
        record = self._known[function] = self._recent[function] = FunctionRecord(function)
        self._recent.move_to_end(function, last=False)
        if len(self._recent) > self._records_limit:
            self._drop_oldest()
        return record

    def find(self, function: bytes) -> FunctionRecord | None:
        """The function of this id, or None; does not count as a use."""
        return self._known.get(function)

    def define(
        self, functions: Iterable[bytes], names: Sequence[str], bodies: Sequence[bytes], stored: Collection[int] = ()
    ) -> list[FunctionRecord]:
        """Store the bytes of functions; returns those whose bytes were missing."""
        fresh, references = [], set(stored)
        for position, (function, name, body) in enumerate(zip(functions, names, bodies, strict=True)):
            record = self.use(function)
            if record.body is None:
                record.name, record.body, record.stored = name, body, position in references
                self._body_bytes += len(body)
                fresh.append(record)
                while self._body_bytes > self._bytes_limit and len(self._recent) > 1:
                    self._drop_oldest()
        return fresh

    def latest(self) -> Iterator[FunctionRecord]:
        """The functions used last, the most recent first."""
        return reversed(self._recent.values())

    def _drop_oldest(self) -> None:
        _, record = self._recent.popitem(last=False)
        if record.body is not None:
            self._body_bytes -= len(record.body)
            record.body = None
