"""The tables that the parts of StorageEngine share. No IO but through Segments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from scaler_io.links.effects import Effect, Log, Send
from scaler_protocol.errors import ObjectRefusedError, ScalerError, StorageFullError, describe
from scaler_protocol.handshake import Role
from scaler_protocol.messages import Message
from scaler_protocol.plurals import counted
from scaler_protocol.storage import GetObject, ObjectMapped, ObjectPart
from scaler_storage.engine.awaited_reads import AwaitedReads
from scaler_storage.engine.copies import Copies
from scaler_storage.engine.dropped_copies import DroppedCopies
from scaler_storage.engine.object_budgets import ObjectBudgets
from scaler_storage.engine.pager import Pager
from scaler_storage.engine.pool import SegmentPool
from scaler_storage.engine.records import LoadObject, ObjectRecord, PeerRecord, Read, RoomEvent, SessionObjects
from scaler_storage.engine.room_queue import RoomQueue
from scaler_storage.engine.segments import Segment, Segments
from scaler_storage.engine.uploads import SLOWEST, UploadRecord

FREED_TOGETHER = 128
"""Most objects that are freed in one turn; others wait meanwhile."""


class StorageState:
    """Objects, uploads, sessions, peers, waiting requests and pending effects."""

    def __init__(
        self, segments: Segments, memory_limit: int, spill_limit: int | None, key_of: Callable[[bytes], bytes]
    ) -> None:
        self.segments = segments
        self.pager = Pager(segments, memory_limit, spill_limit)
        self.now = 0.0
        self.peers: dict[bytes, PeerRecord] = {}
        self.objects: dict[bytes, ObjectRecord] = {}
        self.deleted: set[bytes] = set()
        """Objects that were deleted with many others and are freed in pieces; nobody finds them."""
        self.uploads: dict[tuple[bytes, bytes], UploadRecord] = {}
        self.sessions: dict[int, SessionObjects] = {}
        self.orphans: dict[int, float] = {}
        """When the objects of each session without an owner are freed, the earliest first."""
        self.ended: dict[int, None] = {}
        self.queue = RoomQueue(memory_limit, key_of)
        """Requests that wait for room."""
        self.dropped = DroppedCopies()
        self.budgets = ObjectBudgets(memory_limit)
        self.copies = Copies(self.pager, memory_limit, spill_limit)
        self.reads = AwaitedReads()
        self.unanswered: list[tuple[bytes, Read]] = []
        """Reads of objects that copies here have replaced."""
        self.replica_servers: dict[bytes, dict[bytes, None]] = {}
        """By remote host: the agents that serve its objects."""
        self.drops: dict[bytes, list[tuple[bytes, int, int, int]]] = {}
        """By remote host: objects it may delete, as (id, size, session, version)."""
        self.return_until = 0.0
        """Until when peers of an earlier server may put their objects again."""
        self.replicas = self.replica_bytes = self.fetched_bytes_total = 0
        self.refused = 0
        self.hits = self.misses = self.unknown = 0
        self.out: list[Effect] = []
        self._retrying = False

    def send(self, peer: bytes, message: Message) -> None:
        """Send a message at the end of this turn."""
        self.out.append(Send(peer, message))

    def log(self, level: int, text: str) -> None:
        """Write a log line at the end of this turn."""
        self.out.append(Log(level, text))

    def room(self, peer: bytes, event: RoomEvent, size: int) -> Segment | None:
        """Return a segment, or queue the event and return None. Raises StorageFullError.

        It raises this also if the peer's requests in the queue take too many bytes.
        """
        if self.must_queue:
            self.queue.add(peer, event)
            return None
        while self.deleted and self.pager.pool.lack(size):
            self.free(self.deleted.pop())
        segment = self._take(size, patient=not isinstance(event, LoadObject))  # a reader gets parts from disk
        if segment is None:
            self.wait_again(peer, event)
        return segment

    @property
    def must_queue(self) -> bool:
        """Whether requests for room wait behind others."""
        return bool(self.queue) and not self._retrying

    def _take(self, size: int, *, patient: bool) -> Segment | None:
        """As `Pager.take`; the memory of copies is taken first, their disk where nothing else can be moved there."""
        copies = self.copies
        if self.pager.pool.lack(size) > self.pager.pool.used:  # it never fits
            return self.pager.take(size, patient=patient)
        while self.pager.pool.lack(size) and (name := copies.oldest_in_memory()) is not None:
            copies.give_up([name], self.now)
        while True:
            try:
                return self.pager.take(size, patient=patient)
            except StorageFullError:
                if (name := copies.oldest()) is not None:
                    copies.give_up([name], self.now)
                elif not self.give_up_slow_uploads():
                    raise

    # --- uploads ----------------------------------------------------------------------------------------------------

    def begin_upload(self, peer: bytes, name: bytes, upload: UploadRecord) -> None:
        """A peer begins to write an object, in place of an earlier attempt that was dropped."""
        self.uploads[peer, name] = upload
        self.peers[peer].uploads.add(name)
        self._count_upload(upload, 1)

    def end_upload(self, peer: bytes, name: bytes) -> UploadRecord | None:
        """Remove this peer's upload of an object, if any; its segment remains."""
        self.peers[peer].uploads.discard(name)
        upload = self.uploads.pop((peer, name), None)
        if upload is not None:
            self._count_upload(upload, -1)
        return upload

    def seal_upload(self, upload: UploadRecord) -> None:
        """Its writer does not write into its segment any more."""
        self._count_upload(upload, -1)
        upload.allocated = False
        self._count_upload(upload, 1)

    def _count_upload(self, upload: UploadRecord, sign: int) -> None:
        """Count the bytes that peers are writing: they end without more room, so waiting for them is safe."""
        cost = sign * SegmentPool.cost(upload.segment)
        if upload.allocated:
            self.pager.arriving += cost
        else:
            self.pager.uploading += cost

    def drop_upload(self, peer: bytes, name: bytes) -> None:
        """Drop this peer's upload of an object, if any, and give back its segment."""
        upload = self.end_upload(peer, name)
        if upload is not None:
            # Its writer may not know yet, and may continue to write.
            upload.segment.retired = upload.allocated
            self.pager.pool.give(upload.segment, self.now)

    def give_up_slow_uploads(self) -> bool:
        """Drop the uploads of parts that are too slow: their memory is needed. Returns whether there were any."""
        slow = [key for key, upload in self.uploads.items() if upload.is_slow(self.now)]
        for peer, name in slow:
            version = self.uploads[peer, name].version
            self.drop_upload(peer, name)
            self.fail_fetch(peer, name, version, StorageFullError(f"object {name.hex()}: its host sends it too slowly"))
        if slow:
            text = f"memory was needed: gave up {counted(len(slow), 'upload')} slower than {SLOWEST:,} bytes a second"
            self.log(logging.WARNING, text)
        return bool(slow)

    def fail_fetch(self, peer: bytes, name: bytes, version: int, why: ScalerError) -> None:
        """A host does not bring this version of an object, if it was asked to: its readers get the error `why`."""
        stored = self.objects.get(name)
        if stored is not None and (stored.fetching_from, stored.version) == (peer, version):
            stored.fetching_from = b""
            self.refuse_readers(stored, why)

    def wait_again(self, peer: bytes, event: RoomEvent) -> None:
        """Queue an event for room; a retried event keeps its place in front."""
        if self._retrying:
            self.queue.put_back(peer, event)
        else:
            self.queue.add(peer, event)

    def next_waiting(self) -> tuple[bytes, RoomEvent]:
        """Remove the first event of the queue for a retry."""
        self._retrying = True
        return self.queue.next()

    def tried(self) -> None:
        """End the retries: new requests join the end of the queue."""
        self._retrying = False

    def session(self, record: PeerRecord, named: int) -> int:
        """The session a request names; raises ObjectRefusedError if it is another client's or has ended."""
        session = named or record.session
        if not session:
            raise ObjectRefusedError("the request names no session, and the peer has none")
        if record.role == Role.CLIENT and session != record.session:
            raise ObjectRefusedError(f"session {session} is another client's")
        if session in self.ended:
            raise ObjectRefusedError(f"session {session} has ended")
        return session

    def require_record(self, session: int) -> None:
        """Raise StorageFullError if the session may have no further object."""
        entry = self.sessions.get(session)
        account = entry.account if entry is not None else b""
        while self.deleted and self.budgets.is_full(account):
            self.free(self.deleted.pop())
        self.budgets.require(account)

    def own(self, session: int, peer: bytes, secret: bytes, key: bytes) -> None:
        """A peer that has proved `key` owns a session, with the secret that all its owners present."""
        entry = self.sessions.setdefault(session, SessionObjects())
        self.budgets.add(entry.account, -len(entry.objects))
        entry.owners.add(peer)
        entry.key, entry.holder, entry.account = secret, key, key or session.to_bytes(4, "big")
        self.budgets.add(entry.account, len(entry.objects))

    def find(self, name: bytes) -> ObjectRecord | None:
        """Return a readable object, or None if it is unknown or its host is out of reach."""
        record = self.objects.get(name) if name not in self.deleted else None
        return record if record is not None and (not record.host or record.host in self.replica_servers) else None

    def use_copy(self, name: bytes, record: ObjectRecord) -> ObjectRecord | None:
        """Let the copy of a remote object replace it; returns the object, or None if there is no copy."""
        copy = self.copies.take(name)
        if copy is not None:
            self.unanswered += self.reads.take(record)
            self.unset_remote(name, record, drop=True)
            self.objects[name] = copy
        return copy

    def set_remote(self, record: ObjectRecord, host: bytes, version: int) -> None:
        """Record that the only copy of an object is on a remote host."""
        record.host, record.version = host, version
        self.replicas += 1
        self.replica_bytes += record.size

    def unset_remote(self, name: bytes, record: ObjectRecord, *, drop: bool) -> None:
        """Record that an object is no longer only on a remote host; with `drop` that host is told to delete its copy.

        The host may be out of reach, or be lost before it has read that: when it announces the copy, it is refused.
        """
        self.copies.forget(name, self.now)
        self.remember_dropped(name, record.session, record.version)
        if drop and record.host in self.replica_servers:
            row = name, record.size, record.session, record.version
            self.drops.setdefault(record.host, []).append(row)
        record.host = record.fetching_from = b""
        self.replicas -= 1
        self.replica_bytes -= record.size

    def remember_dropped(self, name: bytes, session: int, version: int) -> None:
        """Remember that a copy of an object, or ANY_VERSION of it, is not needed any more, while its session lasts."""
        if (entry := self.sessions.get(session)) is not None:
            self.dropped.remember(session, entry.holder, name, version)

    def forget_session(self, session: int) -> None:
        """Remove a session without owners and objects."""
        self.sessions.pop(session, None)
        self.dropped.forget(session)
        self.orphans.pop(session, None)

    def free_all(self, names: Collection[bytes]) -> None:
        """Free objects: a few at once, many in pieces, of which each turn frees one. Nobody finds them from now on."""
        if len(names) > FREED_TOGETHER:
            self.deleted.update(names)
        else:
            for name in list(names):
                self.free(name)

    def free_piece(self) -> None:
        """Free the next objects of those that were deleted with many others."""
        for _ in range(min(len(self.deleted), FREED_TOGETHER)):
            self.free(self.deleted.pop())

    def free(self, name: bytes, why: ScalerError | None = None) -> None:
        """Free an object; its waiting readers get "not found", or the error `why`."""
        record = self.objects.pop(name)
        self.deleted.discard(name)
        if record.host:
            self.unset_remote(name, record, drop=True)
        entry = self.sessions[record.session]
        entry.objects.discard(name)
        self.budgets.add(entry.account, -1)
        if not entry.objects and not entry.owners:
            self.forget_session(record.session)
        self.pager.drop(record, self.now)
        self.refuse_readers(record, why)

    def refuse_readers(self, record: ObjectRecord, why: ScalerError | None = None) -> None:
        """Answer waiting readers with the error `why`, or with "not found"."""
        for peer, event in self.reads.take(record):
            self.answer_missing(peer, event, why)

    def answer_missing(self, peer: bytes, event: Read, why: ScalerError | None = None) -> None:
        """Answer a read with the error `why`, or with "not found"."""
        error = describe(why).decode() if why is not None else ""
        kind = ObjectPart if isinstance(event, GetObject) else ObjectMapped
        self.send(peer, kind(event.object, False, request=event.request, error=error))


def require_local(record: PeerRecord, message: Message) -> None:
    """Raise ObjectRefusedError unless the peer has proven that it is on this host."""
    if not record.local:
        raise ObjectRefusedError(f"{type(message).__name__} came before a HostProof")
