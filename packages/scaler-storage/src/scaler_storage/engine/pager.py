"""Pager: which objects are in memory and which on disk. No IO but through Segments.

    IN MEMORY ──memory is needed──▶ SPILLING ──▶ ON DISK ──a read──▶ LOADING ──▶ in memory
                                       └──pinned meanwhile, the disk is full──▶ in memory

The least recently used object is spilled first. A pinned object stays in memory until its last pin is released, even if
it was deleted. Disk is charged from the begin of a spill until the object is in memory again.
"""

from __future__ import annotations

from collections import OrderedDict

from scaler_protocol.errors import StorageFullError
from scaler_protocol.lazy_dataclass import dataclass
from scaler_storage.engine.pool import SegmentPool
from scaler_storage.engine.records import ObjectRecord
from scaler_storage.engine.segments import Moved, Segment, Segments


@dataclass(frozen=True, slots=True)
class _Move:
    record: ObjectRecord
    segment: Segment
    out: bool


class Pager:
    """Memory for objects; `spill_limit` is in bytes, None if only the disk limits it."""

    def __init__(self, segments: Segments, memory_limit: int, spill_limit: int | None) -> None:
        self.pool = SegmentPool(segments, memory_limit)
        self.pinned_bytes = 0
        self.spilled = self.spilled_bytes = 0
        """Objects on disk, those being spilled or loaded included, and their bytes."""
        self.spilled_bytes_total = self.loaded_bytes_total = 0
        self._segments = segments
        self._spill_limit = spill_limit
        self._idle: OrderedDict[ObjectRecord, None] = OrderedDict()
        """Objects that can be spilled, the least recently used first."""
        self._idle_bytes = 0
        self._moves: dict[int, _Move] = {}
        self.arriving = 0
        """Bytes of the segments that local peers are writing: these objects can be spilled soon."""
        self.uploading = 0
        """Bytes of those that come in parts: these objects can be spilled once their peers have sent them."""
        self._leaving = 0
        """Bytes that the running spills will free."""
        self._tickets = 0

    def take(self, size: int, *, patient: bool = False) -> Segment | None:
        """Return a segment for an object, or None if a spill or a local write will make room for it.

        With `patient`, also if the end of an upload in parts will. Raises StorageFullError if no room can be made.
        """
        segment = self.pool.take(size)
        if segment is not None:
            return segment
        # Below the limit, the file system had no memory.
        lack = (self.pool.lack(size) or self._segments.capacity(size)) - self._leaving
        soon = self._idle_bytes + self.arriving + (self.uploading if patient else 0)
        if lack > 0 and not (self._segments.spills and self._idle_bytes < lack <= soon):
            for record in self._victims(size, lack):
                self._spill(record)
        return None

    def _victims(self, size: int, lack: int) -> list[ObjectRecord]:
        text = f"{size:,} bytes do not fit: {self.pool.used:,} of {self.pool.limit:,} are in use"
        if not self.pool.lack(size):
            text = f"{text}, but {self.pool.trouble}"
        if not self._segments.spills:
            raise StorageFullError(text)
        if lack > self._idle_bytes:
            raise StorageFullError(f"{text}, and only {self._idle_bytes:,} of them can be moved to disk")
        victims, freed, disk = list[ObjectRecord](), 0, self.spilled_bytes
        for record in self._idle:
            assert record.segment is not None
            victims.append(record)
            freed += self.pool.cost(record.segment)
            disk += record.size
            if freed >= lack:
                break
        if self._spill_limit is not None and disk > self._spill_limit:
            raise StorageFullError(f"{text}, and {self.spilled_bytes:,} of {self._spill_limit:,} on disk")
        return victims

    def _spill(self, record: ObjectRecord) -> None:
        segment = record.segment
        assert segment is not None
        self._leave_idle(record)
        self._leaving += self.pool.cost(segment)
        self.spilled += 1
        self.spilled_bytes += record.size
        self._move(record, segment, out=True)

    @property
    def spills(self) -> bool:
        """Whether objects can be moved to disk."""
        return self._segments.spills

    def spill_unused(self, record: ObjectRecord) -> None:
        """Move an object to disk before its memory is needed, if there is room."""
        limit = self._spill_limit
        if self.spills and record in self._idle and (limit is None or self.spilled_bytes + record.size <= limit):
            self._spill(record)

    def load(self, record: ObjectRecord, segment: Segment) -> None:
        """Begin to load an object into a segment that was allocated for it."""
        record.segment = segment
        self._move(record, segment, out=False)

    def _move(self, record: ObjectRecord, segment: Segment, *, out: bool) -> None:
        if out:
            self._tickets += 1
            record.ticket = self._tickets
            self._segments.spill(record.ticket, segment, record.size)
        else:
            self._segments.load(record.ticket, segment, record.size)
        self._moves[record.ticket] = _Move(record, segment, out)

    def finished(self, now: float) -> tuple[list[ObjectRecord], list[tuple[ObjectRecord, Moved]], str]:
        """Process finished moves; returns loaded objects, failed loads, and the error of a failed spill or ""."""
        loaded, failed, failure = list[ObjectRecord](), list[tuple[ObjectRecord, Moved]](), ""
        for moved in self._segments.finished():
            move = self._moves.pop(moved.ticket)
            if move.out:
                self._spilled(move, moved.error, now)
                failure = failure or moved.error
            elif self._loaded(move, moved, now):
                loaded.append(move.record)
            elif not move.record.freed:
                failed.append((move.record, moved))
        return loaded, failed, failure

    def _spilled(self, move: _Move, error: str, now: float) -> None:
        record = move.record
        self._leaving -= self.pool.cost(move.segment)
        if error or record.freed or record.pins:
            self._forget_spilled(record)
            if not record.pins:
                self._release(record, now)
            return
        self.spilled_bytes_total += record.size
        record.segment, record.in_memory = None, False
        self.pool.give(move.segment, now)

    def _loaded(self, move: _Move, moved: Moved, now: float) -> bool:
        record = move.record
        if record.freed or not moved.full:
            self._forget_spilled(record)
        if record.freed or moved.error:
            record.segment = None
            self.pool.give(move.segment, now)
            return False
        self.loaded_bytes_total += record.size
        record.in_memory = True
        self.add(record)
        return True

    def _forget_spilled(self, record: ObjectRecord) -> None:
        self._segments.forget(record.ticket)
        self.spilled -= 1
        self.spilled_bytes -= record.size
        record.ticket = 0

    def add(self, record: ObjectRecord) -> None:
        """Add an object in memory that has no pins."""
        assert record.segment is not None
        self._idle[record] = None
        self._idle_bytes += self.pool.cost(record.segment)

    def touch(self, record: ObjectRecord) -> None:
        """Record a use of an object."""
        if record in self._idle:
            self._idle.move_to_end(record)

    def pin(self, record: ObjectRecord) -> None:
        """Pin an object in memory; each pin needs one `unpin`."""
        assert record.segment is not None and record.in_memory
        if record in self._idle:
            self._leave_idle(record)
        record.pins += 1
        if record.pins == 1:
            self.pinned_bytes += record.segment.capacity

    def unpin(self, record: ObjectRecord, now: float) -> None:
        """Release one pin."""
        assert record.segment is not None
        record.pins -= 1
        if not record.pins:
            self.pinned_bytes -= record.segment.capacity
            if not record.ticket:
                self._release(record, now)

    def drop(self, record: ObjectRecord, now: float) -> None:
        """Free an object once its pins are released and its move has ended."""
        record.freed = True
        if record in self._idle:
            self._leave_idle(record)
        if record.ticket in self._moves:
            return
        if record.ticket:
            self._forget_spilled(record)
        elif not record.pins:
            self._release(record, now)

    def _release(self, record: ObjectRecord, now: float) -> None:
        """Make an unpinned object idle, or free its segment if it was deleted."""
        if not record.freed:
            self.add(record)
        elif (segment := record.segment) is not None:
            record.segment = None
            self.pool.give(segment, now)

    def _leave_idle(self, record: ObjectRecord) -> None:
        assert record.segment is not None
        del self._idle[record]
        self._idle_bytes -= self.pool.cost(record.segment)

    @property
    def moving(self) -> bool:
        """Whether spills are running that will make room."""
        return bool(self._leaving)

    def check(self, objects: list[ObjectRecord], pinned: set[ObjectRecord], writing: list[Segment]) -> None:
        """Assert the invariants; `objects` are the known ones, `pinned` those with pins."""
        self.pool.check()
        moving = {move.record for move in self._moves.values()}
        known = {*objects, *pinned, *moving}
        segments = [record.segment for record in known if record.segment is not None] + writing
        assert len(set(map(id, segments))) == len(segments)
        assert self.pool.used == sum(map(self.pool.cost, segments))
        on_disk = [record.size for record in known if record.ticket]
        assert (self.spilled, self.spilled_bytes) == (len(on_disk), sum(on_disk))
        assert self._leaving == sum(self.pool.cost(move.segment) for move in self._moves.values() if move.out)
        idle = {record for record in objects if record.in_memory and not record.pins and record not in moving}
        assert set(self._idle) == idle
        assert self._idle_bytes == sum(self.pool.cost(record.segment) for record in idle if record.segment)
        for record in known:
            assert record.in_memory or not record.pins
            assert record.segment is not None if record.in_memory or record in moving else record.ticket
            assert record.ticket == 0 or record in moving or not record.in_memory
        assert pinned == {record for record in known if record.pins}
        assert self.pinned_bytes == sum(record.segment.capacity for record in pinned if record.segment)
