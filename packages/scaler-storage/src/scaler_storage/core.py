"""StorageCore: which bytes are kept for whom. Events in, effects out, no IO.

An object is cut into parts at multiples of PART_BYTES. Each writer assembles its own copy (an upload), parts in any
order; the first complete one becomes the object, and what others send under the same id and size afterwards counts as
stored: a task that is run twice stores its result twice. Parts are kept as they came and sent as they are kept, so
bytes are never moved here, and a big object needs no big block of memory.

    first PutObject ─▶ UPLOAD ──all parts──▶ OBJECT ──DeleteObjects, its session ends──▶ unknown
                         └──a part refused, DeleteObjects, its writer is lost, its session ends──▶ unknown

An object belongs to a session. A client writes and deletes in its own session only, an agent's workers in any that
they name; whoever knows an id may read. Who says Hello with a session owns it: a client, or a worker whose tasks submit
tasks. A session ends with the last owner of it, and takes nothing from then on (a straggling worker must not leak),
unless an owner comes back. Clients come when they have, or are told of, a first object; objects of a session whose
owner has not come are orphans: all are freed `retention_seconds` after the last one was written.

Invariants (`check`): memory in use is the sum of what objects and uploads were admitted with and never above the
limit; every upload has a known writer; every object stands on the shelf of exactly its session; the orphaned sessions
are those without an owner, the one that is due first in front.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from scaler_io.effects import Effect, Log, Send
from scaler_io.links import HubEvent, PeerJoined, PeerLost
from scaler_protocol.errors import ObjectRefusedError, ProtocolError, StorageFullError, describe
from scaler_protocol.handshake import PROTOCOL_VERSION, Hello, Refused, Role, Welcome
from scaler_protocol.messages import DeleteObjects, GetObject, ObjectPart, ObjectStored, PutObject
from scaler_protocol.objects import OBJECT_ID_BYTES, PART_BYTES, part_count
from scaler_protocol.payloads import Payloads
from scaler_storage.records import ObjectRecord, PeerRecord, ShelfRecord, StorageStatus, UploadRecord

OVERHEAD_BYTES = 1024
"""What an object costs beside its bytes, so that a flood of empty ones meets the limit too."""
HEARTBEAT_SECONDS = 5.0
_ENDED_LIMIT = 65_536
"""Ended sessions that are remembered."""


class StorageCore:
    """All of the object storage server but its sockets. `handle` is the only way in, `settle` the only way out."""

    def __init__(self, incarnation: int, memory_limit: int, retention_seconds: float = 60.0) -> None:
        self._incarnation = incarnation
        self._limit = memory_limit
        self._retention = retention_seconds
        self._now = 0.0
        self._used = 0
        self._refused = 0
        self._full_told = False
        self._peers: dict[bytes, PeerRecord] = {}
        self._objects: dict[bytes, ObjectRecord] = {}
        self._uploads: dict[tuple[bytes, bytes], UploadRecord] = {}
        self._shelves: dict[int, ShelfRecord] = {}
        self._orphans: dict[int, float] = {}
        self._ended: dict[int, None] = {}
        self._out: list[Effect] = []
        self._handlers: dict[type[Any], Callable[[bytes, Any], None]] = {
            PeerJoined: self._joined,
            PeerLost: self._lost,
            PutObject: self._put,
            GetObject: self._get,
            DeleteObjects: self._delete,
        }

    def admit(self, hello: Hello) -> Welcome | Refused:
        """Whether a peer may join; a refusal lists everything that is wrong."""
        reasons = []
        if hello.protocol != PROTOCOL_VERSION:
            reasons.append(f"protocol version {hello.protocol}, the object storage server speaks {PROTOCOL_VERSION}")
        if hello.role not in (Role.CLIENT, Role.AGENT):
            reasons.append(f"unknown role {hello.role}")
        if len(hello.identity) != 16:
            reasons.append(f"an identity has 16 bytes, not {len(hello.identity)}")
        if hello.role == Role.CLIENT and not hello.session:
            reasons.append("a client has a session")
        if reasons:
            return Refused(reasons)
        return Welcome(self._incarnation, heartbeat_seconds=HEARTBEAT_SECONDS)

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Take one event in; raises ProtocolError for a message that this peer may not send, changing nothing."""
        handler = self._handlers.get(type(event))
        if handler is None:
            raise ProtocolError(f"{type(event).__name__} is nothing an object storage server is told")
        self._now = now
        handler(peer, event)

    def settle(self, now: float) -> list[Effect]:
        """What to do about everything that was handled, in its order."""
        while (due := self.due()) is not None and due <= now:
            session = next(iter(self._orphans))
            self._log(logging.DEBUG, f"nobody came for the objects of session {session}")
            for name in list(self._shelves[session].objects):
                self._free(name)
        out, self._out = self._out, []
        return out

    def due(self) -> float | None:
        """When the next orphans are freed."""
        return next(iter(self._orphans.values()), None)

    def status(self) -> StorageStatus:
        """The totals of this moment."""
        return StorageStatus(
            objects=len(self._objects),
            writing=len(self._uploads),
            sessions=len(self._shelves),
            peers=len(self._peers),
            bytes=self._used,
            memory_limit=self._limit,
            refused=self._refused,
        )

    # --- peers ------------------------------------------------------------------------------------------------------

    def _joined(self, peer: bytes, event: PeerJoined) -> None:
        if event.resumed:
            return
        hello = event.hello
        old = self._peers.get(peer)
        if old is not None:
            self._drop_uploads(peer, old)
        self._peers[peer] = PeerRecord(hello.role, hello.session)
        if hello.session:
            self._ended.pop(hello.session, None)
            self._orphans.pop(hello.session, None)
            self._shelves.setdefault(hello.session, ShelfRecord()).owners.add(peer)
        if old is not None and old.session != hello.session:
            self._disown(peer, old, "its client began another")

    def _lost(self, peer: bytes, event: PeerLost) -> None:
        record = self._peers.pop(peer)
        self._drop_uploads(peer, record)
        self._disown(peer, record, event.reason)

    def _drop_uploads(self, peer: bytes, record: PeerRecord) -> None:
        for name in list(record.uploads):
            self._drop_upload(peer, record, name)

    def _disown(self, peer: bytes, record: PeerRecord, reason: str) -> None:
        shelf = self._shelves.get(record.session)
        if shelf is None or peer not in shelf.owners:
            return
        shelf.owners.discard(peer)
        if not shelf.owners:
            self._end_session(record.session, shelf, reason)

    def _end_session(self, session: int, shelf: ShelfRecord, reason: str) -> None:
        for writer, name in [key for key, upload in self._uploads.items() if upload.session == session]:
            self._drop_upload(writer, self._peers[writer], name)
        count = len(shelf.objects)
        for name in list(shelf.objects):
            self._free(name)
        self._shelves.pop(session, None)
        self._ended[session] = None
        if len(self._ended) > _ENDED_LIMIT:
            del self._ended[next(iter(self._ended))]
        self._log(logging.DEBUG, f"session {session} ended ({reason}), {count} objects freed")

    # --- objects ----------------------------------------------------------------------------------------------------

    def _put(self, peer: bytes, event: PutObject) -> None:
        record, error = self._peers[peer], ""
        try:
            self._take(peer, record, event)
        except ObjectRefusedError as refusal:
            self._drop_upload(peer, record, event.object)
            self._refused += 1
            error = describe(refusal).decode()
        self._out.append(Send(peer, ObjectStored(event.object, event.request, error)))

    def _take(self, peer: bytes, record: PeerRecord, event: PutObject) -> None:
        """Keep a part; raises ObjectRefusedError where it cannot be."""
        name, size, part = event.object, event.size, event.parts.frame
        session = self._session(record, event.session)
        index, rest = divmod(event.offset, PART_BYTES)
        if len(name) != OBJECT_ID_BYTES:
            raise ObjectRefusedError(f"an object's id has {OBJECT_ID_BYTES} bytes, not {len(name)}")
        if rest or index >= part_count(size) or len(part) != min(PART_BYTES, size - event.offset):
            raise ObjectRefusedError(
                f"object {name.hex()}: {len(part):,} bytes at {event.offset:,} are no part of one of {size:,} bytes"
            )
        stored = self._objects.get(name) or self._uploads.get((peer, name))
        if stored is not None and stored.session != session:
            raise ObjectRefusedError(f"object {name.hex()} belongs to another session")
        if stored is not None and stored.size != size:
            raise ObjectRefusedError(f"object {name.hex()} has {stored.size:,} bytes, not {size:,}")
        if isinstance(stored, ObjectRecord):
            self._drop_upload(peer, record, name)
            return
        upload = stored or self._begin(peer, record, name, UploadRecord(session, size, part_count(size)))
        if index not in upload.parts:
            upload.parts[index] = part
            upload.missing -= 1
        if not upload.missing:
            del self._uploads[peer, name]
            record.uploads.discard(name)
            parts = [upload.parts[index] for index in range(len(upload.parts))]
            self._objects[name] = ObjectRecord(session, size, parts)
            shelf = self._shelves.setdefault(session, ShelfRecord())
            shelf.objects.add(name)
            if not shelf.owners:
                self._orphans.pop(session, None)
                self._orphans[session] = self._now + self._retention

    def _begin(self, peer: bytes, record: PeerRecord, name: bytes, upload: UploadRecord) -> UploadRecord:
        """Admit an object with its whole size, so that what was begun can be finished."""
        cost = upload.size + OVERHEAD_BYTES
        if self._used + cost > self._limit:
            text = f"{upload.size:,} bytes do not fit: {self._used:,} of {self._limit:,} are in use"
            if not self._full_told:
                self._full_told = True
                self._log(logging.WARNING, f"storage is full: {text}; see --memory-limit")
            raise StorageFullError(f"object {name.hex()}: {text}")
        self._used += cost
        self._uploads[peer, name] = upload
        record.uploads.add(name)
        return upload

    def _get(self, peer: bytes, event: GetObject) -> None:
        record = self._objects.get(event.object)
        if record is None:
            self._out.append(Send(peer, ObjectPart(event.object, False, request=event.request)))
            return
        index, start = divmod(event.offset, PART_BYTES)
        part = record.parts[index] if index < len(record.parts) else b""
        if start or event.limit < len(part):
            part = memoryview(part)[start : start + event.limit]
        parts = Payloads.cut(part, [len(part)])
        answer = ObjectPart(event.object, True, record.size, event.offset, parts, event.request)
        self._out.append(Send(peer, answer))

    def _delete(self, peer: bytes, event: DeleteObjects) -> None:
        record = self._peers[peer]
        session = event.session or record.session
        if record.role == Role.CLIENT and session != record.session:
            raise ProtocolError(f"a client of session {record.session} deletes objects of session {session}")
        shelf = self._shelves.get(session)
        for name in event.objects:
            upload = self._uploads.get((peer, name))
            if upload is not None and upload.session == session:
                self._drop_upload(peer, record, name)
        known = shelf.objects if shelf is not None else set[bytes]()
        for name in known.intersection(event.objects) if event.objects else list(known):
            self._free(name)

    def _session(self, record: PeerRecord, named: int) -> int:
        """The session that a peer speaks of; raises ObjectRefusedError where that is not its own, or has ended."""
        session = named or record.session
        if not session:
            raise ObjectRefusedError("an object belongs to a session, and none is named")
        if record.role == Role.CLIENT and session != record.session:
            raise ObjectRefusedError(f"session {session} is another client's")
        if session in self._ended:
            raise ObjectRefusedError(f"session {session} has ended")
        return session

    def _free(self, name: bytes) -> None:
        record = self._objects.pop(name)
        shelf = self._shelves[record.session]
        shelf.objects.discard(name)
        if not shelf.objects and not shelf.owners:
            del self._shelves[record.session]
            self._orphans.pop(record.session, None)
        self._give_back(record.size)

    def _drop_upload(self, peer: bytes, record: PeerRecord, name: bytes) -> None:
        """Forget what this peer has written of an object, if anything."""
        record.uploads.discard(name)
        upload = self._uploads.pop((peer, name), None)
        if upload is not None:
            self._give_back(upload.size)

    def _give_back(self, size: int) -> None:
        self._used -= size + OVERHEAD_BYTES
        self._full_told = False

    def _log(self, level: int, text: str) -> None:
        self._out.append(Log(level, text))

    def check(self) -> None:
        """Assert the invariants."""
        kept = [record.size for record in self._objects.values()] + [upload.size for upload in self._uploads.values()]
        assert self._used == sum(kept) + OVERHEAD_BYTES * len(kept) <= self._limit
        for record in self._objects.values():
            assert sum(map(len, record.parts)) == record.size
        on_shelves = {(name, session) for session, shelf in self._shelves.items() for name in shelf.objects}
        assert on_shelves == {(name, record.session) for name, record in self._objects.items()}
        assert all(shelf.owners or shelf.objects for shelf in self._shelves.values())
        assert not self._ended.keys() & self._shelves.keys()
        for upload in self._uploads.values():
            assert len(upload.parts) + upload.missing == part_count(upload.size) and upload.missing
            assert upload.session not in self._ended
        assert set(self._uploads) == {(peer, name) for peer, record in self._peers.items() for name in record.uploads}
        assert set(self._orphans) == {session for session, shelf in self._shelves.items() if not shelf.owners}
        assert list(self._orphans.values()) == sorted(self._orphans.values())
        owners = {(peer, record.session) for peer, record in self._peers.items() if record.session}
        assert owners == {(peer, session) for session, shelf in self._shelves.items() for peer in shelf.owners}
