"""Writing: how objects come to be. Pure, no IO. scaler_storage.engine.engine tells the theory."""

from __future__ import annotations

from scaler_protocol.errors import ObjectRefusedError, ProtocolError, StorageFullError, describe
from scaler_protocol.handshake import Role
from scaler_protocol.objects import OBJECT_ID_BYTES, PART_BYTES, part_count
from scaler_protocol.storage import (
    AllocateObject,
    DeleteObjects,
    HoldObject,
    ObjectAllocated,
    ObjectStored,
    PutObject,
    SealObject,
)
from scaler_storage.engine.fullness import Fullness
from scaler_storage.engine.pool import SegmentPool
from scaler_storage.engine.reading import Reading
from scaler_storage.engine.records import LoadObject, ObjectRecord, PeerRecord, ShelfRecord, UploadRecord
from scaler_storage.engine.state import StorageState, proven


class Writing:
    """Uploads, whole objects, and their end."""

    def __init__(
        self,
        state: StorageState,
        reading: Reading,
        retention_seconds: float,
        last_edition: int,
    ) -> None:
        self._state, self._reading = state, reading
        self._retention = retention_seconds
        self._edition = last_edition
        self.fullness = Fullness(state.log)

    def put(self, peer: bytes, event: PutObject) -> None:
        """Take a part and say so, or why not; or let it wait for room."""
        record = self._state.peers[peer]
        try:
            edition = self._take(peer, record, event)
        except ObjectRefusedError as refusal:
            self.refuse(peer, event, refusal)
        else:
            if edition is not None:
                self._state.send(peer, ObjectStored(event.object, event.request, edition=edition))

    def allocate(self, peer: bytes, event: AllocateObject) -> None:
        """Answer with a segment, or why not; or let it wait for room."""
        record, name = self._state.peers[peer], event.object
        self.drop_upload(peer, record, name)
        segment = ""
        try:
            proven(record, event)
            session = self._check(record, name, event.size, event.session)
            stored = self._state.objects.get(name)
            if stored is None or stored.host:
                upload = self._begin(peer, record, event, session)
                if upload is None:
                    return
                segment = upload.segment.name
        except ObjectRefusedError as refusal:
            self.refuse(peer, event, refusal)
        else:
            self._state.send(peer, ObjectAllocated(name, segment, event.request))

    def refuse(self, peer: bytes, event: PutObject | AllocateObject, refusal: ObjectRefusedError) -> None:
        """Answer that an object can not be had, and forget what there is of it."""
        if isinstance(refusal, StorageFullError):
            self.fullness.refused(str(refusal), self._state.now)
        self.drop_upload(peer, self._state.peers[peer], event.object)
        self._state.refused += 1
        stored = self._state.objects.get(event.object)
        edition = event.edition if isinstance(event, PutObject) else 0
        if stored is not None and (stored.asked, stored.edition) == (peer, edition):
            stored.asked = b""
            self._state.refuse_readers(stored, refusal)
        kind = ObjectStored if isinstance(event, PutObject) else ObjectAllocated
        self._state.send(peer, kind(event.object, request=event.request, error=describe(refusal).decode()))

    def seal(self, peer: bytes, event: SealObject) -> None:
        """An object that its writer has written by itself is complete."""
        record, edition, error = self._state.peers[peer], 0, ""
        upload = self._state.uploads.get((peer, event.object))
        try:
            if upload is None or not upload.allocated or upload.segment.name != event.segment:
                raise ObjectRefusedError(f"object {event.object.hex()} has no segment {event.segment!r} of yours")
            # The name may have been given to somebody else meanwhile.
            self._check(record, event.object, upload.size, upload.session)
            self._arrives(upload, -1)
            upload.allocated = False
            edition = self._complete(peer, record, event.object, upload)
        except ObjectRefusedError as refusal:
            self.drop_upload(peer, record, event.object)
            self._state.refused += 1
            error = describe(refusal).decode()
        self._state.send(peer, ObjectStored(event.object, event.request, error, edition))

    def hold(self, peer: bytes, event: HoldObject) -> None:
        """An object stands on another host."""
        edition, error = 0, ""
        try:
            if event.host not in self._state.voices or not event.edition:
                raise ObjectRefusedError(f"object {event.object.hex()}: nobody speaks for the host that holds it")
            session = self._check(self._state.peers[peer], event.object, event.size, event.session)
            edition = self._hold(event, session)
        except ObjectRefusedError as refusal:
            self._state.refused += 1
            error = describe(refusal).decode()
        self._state.send(peer, ObjectStored(event.object, event.request, error, edition))

    def _hold(self, event: HoldObject, session: int) -> int:
        """The edition that is held there from now on; 0 where the object is stored or held otherwise."""
        state, name = self._state, event.object
        if (name, event.edition) in state.missed:
            return 0
        stored = state.objects.get(name)
        if stored is None:
            record = ObjectRecord(session, event.size, None, here=False)
            state.hold(record, event.host, event.edition)
            self._add(name, record)
        elif (stored.host, stored.edition) != (event.host, event.edition):
            if not stored.host or stored.host in state.voices:
                return 0
            state.unhold(name, stored, drop=True)
            state.hold(stored, event.host, event.edition)
        return event.edition

    def delete(self, peer: bytes, event: DeleteObjects) -> None:
        """Free objects of a session and what this peer is writing of them; raises ProtocolError for another's."""
        state = self._state
        record = state.peers[peer]
        session = event.session or record.session
        if record.role == Role.CLIENT and session != record.session:
            raise ProtocolError(f"a client of session {record.session} deletes objects of session {session}")
        if session != record.session and not event.objects:
            raise ProtocolError(f"an agent deletes all objects of session {session}, not only those that it names")
        shelf = state.shelves.get(session)
        for name in event.objects:
            upload = state.uploads.get((peer, name))
            if upload is not None and upload.session == session:
                self.drop_upload(peer, record, name)
        if self._state.queue:
            self._stop_waiting(peer, set(event.objects))
        known = shelf.objects if shelf is not None else set[bytes]()
        for name in known.intersection(event.objects) if event.objects else list(known):
            state.free(name)

    def _stop_waiting(self, peer: bytes, names: set[bytes]) -> None:
        """Answer what this peer has asked for and does not want any more."""
        waiting = list(self._state.queue)
        self._state.queue.clear()
        for entry in waiting:
            writer, event = entry
            if writer != peer or event.object not in names or isinstance(event, LoadObject):
                self._state.queue.append(entry)
            else:
                self.refuse(peer, event, ObjectRefusedError(f"object {event.object.hex()} was deleted"))

    def _check(self, record: PeerRecord, name: bytes, size: int, named: int) -> int:
        """The session of an object that a peer may write; raises ObjectRefusedError for one that it may not."""
        session = self._state.session(record, named)
        if len(name) != OBJECT_ID_BYTES:
            raise ObjectRefusedError(f"an object's id has {OBJECT_ID_BYTES} bytes, not {len(name)}")
        stored = self._state.objects.get(name)
        if stored is not None:
            _same(name, stored, session, size)
        return session

    def _take(self, peer: bytes, record: PeerRecord, event: PutObject) -> int | None:
        """Keep a part, unless it has to wait (None); raises ObjectRefusedError where it cannot be.

        Returns the edition that it completes; 0: none.
        """
        state, name, size, part = self._state, event.object, event.size, event.parts.frame
        index, rest = divmod(event.offset, PART_BYTES)
        if rest or index >= part_count(size) or len(part) != min(PART_BYTES, size - event.offset):
            raise ObjectRefusedError(
                f"object {name.hex()}: {len(part):,} bytes at {event.offset:,} are no part of one of {size:,} bytes"
            )
        session = self._check(record, name, size, event.session)
        stored = state.objects.get(name)
        if event.edition and (stored is None or stored.edition != event.edition):
            raise ObjectRefusedError(f"object {name.hex()} is not held in this edition")
        if stored is not None and not stored.host:
            self.drop_upload(peer, record, name)
            return 0
        upload = state.uploads.get((peer, name))
        if upload is None:
            upload = self._begin(peer, record, event, session)
            if upload is None:
                return None
        _same(name, upload, session, size)
        if upload.allocated:
            raise ObjectRefusedError(f"object {name.hex()} has a segment to be written to")
        if index not in upload.parts:
            state.segments.write(upload.segment, event.offset, part)
            upload.parts.add(index)
            upload.missing -= 1
        return 0 if upload.missing else self._complete(peer, record, name, upload)

    def _begin(
        self, peer: bytes, record: PeerRecord, event: PutObject | AllocateObject, session: int
    ) -> UploadRecord | None:
        """Take room for the whole object, so that what was begun can be finished; None where it has to wait."""
        try:
            segment = self._state.room(peer, event, event.size)
        except StorageFullError as full:
            raise StorageFullError(f"object {event.object.hex()}: {full}") from full
        if segment is None:
            return None
        allocated = isinstance(event, AllocateObject)
        edition = event.edition if isinstance(event, PutObject) else 0
        upload = UploadRecord(session, event.size, segment, part_count(event.size), allocated, edition)
        self._state.uploads[peer, event.object] = upload
        record.uploads.add(event.object)
        self._arrives(upload, 1)
        if allocated and not segment.name:
            raise ObjectRefusedError(f"object {event.object.hex()} of {event.size:,} bytes is too small for a segment")
        return upload

    def _complete(self, peer: bytes, record: PeerRecord, name: bytes, upload: UploadRecord) -> int:
        """The first complete copy becomes the object; returns its edition, 0 for any other."""
        state = self._state
        stored = state.objects.get(name)
        if stored is not None and not stored.host:
            self.drop_upload(peer, record, name)
            return 0
        del state.uploads[peer, name]
        record.uploads.discard(name)
        if not upload.edition:
            self._edition += 1
        edition = upload.edition or self._edition
        if stored is not None:
            self._bring(name, stored, upload, edition)
        else:
            stored = ObjectRecord(upload.session, upload.size, upload.segment, edition)
            state.pager.add(stored)
            self._add(name, stored)
        return edition

    def _bring(self, name: bytes, stored: ObjectRecord, upload: UploadRecord, edition: int) -> None:
        """What another host held is here, or has been written anew."""
        if upload.edition:
            self._state.brought_ever += upload.size
        self._state.unhold(name, stored, drop=not upload.edition)
        stored.segment, stored.here, stored.edition = upload.segment, True, edition
        self._state.pager.add(stored)
        self._reading.loaded(stored)

    def _add(self, name: bytes, stored: ObjectRecord) -> None:
        state, session = self._state, stored.session
        state.objects[name] = stored
        shelf = state.shelves.setdefault(session, ShelfRecord())
        shelf.objects.add(name)
        if not shelf.owners:
            state.orphans.pop(session, None)
            state.orphans[session] = state.now + self._retention
        self._reading.added(name)

    def drop_upload(self, peer: bytes, record: PeerRecord, name: bytes) -> None:
        """Forget what this peer has written of an object, if anything."""
        record.uploads.discard(name)
        upload = self._state.uploads.pop((peer, name), None)
        if upload is not None:
            self._arrives(upload, -1)
            # Its writer may not know yet, and go on writing.
            upload.segment.lent = upload.allocated
            self._state.pager.pool.give(upload.segment, self._state.now)

    def _arrives(self, upload: UploadRecord, sign: int) -> None:
        """A peer on this host begins to write an object, or ends: only such a one ends whatever others wait for."""
        if upload.allocated:
            self._state.pager.arriving += sign * SegmentPool.cost(upload.segment)

    def forget_requests(self, peer: bytes) -> None:
        """A peer that waits for room is gone."""
        queue = self._state.queue
        kept = [entry for entry in queue if entry[0] != peer or isinstance(entry[1], LoadObject)]
        if len(kept) < len(queue):
            queue.clear()
            queue.extend(kept)

    def drop_session(self, session: int) -> None:
        """Forget what anybody is writing in a session that ends."""
        for writer, name in [key for key, upload in self._state.uploads.items() if upload.session == session]:
            self.drop_upload(writer, self._state.peers[writer], name)


def _same(name: bytes, stored: ObjectRecord | UploadRecord, session: int, size: int) -> None:
    if stored.session != session:
        raise ObjectRefusedError(f"object {name.hex()} belongs to another session")
    if stored.size != size:
        raise ObjectRefusedError(f"object {name.hex()} has {stored.size:,} bytes, not {size:,}")
