"""Writing: uploads, and the objects they become. scaler_storage.engine.engine explains the theory."""

from __future__ import annotations

from scaler_protocol.errors import ObjectRefusedError, ProtocolError, StorageFullError, describe
from scaler_protocol.handshake import Role
from scaler_protocol.objects import OBJECT_ID_BYTES, PART_BYTES, part_count
from scaler_protocol.storage import (
    AllocateObject,
    DeleteObjects,
    ObjectAllocated,
    ObjectStored,
    PutObject,
    RegisterReplica,
    SealObject,
)
from scaler_storage.engine.dropped_copies import ANY_VERSION
from scaler_storage.engine.fullness import REMEDY, Fullness
from scaler_storage.engine.reading import Reading
from scaler_storage.engine.records import LoadObject, ObjectRecord, PeerRecord, SessionObjects
from scaler_storage.engine.state import StorageState, require_local
from scaler_storage.engine.uploads import SLOWEST, UploadRecord


class Writing:
    """Handles requests that create, announce or delete objects."""

    def __init__(
        self,
        state: StorageState,
        reading: Reading,
        retention_seconds: float,
        last_version: int,
    ) -> None:
        self._state, self._reading = state, reading
        self._retention = retention_seconds
        self._version = last_version
        self.fullness = Fullness(state.log)

    def put(self, peer: bytes, event: PutObject) -> None:
        """Store a part and answer ObjectStored, or queue the request for room."""
        record = self._state.peers[peer]
        try:
            version = self._take(peer, record, event)
        except ObjectRefusedError as refusal:
            self.refuse(peer, event, refusal)
        else:
            if version is not None:
                self._state.send(peer, ObjectStored(event.object, event.request, version=version))

    def allocate(self, peer: bytes, event: AllocateObject) -> None:
        """Answer with a segment or an error, or queue the request for room."""
        record, name = self._state.peers[peer], event.object
        self._state.drop_upload(peer, name)
        segment = ""
        try:
            require_local(record, event)
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
        """Answer a write with an error, and drop the upload."""
        if isinstance(refusal, StorageFullError):
            self.fullness.refused(str(refusal), self._state.now)
            refusal = StorageFullError(f"{refusal}; {REMEDY}")
        self._state.drop_upload(peer, event.object)
        self._state.refused += 1
        self._state.fail_fetch(peer, event.object, event.version if isinstance(event, PutObject) else 0, refusal)
        kind = ObjectStored if isinstance(event, PutObject) else ObjectAllocated
        self._state.send(peer, kind(event.object, request=event.request, error=describe(refusal).decode()))

    def seal(self, peer: bytes, event: SealObject) -> None:
        """Complete an object that its writer has written into a segment."""
        record, version, error = self._state.peers[peer], 0, ""
        upload = self._state.uploads.get((peer, event.object))
        try:
            if upload is None or not upload.allocated or upload.segment.name != event.segment:
                name = event.object.hex()
                raise ObjectRefusedError(f"object {name} has no segment {event.segment!r} allocated to this peer")
            # Another writer may have completed an object of this id meanwhile.
            self._check(record, event.object, upload.size, upload.session)
            self._state.seal_upload(upload)
            version = self._complete(peer, record, event.object, upload)
        except ObjectRefusedError as refusal:
            self._state.drop_upload(peer, event.object)
            self._state.refused += 1
            error = describe(refusal).decode()
        self._state.send(peer, ObjectStored(event.object, event.request, error, version))

    def announce(self, peer: bytes, event: RegisterReplica) -> None:
        """Register an object whose bytes stay on a remote host."""
        version, error = 0, ""
        try:
            if event.host not in self._state.replica_servers or not event.version:
                raise ObjectRefusedError(f"object {event.object.hex()}: its host has no replica server")
            session = self._check(self._state.peers[peer], event.object, event.size, event.session)
            version = self._announce(event, session)
        except ObjectRefusedError as refusal:
            self._state.refused += 1
            error = describe(refusal).decode()
        self._state.send(peer, ObjectStored(event.object, event.request, error, version))

    def _announce(self, event: RegisterReplica, session: int) -> int:
        """The registered version; 0 if the object is stored here or on another host."""
        state, name = self._state, event.object
        if state.dropped.has(session, name, event.version):
            return 0
        stored = state.objects.get(name)
        if stored is None:
            state.require_record(session)
            record = ObjectRecord(session, event.size, None, in_memory=False)
            state.set_remote(record, event.host, event.version)
            self._add(name, record)
        elif (stored.host, stored.version) != (event.host, event.version):
            if not stored.host or stored.host in state.replica_servers:
                return 0
            state.unset_remote(name, stored, drop=True)
            state.set_remote(stored, event.host, event.version)
        return event.version

    def delete(self, peer: bytes, event: DeleteObjects) -> None:
        """Free objects of a session, and this peer's uploads of them; raises ProtocolError for another's."""
        state = self._state
        record = state.peers[peer]
        session = event.session or record.session
        if record.role == Role.CLIENT and session != record.session:
            raise ProtocolError(f"a client of session {record.session} cannot delete objects of session {session}")
        if session != record.session and not event.objects:
            raise ProtocolError(f"an agent can delete only objects that it names, not all of session {session}")
        entry = state.sessions.get(session)
        for name in event.objects:
            upload = state.uploads.get((peer, name))
            if upload is not None and upload.session == session:
                self._state.drop_upload(peer, name)
        if self._state.queue:
            self._stop_waiting(peer, set(event.objects))
        known = entry.objects if entry is not None else set[bytes]()
        for name in event.objects:
            if name not in known:  # a host that is out of reach may have it
                state.remember_dropped(name, session, ANY_VERSION)
        state.free_all(known.intersection(event.objects) if event.objects else known)

    def _stop_waiting(self, peer: bytes, names: set[bytes]) -> None:
        """Refuse this peer's waiting writes of deleted objects."""
        removed = self._state.queue.remove(
            lambda writer, event: writer == peer and event.object in names and not isinstance(event, LoadObject)
        )
        for _, event in removed:
            assert not isinstance(event, LoadObject)
            self.refuse(peer, event, ObjectRefusedError(f"object {event.object.hex()} was deleted"))

    def _check(self, record: PeerRecord, name: bytes, size: int, named: int) -> int:
        """The session of an object that the peer may write; raises ObjectRefusedError if it may not."""
        session = self._state.session(record, named)
        if len(name) != OBJECT_ID_BYTES:
            raise ObjectRefusedError(f"an object's id has {OBJECT_ID_BYTES} bytes, not {len(name)}")
        if name in self._state.deleted:
            self._state.free(name)
        stored = self._state.objects.get(name)
        if stored is not None:
            _same(name, stored, session, size)
        return session

    def _take(self, peer: bytes, record: PeerRecord, event: PutObject) -> int | None:
        """Store a part, or queue it for room and return None; raises ObjectRefusedError for a part that is not valid.

        Returns the version of the object that the part completes, else 0.
        """
        state, name, size, part = self._state, event.object, event.size, event.parts.frame
        index, rest = divmod(event.offset, PART_BYTES)
        if rest or index >= part_count(size) or len(part) != min(PART_BYTES, size - event.offset):
            raise ObjectRefusedError(
                f"object {name.hex()}: {len(part):,} bytes at {event.offset:,} are not a part of {size:,} bytes"
            )
        session = self._check(record, name, size, event.session)
        stored = state.objects.get(name)
        if event.version and (stored is None or stored.version != event.version):
            raise ObjectRefusedError(f"object {name.hex()} has another version, or is not on that host")
        if stored is not None and stored.host and event.version and not event.keep:
            stored = state.use_copy(name, stored) or stored  # its host gives it up
        if stored is not None and not stored.host:
            self._state.drop_upload(peer, name)
            return 0
        upload = state.uploads.get((peer, name))
        if upload is None:
            upload = self._begin(peer, record, event, session)
            if upload is None:
                return None
        _same(name, upload, session, size)
        if upload.allocated:
            raise ObjectRefusedError(f"object {name.hex()} was allocated: write into its segment")
        upload.keep = upload.keep and event.keep
        if index not in upload.parts:
            state.segments.write(upload.segment, event.offset, part)
            upload.parts.add(index)
            upload.missing -= 1
        return 0 if upload.missing else self._complete(peer, record, name, upload)

    def _begin(
        self, peer: bytes, record: PeerRecord, event: PutObject | AllocateObject, session: int
    ) -> UploadRecord | None:
        """Reserve room for the whole object, so that each upload can be finished; queue for room and return None."""
        allocated = isinstance(event, AllocateObject)
        version = event.version if isinstance(event, PutObject) else 0
        keep = isinstance(event, PutObject) and event.keep and version > 0
        if isinstance(event, PutObject) and event.offset and not self._state.must_queue:
            raise StorageFullError(  # as its first part was, mostly
                f"object {event.object.hex()}: its first part must come before the one at {event.offset:,}; or there "
                f"was no room for it, or it came slower than {SLOWEST:,} bytes a second while others needed the memory"
            )
        if keep and self._state.pager.pool.lack(event.size) and not self._state.objects[event.object].waiting:
            raise ObjectRefusedError(f"object {event.object.hex()}: there is no room for a copy")
        try:
            if event.object not in self._state.objects:
                self._state.require_record(session)
            segment = self._state.room(peer, event, event.size)
        except StorageFullError as full:
            raise StorageFullError(f"object {event.object.hex()}: {full}") from full
        if segment is None:
            return None
        missing = part_count(event.size)
        upload = UploadRecord(session, event.size, segment, missing, self._state.now, allocated, version, keep)
        self._state.begin_upload(peer, event.object, upload)
        if allocated and not segment.name:
            raise ObjectRefusedError(f"object {event.object.hex()} of {event.size:,} bytes is too small for a segment")
        return upload

    def _complete(self, peer: bytes, record: PeerRecord, name: bytes, upload: UploadRecord) -> int:
        """Make the first complete upload the object; returns its version, 0 for later uploads."""
        state = self._state
        stored = state.objects.get(name)
        is_late = upload.keep and stored is not None and (name in state.copies or stored.version != upload.version)
        if stored is not None and (not stored.host or is_late):
            self._state.drop_upload(peer, name)
            return 0
        state.end_upload(peer, name)
        if not upload.version:
            self._version += 1
        version = upload.version or self._version
        if stored is not None and upload.keep and not stored.waiting:
            copy = ObjectRecord(stored.session, stored.size, upload.segment, version)
            state.copies.add(name, state.sessions[stored.session].holder, copy)
        elif stored is not None:
            self._replace_remote(name, stored, upload, version)
        else:
            stored = ObjectRecord(upload.session, upload.size, upload.segment, version)
            state.pager.add(stored)
            self._add(name, stored)
        return version

    def _replace_remote(self, name: bytes, stored: ObjectRecord, upload: UploadRecord, version: int) -> None:
        """Replace a remote object by its bytes, fetched or written again."""
        if upload.version:
            self._state.fetched_bytes_total += upload.size
        self._state.unset_remote(name, stored, drop=upload.keep or not upload.version)
        stored.segment, stored.in_memory, stored.version = upload.segment, True, version
        self._state.pager.add(stored)
        self._reading.loaded(stored)

    def _add(self, name: bytes, stored: ObjectRecord) -> None:
        state, session = self._state, stored.session
        state.objects[name] = stored
        entry = state.sessions.setdefault(session, SessionObjects())
        entry.objects.add(name)
        state.budgets.add(entry.account, 1)
        state.dropped.needed_again(session, name)
        if not entry.owners:
            self.orphan(session)
        self._reading.added(name)

    def orphan(self, session: int) -> None:
        """The objects of a session without owner are freed after the retention."""
        self._state.orphans.pop(session, None)
        self._state.orphans[session] = self._state.now + self._retention

    def forget_requests(self, peer: bytes) -> None:
        """Remove the waiting writes of a lost peer."""
        self._state.queue.remove(lambda writer, event: writer == peer and not isinstance(event, LoadObject))

    def drop_session(self, session: int) -> None:
        """Drop all uploads of a session that ends."""
        for writer, name in [key for key, upload in self._state.uploads.items() if upload.session == session]:
            self._state.drop_upload(writer, name)


def _same(name: bytes, stored: ObjectRecord | UploadRecord, session: int, size: int) -> None:
    if stored.session != session:
        raise ObjectRefusedError(f"object {name.hex()} belongs to another session")
    if stored.size != size:
        raise ObjectRefusedError(f"object {name.hex()} has {stored.size:,} bytes, not {size:,}")
