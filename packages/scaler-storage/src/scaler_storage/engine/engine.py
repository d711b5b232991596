"""StorageEngine: the object store. Events in, effects out.

It is an engine, not a core: it is deterministic but for its injected port, `Segments`, through which it reads and
writes bytes. It knows no socket, path or process.

Remote peers put and get the parts of an object, cut at multiples of PART_BYTES. Local peers (those that can read a
token in the segment directory) write into segments themselves and map the segments of others. Each writer has its own
copy (an upload). The first complete upload becomes the object; a later upload of the same id and size is dropped and
acknowledged as stored, because a task that runs twice stores its result twice.

    first PutObject ─▶ UPLOAD ──all parts──▶ OBJECT ──DeleteObjects, its session ends──▶ unknown
    AllocateObject ──▶   │  ──SealObject───▶
                         └──a part refused, DeleteObjects, writer lost, session ends──▶ unknown

An object belongs to a session. A client writes and deletes in its own session only. An agent's workers write in any
session that they name, and delete the objects there whose ids they know. Any peer that knows an id may read the object.
A peer whose Hello names a session owns it: a client, or a worker whose tasks submit tasks. Further owners must present
the key of the first. A session ends with its last owner and then refuses objects, so that a late worker leaks nothing,
until an owner returns. The objects of a *named* session are orphans then; the scheduler owns such a session, too, until
it ends it. A client connects when it has its first object or is told of one. The objects of a session without an owner
are orphans: all are freed `retention_seconds` after the last one was written.

Memory is bounded: scaler_storage.engine.pager spills objects that are not mapped. A request that needs room waits in a
queue, or is refused if no room can be made; an upload whose parts come too slowly gives way. Large results may stay on
the host that made them (scaler_storage.engine.remote_objects); those that the scheduler names are copied here
(scaler_storage.engine.copies). A mapped segment is pinned: its bytes do not change until the pin is released.
A segment that a lost peer may still use is never reused. A local process may hold a lock for as long as it lives. When
the lock is free, its uploads and pins end, even if its connection is still open, and its session ends some seconds
later (scaler_storage.engine.processes).

Objects that are deleted together, more than FREED_TOGETHER, are unknown at once and freed in pieces, one per turn.

Invariants (`check`): those of the pager; every upload has a known writer; every object is listed in exactly its
session; every pin has a known peer; the orphaned sessions are those without an owner whose objects are not all being
freed, ordered by due time; nothing but objects that are being freed is left of an ended session. After
`settle`, requests wait for room only while objects are being spilled or uploads are in progress.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from scaler_io.links.admission import Permissions, admit
from scaler_io.links.effects import Effect
from scaler_io.links.events import HubEvent, PeerJoined, PeerLost, SendFailed
from scaler_protocol.errors import ProtocolError, StorageFullError
from scaler_protocol.handshake import Hello, Refused, Role, ServiceKind, Welcome
from scaler_protocol.light_crypto import compare_digest
from scaler_protocol.monitoring import NeedStorageStatus, StorageStatus
from scaler_protocol.objects import host_proof, part_count
from scaler_protocol.plurals import counted
from scaler_protocol.sessions import KeepSession
from scaler_protocol.storage import (
    AllocateObject,
    CopyReplicas,
    DeleteObjects,
    DropReplicas,
    GetObject,
    HostProof,
    ListObjects,
    MapObject,
    PutObject,
    RegisterReplica,
    RegisterReplicaServer,
    SealObject,
    UnpinObjects,
)
from scaler_storage.engine.copy_orders import CopyOrders
from scaler_storage.engine.listings import Listings
from scaler_storage.engine.processes import LOOK_SECONDS, ProcessLiveness
from scaler_storage.engine.readers import Readers
from scaler_storage.engine.reading import Reading
from scaler_storage.engine.records import LoadObject, PeerRecord, SessionObjects
from scaler_storage.engine.remote_objects import RemoteObjects
from scaler_storage.engine.segments import Segments
from scaler_storage.engine.send_failures import SendFailures
from scaler_storage.engine.state import StorageState
from scaler_storage.engine.totals import status_of
from scaler_storage.engine.writing import Writing

HEARTBEAT_SECONDS = 5.0
WRITING_SECONDS = 10.0
"""How long, in seconds, requests wait for room while only uploads are in progress."""
RETURN_SECONDS = 2.0
"""How long, in seconds, peers of an earlier server may put their objects again, from the first such peer on."""
_ENDED_LIMIT = 65_536
"""How many ended sessions are remembered."""
_COUNT_BITS = 40
"""Pins and versions are the incarnation and a counter of this many bits: those of an earlier server never match."""

_ORDERS: Final = "NeedStorageStatus, KeepSession and CopyReplicas"
_ROLES = (Role.CLIENT, Role.AGENT, Role.OPERATOR)

_OBJECTS: Final = frozenset(
    {
        HostProof,
        PutObject,
        AllocateObject,
        SealObject,
        DeleteObjects,
        GetObject,
        MapObject,
        UnpinObjects,
        ListObjects,
    }
)
PERMITTED: Final[Permissions] = {
    Role.CLIENT: _OBJECTS,
    Role.AGENT: _OBJECTS | {RegisterReplicaServer, RegisterReplica, DropReplicas},
    Role.OPERATOR: frozenset({NeedStorageStatus, KeepSession, CopyReplicas, DeleteObjects}),
}
"""Messages that peers of each role may send to object storage."""


class StorageEngine:
    """The object storage server without its sockets and files. Events enter by `handle`, effects leave by `settle`."""

    def __init__(
        self,
        incarnation: int,
        segments: Segments,
        memory_limit: int,
        retention_seconds: float = 60.0,
        spill_limit: int | None = None,
        *,
        key_of: Callable[[bytes], bytes] = lambda peer: b"",
        unacknowledged: Callable[[bytes], int] = lambda peer: 0,
        port: int = 0,
    ) -> None:
        """`key_of` tells the key that a peer has proved, `unacknowledged` the bytes that it has not acknowledged."""
        self._incarnation, self._port = incarnation, port
        self._segments = segments
        self._state = StorageState(segments, memory_limit, spill_limit, key_of)
        self._remote = RemoteObjects(self._state)
        self._key_of = key_of
        self._readers = Readers(key_of, unacknowledged)
        self._reading = Reading(self._state, self._remote, self._readers, incarnation << _COUNT_BITS)
        self._listings = Listings(self._state, self._readers)
        self._writing = Writing(self._state, self._reading, retention_seconds, incarnation << _COUNT_BITS)
        self._copy_orders = CopyOrders(self._state, self._is_idle)
        self._send_failures = SendFailures(self._state, self._reading)
        self._saw_earlier_server = False
        """Whether a peer of an earlier server has connected."""
        self._processes = ProcessLiveness(segments)
        self._restored_at = 0.0
        """When the segment directory was last checked."""
        self._stalled: float | None = None
        """Since when requests wait for room that only local uploads can give."""
        self._handlers: dict[type[Any], Callable[[bytes, Any], None]] = {
            PeerJoined: self._joined,
            PeerLost: self._lost,
            HostProof: self._prove,
            PutObject: self._writing.put,
            AllocateObject: self._writing.allocate,
            SealObject: self._writing.seal,
            DeleteObjects: self._writing.delete,
            GetObject: self._reading.get,
            MapObject: self._reading.map,
            UnpinObjects: self._reading.unpin,
            NeedStorageStatus: lambda peer, event: self._state.send(peer, self.status()),
            ListObjects: self._listings.add,
            KeepSession: self._keep,
            RegisterReplicaServer: self._remote.register,
            RegisterReplica: self._writing.announce,
            DropReplicas: self._remote.dropped,
            CopyReplicas: self._copy_orders.want,
        }

    def admit(self, hello: Hello) -> Welcome | Refused:
        """Welcome a peer, or refuse it with every reason."""
        refusals: list[str] = []
        if self._has_other_owner(hello):
            refusals.append(f"session {hello.session} is another client's")
        welcome = Welcome(
            self._incarnation,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            segment_directory=self._segments.directory,
            challenge=self._segments.challenge if self._segments.directory else b"",
        )
        scheduler = f"whose port is {self._port - 1} by default" if self._port else ""
        return admit(hello, welcome, service=ServiceKind.STORAGE, roles=_ROLES, refusals=refusals, other=scheduler)

    def _has_other_owner(self, hello: Hello) -> bool:
        entry = self._state.sessions.get(hello.session)
        return entry is not None and entry.key is not None and not compare_digest(entry.key, hello.session_key)

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Process one event; raises ProtocolError, and changes nothing, if this peer may not send the message."""
        self._state.now = now
        if isinstance(event, SendFailed):
            self._send_failures.failed(peer, event.message)
            return
        handler = self._handlers.get(type(event))
        if handler is None:
            raise ProtocolError(f"unexpected message {type(event).__name__}")
        known = self._state.peers.get(peer)
        operates = known is not None and known.role == Role.OPERATOR
        is_order = isinstance(event, NeedStorageStatus | KeepSession | CopyReplicas)
        if operates != is_order and not isinstance(event, PeerJoined | PeerLost | DeleteObjects):
            raise ProtocolError(f"{_ORDERS} are sent by operators and the scheduler, who send nothing else")
        self._processes.heard(peer)
        handler(peer, event)

    def settle(self, now: float) -> list[Effect]:
        """Return the effects of all handled events, in order."""
        state = self._state
        state.now = now
        if now >= self._restored_at + LOOK_SECONDS:
            self._restored_at = now
            if self._segments.restored():
                self._lose_segments()
        self._writing.fullness.settle(now)
        self._take_moved()
        self._reap_dead_processes()
        while state.orphans and next(iter(state.orphans.values())) <= now:
            session = next(iter(state.orphans))
            state.log(logging.DEBUG, f"objects of session {session} are freed: no owner connected in time")
            state.free_all(state.sessions[session].objects)
            state.orphans.pop(session, None)
        state.free_piece()
        state.pager.pool.trim(now)
        self._retry_waiting()
        if not state.queue or state.pager.moving:
            self._stalled = None
        elif self._stalled is None:
            self._stalled = now
        elif now >= self._stalled + WRITING_SECONDS:
            self._stalled = None
            if state.give_up_slow_uploads():
                self._retry_waiting()
            else:
                self._refuse_waiting(f"the uploads in progress were not finished within {WRITING_SECONDS:g} s")
        self._remote.retry_late()
        self._reading.answer_from_copies()
        self._reading.expect_no_more()
        self._reading.resume()
        self._listings.settle()
        self._readers.end_turn()
        self._copy_orders.settle()
        self._remote.send_drops()
        self._send_failures.resend()
        out, state.out = state.out, []
        return out

    def _is_idle(self) -> bool:
        return self._remote.due() is None and not self._readers.peers()

    def _lose_segments(self) -> None:
        """Drop the objects of a segment directory that another program removed."""
        state = self._state
        self._processes.forget_all()
        state.pager.pool.forget_kept()
        for peer, name in [key for key, upload in state.uploads.items() if upload.allocated]:
            state.drop_upload(peer, name)
        records = {
            *state.objects.values(),
            *state.copies.records(),
            *(record for _, record in self._reading.pins.values()),
        }
        segments = [*(record.segment for record in records), *(upload.segment for upload in state.uploads.values())]
        for segment in filter(None, segments):
            segment.retired = True  # its file is gone
        lost = [name for name, each in state.objects.items() if each.in_memory and each.segment and each.segment.name]
        for name in lost:
            state.free(name)
        copies = zip(state.copies.names(), state.copies.records(), strict=True)
        state.copies.give_up([name for name, each in copies if each.in_memory], state.now)
        state.log(
            logging.ERROR,
            f"segment directory {self._segments.directory} was removed by another program and is recreated; "
            f"lost {counted(len(lost), 'object')}. systemd-logind does so at logout: see RemoveIPC= in logind.conf, "
            "--segment-directory",
        )

    def _reap_dead_processes(self) -> None:
        """End the uploads, pins and sessions of dead processes; their connections may take long to break."""
        peers, now = self._state.peers, self._state.now
        for peer in self._processes.look(now):
            self._leave(peer, peers[peer])
        for peer in self._processes.expired(now):
            self._disown(peer, peers[peer], "its process ended")
            peers[peer].session = 0

    def _take_moved(self) -> None:
        """Process the spills and loads that have finished."""
        state = self._state
        loaded, failed, failure = state.pager.finished(state.now)
        for record in loaded:
            self._reading.loaded(record)
        for record, moved in failed:
            self._reading.failed(record, moved)
        if failure:
            # Later requests try the disk again.
            self._refuse_waiting(f"no object can be moved to disk: {failure}")

    def _refuse_waiting(self, why: str) -> None:
        """Refuse all requests that wait for room."""
        state, full = self._state, StorageFullError(f"the memory is full, and {why}")
        for peer, event in state.queue.remove(lambda peer, event: True):
            if isinstance(event, LoadObject):
                self._reading.refuse(event, full)
            else:
                self._writing.refuse(peer, event, full)

    def _retry_waiting(self) -> None:
        """Handle waiting requests in order, as long as there is room."""
        state = self._state
        while state.queue:
            peer, event = state.next_waiting()
            if isinstance(event, LoadObject):
                self._reading.load(peer, event)
            elif isinstance(event, PutObject):
                self._writing.put(peer, event)
            else:
                self._writing.allocate(peer, event)
            if state.queue and state.queue.first is event:
                break
        state.tried()

    def due(self) -> float | None:
        """When `settle` has something to do next, or None."""
        orphans = next(iter(self._state.orphans.values()), None)
        stalled = None if self._stalled is None else self._stalled + WRITING_SECONDS
        deleted = self._state.now if self._state.deleted else None
        others = (
            self._processes.due(),
            self._remote.due(),
            self._copy_orders.due(),
            self._reading.due(),
            self._listings.due(),
            self._state.pager.pool.due(),
            self._send_failures.due(),
            self._writing.fullness.due(),
        )
        return min((at for at in (orphans, stalled, deleted, *others) if at is not None), default=None)

    def status(self) -> StorageStatus:
        """The current totals."""
        return status_of(self._state, self._writing.fullness.lately(self._state.now))

    # --- peers ------------------------------------------------------------------------------------------------------

    def _joined(self, peer: bytes, event: PeerJoined) -> None:
        if event.resumed:
            return
        state, hello = self._state, event.hello
        if hello.peer_incarnation not in (0, self._incarnation) and not self._saw_earlier_server:
            self._saw_earlier_server, state.return_until = True, state.now + RETURN_SECONDS
        old = state.peers.get(peer)
        if old is not None:
            self._leave(peer, old)
            self._processes.remove(peer)
        state.peers[peer] = PeerRecord(hello.role, hello.session)
        if hello.session:
            state.ended.pop(hello.session, None)
            state.orphans.pop(hello.session, None)
            state.own(hello.session, peer, hello.session_key, self._key_of(peer))
        if old is not None and old.session != hello.session:
            self._disown(peer, old, "its client began another session")

    def _lost(self, peer: bytes, event: PeerLost) -> None:
        record = self._state.peers[peer]
        self._leave(peer, record)
        del self._state.peers[peer]
        self._processes.remove(peer)
        self._disown(peer, record, event.reason)
        for session in record.kept:
            self._release(session, peer, event.reason)

    def _leave(self, peer: bytes, record: PeerRecord) -> None:
        """End the uploads, requests, pins and fetches of a peer."""
        for name in list(record.uploads):
            self._state.drop_upload(peer, name)
        self._writing.forget_requests(peer)
        self._reading.leave(peer, record)
        self._listings.leave(peer)
        self._remote.leave(peer, record)

    def _prove(self, peer: bytes, event: HostProof) -> None:
        expected = host_proof(self._segments.token, self._segments.challenge, peer)
        if not self._segments.directory or not compare_digest(event.proof, expected):
            raise ProtocolError("HostProof.proof does not answer the challenge of this server")
        if event.lock_file and not event.lock_file.isalnum():
            raise ProtocolError(f"HostProof.lock_file is {event.lock_file!r}, not letters and digits")
        self._state.peers[peer].local = True
        if event.lock_file:
            self._processes.add(peer, event.lock_file)

    def _keep(self, peer: bytes, event: KeepSession) -> None:
        """The scheduler owns a named session, whichever clients come and go, or ends it."""
        state = self._state
        entry, record = state.sessions.get(event.session), state.peers[peer]
        if entry is not None and entry.key is not None and not compare_digest(entry.key, event.key):
            raise ProtocolError(f"session {event.session} has another key")
        if event.keep:
            state.ended.pop(event.session, None)
            state.orphans.pop(event.session, None)
            entry = state.sessions.setdefault(event.session, SessionObjects())
            entry.owners.add(peer)
            entry.key, entry.named = event.key, True
            record.kept.add(event.session)
        elif entry is not None:
            state.free_all(entry.objects)
            entry.named = False
            record.kept.discard(event.session)
            self._release(event.session, peer, "the scheduler has ended it")

    def _disown(self, peer: bytes, record: PeerRecord, reason: str) -> None:
        if record.session not in record.kept:
            self._release(record.session, peer, reason)

    def _release(self, session: int, peer: bytes, reason: str) -> None:
        """A session loses an owner. A named one waits for another, as the objects of a session without owner do."""
        entry = self._state.sessions.get(session)
        if entry is None or peer not in entry.owners:
            return
        entry.owners.discard(peer)
        if entry.owners:
            return
        if not entry.named:
            self._end_session(session, entry, reason)
        elif entry.objects:
            self._writing.orphan(session)
        else:
            self._state.forget_session(session)

    def _end_session(self, session: int, entry: SessionObjects, reason: str) -> None:
        state = self._state
        self._writing.drop_session(session)
        count = len(entry.objects)
        state.free_all(entry.objects)
        state.orphans.pop(session, None)
        if not entry.objects:
            state.forget_session(session)
        state.ended[session] = None
        if len(state.ended) > _ENDED_LIMIT:
            del state.ended[next(iter(state.ended))]
        state.log(logging.DEBUG, f"session {session} ended ({reason}), {counted(count, 'object')} freed")

    def check(self) -> None:
        """Assert the invariants."""
        state = self._state
        pinned = {record for _, record in self._reading.pins.values()}
        writing = [upload.segment for upload in state.uploads.values()]
        state.queue.check()
        state.dropped.check()
        state.reads.check(state.objects.values())
        objects_of = Counter[bytes]()
        for entry in state.sessions.values():
            objects_of[entry.account] += len(entry.objects)
        state.budgets.check(objects_of)
        here = [record for record in state.objects.values() if not record.host]
        state.pager.check([*here, *state.copies.records()], pinned, writing)
        self._remote.check()
        self._copy_orders.check()
        listed = {(name, session) for session, entry in state.sessions.items() for name in entry.objects}
        assert listed == {(name, record.session) for name, record in state.objects.items()}
        assert all(entry.owners or entry.objects for entry in state.sessions.values())
        assert state.deleted <= state.objects.keys()
        for upload in state.uploads.values():
            assert len(upload.parts) + upload.missing == part_count(upload.size) and upload.missing
            assert upload.session not in state.ended
        assert set(state.uploads) == {(peer, name) for peer, record in state.peers.items() for name in record.uploads}
        unowned = {session: entry for session, entry in state.sessions.items() if not entry.owners}
        assert state.orphans.keys() <= unowned.keys() - state.ended
        assert all(entry.objects <= state.deleted for session, entry in unowned.items() if session not in state.orphans)
        assert list(state.orphans.values()) == sorted(state.orphans.values())
        owners = {(peer, record.session) for peer, record in state.peers.items() if record.session}
        owners |= {(peer, session) for peer, record in state.peers.items() for session in record.kept}
        assert owners == {(peer, session) for session, entry in state.sessions.items() for peer in entry.owners}
        pins = {(peer, pin) for peer, record in state.peers.items() for pin in record.pins}
        self._processes.check(state.peers.keys())
        assert pins == {(peer, pin) for pin, (peer, _) in self._reading.pins.items()}
        assert all(peer in state.peers for peer, event in state.queue if not isinstance(event, LoadObject))
        costs = Counter[bool]()
        for upload in state.uploads.values():
            costs[upload.allocated] += state.pager.pool.cost(upload.segment)
        assert (costs[True], costs[False]) == (state.pager.arriving, state.pager.uploading)
        for record in state.objects.values():
            assert not record.waiting or not record.in_memory
