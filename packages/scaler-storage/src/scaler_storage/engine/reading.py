"""Reading: parts and mappings of objects. scaler_storage.engine.engine explains the theory."""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Iterable

from scaler_protocol.errors import ObjectRefusedError, ProtocolError, StorageFullError
from scaler_protocol.objects import PART_BYTES
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import (
    GetObject,
    MapObject,
    ObjectMapped,
    ObjectPart,
    UnpinObjects,
)
from scaler_storage.engine.readers import READS_MOST, Readers, WaitingRead
from scaler_storage.engine.records import LoadObject, ObjectRecord, PeerRecord, Read
from scaler_storage.engine.remote_objects import RemoteObjects
from scaler_storage.engine.segments import Moved
from scaler_storage.engine.state import StorageState, require_local

_GONE = (errno.ENOENT, errno.EIO)
"""Errors after which the bytes are lost; all others may be temporary."""


class Reading:
    """Answers remote peers with parts, and local peers with pinned mappings."""

    def __init__(self, state: StorageState, holding: RemoteObjects, readers: Readers, first_pin: int) -> None:
        self._state, self._remote, self._readers = state, holding, readers
        self._next_pin = first_pin
        self._expected: dict[bytes, list[tuple[bytes, Read]]] = {}
        """Reads of objects that peers of an earlier server may put again."""
        self._expecting: Counter[bytes] = Counter()
        """How many of them each peer has."""
        self.pins: dict[int, tuple[bytes, ObjectRecord]] = {}
        """Peer and object of each pin."""

    def get(self, peer: bytes, event: GetObject) -> None:
        """Answer with bytes of one part, once the object is in memory; with a limit of 0, whether it exists.

        Raises ProtocolError if too many reads of this peer wait.
        """
        self._require(peer)
        if event.limit:
            self._count(self._state.find(event.object), first=not event.offset)
            self._request(peer, WaitingRead(event))
        else:
            self._look(peer, event)

    def _look(self, peer: bytes, event: GetObject) -> None:
        """Answer whether an object exists."""
        record = self._find(event.object)
        if record is None:
            self._miss(peer, event)
        else:
            self._state.pager.touch(record)
            self._state.send(peer, _part(event, record, b""))

    def _require(self, peer: bytes) -> None:
        """Raise ProtocolError if a peer may not request more."""
        self._state.reads.require(peer)
        if self._expecting[peer] >= READS_MOST:
            raise ProtocolError(f"{READS_MOST:,} reads of this peer wait for objects of an earlier server already")

    def _request(self, peer: bytes, read: WaitingRead) -> None:
        """Answer a read if no earlier one of its peer waits."""
        if self._readers.has_waiting(peer):
            self._readers.add(peer, read)
        else:
            self._serve(peer, read)

    def resume(self) -> None:
        """Answer the reads that waited for their peers."""
        for peer in self._readers.peers():
            while (read := self._readers.next(peer)) is not None and self._serve(peer, read):
                pass

    def _serve(self, peer: bytes, read: WaitingRead) -> bool:
        """Answer a read, or have it wait; returns whether other reads of its peer may follow now."""
        event = read.event
        record = self._state.find(event.object)
        if record is None:
            self._miss(peer, event)
        elif event.object in self._expected:
            self._readers.put_first(peer, [read])
            self.added(event.object)
        elif not record.in_memory and not (read.why is not None and record.ticket):
            self._wait(peer, event, record)
        elif not self._readers.take(peer, _length(event, record)):
            self._readers.put_first(peer, [read])
            return False
        elif record.in_memory:
            self._answer_part(peer, event, record)
        else:
            self._answer_from_disk(peer, event, record, read.why)
        return True

    def map(self, peer: bytes, event: MapObject) -> None:
        """Pin an object for a local peer and answer with its segment, once it is in memory.

        Raises ProtocolError if too many reads of this peer wait.
        """
        self._require(peer)
        self._map(peer, event)

    def _map(self, peer: bytes, event: MapObject) -> None:
        try:
            require_local(self._state.peers[peer], event)
        except ObjectRefusedError as refusal:
            self._state.answer_missing(peer, event, refusal)
            return
        record = self._find(event.object)
        if record is not None and record.size != event.size:
            record = None
        self._count(record, first=True)
        if record is None:
            self._miss(peer, event)
        elif not record.in_memory:
            self._wait(peer, event, record)
        else:
            self._answer_mapping(peer, event, record)

    def _find(self, name: bytes) -> ObjectRecord | None:
        """A readable object, after earlier reads of it have been answered: later ones must not overtake them."""
        record = self._state.find(name)
        if record is None or name not in self._expected:
            return record
        self.added(name)
        return self._state.find(name)

    def _miss(self, peer: bytes, event: Read) -> None:
        """Answer "not found", or wait if peers of an earlier server may still put the object again."""
        if self._state.now < self._state.return_until:
            self._expected.setdefault(event.object, []).append((peer, event))
            self._expecting[peer] += 1
        else:
            self._state.unknown += 1
            self._state.answer_missing(peer, event)

    def added(self, name: bytes) -> None:
        """Answer the reads that waited for an object to be put again."""
        waiting = self._expected.pop(name, ())
        self._expecting.subtract(peer for peer, _ in waiting)
        self._answer_again(waiting)

    def answer_from_copies(self) -> None:
        """Answer reads of objects that copies have replaced."""
        waiting, self._state.unanswered = self._state.unanswered, []
        self._answer_again(waiting)

    def expect_no_more(self) -> None:
        """Answer reads whose objects were not put again in time."""
        if self._expected and self._state.now >= self._state.return_until:
            expected, self._expected = self._expected, {}
            self._expecting.clear()
            for waiting in expected.values():
                self._answer_again(waiting)

    def _answer_again(self, waiting: Iterable[tuple[bytes, Read]], why: ObjectRefusedError | None = None) -> None:
        """Answer reads that have waited for an object, parts before those that were requested later."""
        parts: dict[bytes, list[WaitingRead]] = {}
        for peer, event in waiting:
            if peer not in self._state.peers:
                continue
            if isinstance(event, MapObject):
                self._map(peer, event)
            elif event.limit:
                parts.setdefault(peer, []).append(WaitingRead(event, why))
            else:
                self._look(peer, event)
        for peer, reads in parts.items():
            self._readers.put_first(peer, reads)

    def due(self) -> float | None:
        """When `expect_no_more` has something to do, or None."""
        return self._state.return_until if self._expected else None

    def _count(self, record: ObjectRecord | None, *, first: bool) -> None:
        if record is not None and first:
            self._state.hits += record.in_memory
            self._state.misses += record.ticket > 0

    def _answer_part(self, peer: bytes, event: GetObject, record: ObjectRecord) -> None:
        length = _length(event, record)
        assert record.segment is not None
        try:
            part = self._state.segments.read(record.segment, event.offset, length) if length else b""
        except OSError as error:
            if error.errno in _GONE:
                self._lose(event.object, str(error))
                self._state.answer_missing(peer, event)
                return
            why = ObjectRefusedError(f"object {event.object.hex()} cannot be read: {error}")
            self._state.answer_missing(peer, event, why)
            return
        self._state.pager.touch(record)
        self._state.send(peer, _part(event, record, part))

    def _answer_mapping(self, peer: bytes, event: MapObject, record: ObjectRecord) -> None:
        assert record.segment is not None
        if not record.segment.name:
            why = f"object {event.object.hex()} of {record.size:,} bytes is too small to be mapped"
            self._state.answer_missing(peer, event, ObjectRefusedError(why))
            return
        self._state.pager.pin(record)
        pin, self._next_pin = self._next_pin, self._next_pin + 1
        self.pins[pin] = peer, record
        self._state.peers[peer].pins.add(pin)
        self._state.send(peer, ObjectMapped(event.object, True, record.segment.name, pin, event.request))

    def _wait(self, peer: bytes, event: Read, record: ObjectRecord) -> None:
        self._state.reads.add(record, peer, event)
        if record.host:
            if not record.fetching_from:
                self._remote.fetch(event.object, record)
        elif len(record.waiting) == 1:
            self.load(peer, LoadObject(event.object))

    def load(self, peer: bytes, event: LoadObject) -> None:
        """Load a spilled object for its readers, or queue for room."""
        state = self._state
        record = state.objects.get(event.object)
        if record is None or not record.waiting or record.in_memory or record.segment is not None:
            return
        try:
            segment = state.room(peer, event, record.size)
        except ObjectRefusedError as refusal:
            self.refuse(event, refusal)
        else:
            if segment is not None:
                state.pager.load(record, segment)

    def refuse(self, event: LoadObject, why: ObjectRefusedError) -> None:
        """Answer the readers of a spilled object for which there is no room."""
        if (record := self._state.objects.get(event.object)) is not None:
            self._read_from_disk(record, type(why)(f"object {event.object.hex()}: {why}"))

    def _read_from_disk(self, record: ObjectRecord, why: ObjectRefusedError) -> None:
        """Answer reads of parts from disk and mappings with the error `why`: the object cannot be loaded."""
        parts = []
        for peer, event in self._state.reads.take(record):
            if isinstance(event, MapObject) or not record.ticket:
                self._state.answer_missing(peer, event, why)
            else:
                parts.append((peer, event))
        self._answer_again(parts, why)

    def _answer_from_disk(
        self, peer: bytes, event: GetObject, record: ObjectRecord, why: ObjectRefusedError | None
    ) -> None:
        try:
            part = self._state.segments.read_spilled(record.ticket, event.offset, _length(event, record))
        except OSError as error:
            self._state.answer_missing(peer, event, ObjectRefusedError(f"{why}; on disk: {error}"))
        else:
            self._state.send(peer, _part(event, record, part))

    def loaded(self, record: ObjectRecord) -> None:
        """Answer the readers of an object that is now in memory."""
        parts = []
        for peer, event in self._state.reads.take(record):
            if not isinstance(event, MapObject):
                parts.append((peer, event))
            elif peer in self._state.peers:
                self._answer_mapping(peer, event, record)
        if not record.freed:
            self._answer_again(parts)

    def failed(self, record: ObjectRecord, moved: Moved) -> None:
        """Answer the readers of an object whose load failed: no room now, or the object is lost."""
        if moved.full:
            self._read_from_disk(record, StorageFullError(moved.error))
            return
        for name in self._state.sessions[record.session].objects:
            if self._state.objects[name] is record:
                self._lose(name, moved.error)
                return

    def _lose(self, name: bytes, why: str) -> None:
        self._state.log(logging.ERROR, f"object {name.hex()} is lost: {why}")
        self._state.free(name)

    def unpin(self, peer: bytes, event: UnpinObjects) -> None:
        """Release pins of a peer; segments that it has lent are retired."""
        own = self._state.peers[peer].pins
        for pin in own.intersection(event.inherited):
            _retire(self.pins[pin][1])
        for pin in own.intersection((*event.pins, *event.inherited)):
            own.discard(pin)
            self._release(pin)

    def leave(self, peer: bytes, record: PeerRecord) -> None:
        """Forget the reads of a lost peer, and release its pins; it may still use its mappings.

        So their segments are retired.
        """
        self._readers.leave(peer)
        for unread in self._state.reads.leave(peer):
            unread.fetching_from = b""
        for pin in record.pins:
            _retire(self.pins[pin][1])
            self._release(pin)
        record.pins.clear()

    def _release(self, pin: int) -> None:
        _, record = self.pins.pop(pin)
        self._state.pager.unpin(record, self._state.now)


def _length(event: GetObject, record: ObjectRecord) -> int:
    return max(0, min(event.limit, PART_BYTES - event.offset % PART_BYTES, record.size - event.offset))


def _part(event: GetObject, record: ObjectRecord, part: bytes | memoryview) -> ObjectPart:
    parts = Payloads.cut(part, [len(part)])
    return ObjectPart(event.object, True, record.size, parts, event.request, version=record.version)


def _retire(record: ObjectRecord) -> None:
    assert record.segment is not None
    record.segment.retired = True
