"""Copies: second copies of results that are on other hosts, for the case that their host is lost. Pure, no IO.

    CopyReplicas ──▶ WANTED ──nothing else is under way──▶ ORDERED ──PutObject, all parts──▶ COPIED
                       ▲                                      │                               │
                       └──────── refused, not begun ──────────┘        memory is needed ──────┤
                       └──────────────────────────────────────────────────────────────────────┘

The object is read from its host as long as that can be reached. When the host is lost, or no longer has the object, the
copy becomes the object. A copy ends with the object, and when the object is put here for a reader.

One copy is ordered at a time. With a spill directory a copy is moved to disk at once. The copies of one key take at
most half of the memory limit, and of the spill limit. What needs memory takes that of copies first, the oldest first.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable

from scaler_storage.engine.pager import Pager
from scaler_storage.engine.pool import OVERHEAD_BYTES
from scaler_storage.engine.records import ObjectRecord

RETRY_SECONDS = 10.0
"""After how many seconds a copy is ordered again that was refused, or whose memory was needed."""
WANTED_LIMIT = 1_000_000
"""How many objects may wait for their copies; of more, the oldest are forgotten."""
_LOOKED_AT = 64
"""How many copies are looked at to find one that can be given up."""


class Copies:
    """The copies in this server, and the objects of which copies are wanted."""

    def __init__(self, pager: Pager, memory_limit: int, spill_limit: int | None) -> None:
        self._pager = pager
        disk = spill_limit if spill_limit is not None else math.inf
        self._key_limit = (memory_limit + (disk if pager.spills else 0)) / 2
        self._records: dict[bytes, ObjectRecord] = {}
        self._in_memory: OrderedDict[bytes, None] = OrderedDict()
        """Copies that were in memory when they were last looked at, the oldest first."""
        self._on_disk: OrderedDict[bytes, None] = OrderedDict()
        self._keys: dict[bytes, bytes] = {}
        """The key for which each copy counts."""
        self._key_bytes: Counter[bytes] = Counter()
        """By key: the bytes that its copies take, with their overhead."""
        self.wanted: OrderedDict[bytes, None] = OrderedDict()
        """Objects of which a copy may be ordered now."""
        self.wanted_later: OrderedDict[bytes, float] = OrderedDict()
        """From when on others may be, the earliest first."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def names(self) -> list[bytes]:
        """The objects that have a copy."""
        return list(self._records)

    def records(self) -> list[ObjectRecord]:
        """All copies."""
        return list(self._records.values())

    def want(self, name: bytes) -> None:
        """A copy of this object is wanted."""
        if name not in self._records and name not in self.wanted_later:
            self.wanted[name] = None
            if len(self.wanted) > WANTED_LIMIT:
                self.wanted.popitem(last=False)

    def want_later(self, name: bytes, now: float) -> None:
        """A copy of this object is wanted, but not in the next RETRY_SECONDS."""
        self.wanted.pop(name, None)
        self.wanted_later.pop(name, None)
        self.wanted_later[name] = now + RETRY_SECONDS

    def retry(self, now: float) -> None:
        """Want copies again whose time has come."""
        while self.wanted_later and next(iter(self.wanted_later.values())) <= now:
            self.wanted[self.wanted_later.popitem(last=False)[0]] = None

    def has_room(self, key: bytes, size: int) -> bool:
        """Whether a copy of this size fits into what the key may have, and needs no memory of others."""
        return self._key_bytes[key] + size + OVERHEAD_BYTES <= self._key_limit and not self._pager.pool.lack(size)

    def add(self, name: bytes, key: bytes, record: ObjectRecord) -> None:
        """A copy is complete, in memory."""
        self._forget_wanted(name)
        self._records[name], self._keys[name] = record, key
        self._in_memory[name] = None
        self._key_bytes[key] += record.size + OVERHEAD_BYTES
        self.bytes += record.size
        self._pager.add(record)
        self._pager.spill_unused(record)

    def take(self, name: bytes) -> ObjectRecord | None:
        """Remove a copy, which becomes the object; None if there is none."""
        self._forget_wanted(name)
        record = self._records.pop(name, None)
        if record is not None:
            self._in_memory.pop(name, None)
            self._on_disk.pop(name, None)
            key = self._keys.pop(name)
            self._key_bytes[key] -= record.size + OVERHEAD_BYTES
            if not self._key_bytes[key]:
                del self._key_bytes[key]
            self.bytes -= record.size
        return record

    def _forget_wanted(self, name: bytes) -> None:
        self.wanted.pop(name, None)
        self.wanted_later.pop(name, None)

    def forget(self, name: bytes, now: float) -> None:
        """A copy of this object is not needed."""
        if (record := self.take(name)) is not None:
            self._pager.drop(record, now)

    def give_up(self, names: Iterable[bytes], now: float) -> None:
        """Free copies; they are wanted again later."""
        for name in names:
            self.forget(name, now)
            self.want_later(name, now)

    def oldest_in_memory(self) -> bytes | None:
        """A copy whose memory can be had, or None."""
        for _ in range(min(len(self._in_memory), _LOOKED_AT)):
            name = next(iter(self._in_memory))
            if not self._records[name].ticket:
                return name
            del self._in_memory[name]
            self._on_disk[name] = None
        return None

    def oldest(self) -> bytes | None:
        """A copy whose place in memory or on disk can be had, or None."""
        return self.oldest_in_memory() or next(iter(self._on_disk), None)

    def check(self) -> None:
        """Assert the invariants."""
        key_bytes: Counter[bytes] = Counter()
        for name, record in self._records.items():
            assert not (record.pins or record.waiting or record.freed or record.host)
            assert (name in self._in_memory) != (name in self._on_disk) and name not in self.wanted
            key_bytes[self._keys[name]] += record.size + OVERHEAD_BYTES
        assert key_bytes == self._key_bytes and self.bytes == sum(record.size for record in self.records())
        assert self._keys.keys() == self._records.keys() and len(self._in_memory) + len(self._on_disk) == len(self)
        assert not self.wanted.keys() & self.wanted_later.keys()
        assert list(self.wanted_later.values()) == sorted(self.wanted_later.values())
