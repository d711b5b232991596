"""StorageCore: which bytes are kept for whom. Events in, effects out, no IO but through the Segments it is given.

Peers elsewhere send and get the parts of an object, cut at multiples of PART_BYTES; peers on this host (who can read a
token from the segments' directory) write into a segment themselves and map those of others. Each writer has its own
copy (an upload); the first complete one becomes the object, and what others bring under the same id and size afterwards
counts as stored: a task that is run twice stores its result twice.

    first PutObject ─▶ UPLOAD ──all parts──▶ OBJECT ──DeleteObjects, its session ends──▶ unknown
    AllocateObject ──▶   │  ──SealObject───▶
                         └──a part refused, DeleteObjects, its writer is lost, its session ends──▶ unknown

An object belongs to a session. A client writes and deletes in its own session only, an agent's workers in any that
they name, where they delete what they can name; whoever knows an id may read. Who says Hello with a session owns it: a
client, or a worker whose tasks submit tasks; further owners must have the key of the first. A session ends with the
last owner of it, and takes nothing from then on (a straggling worker must not leak), unless an owner comes back.
Clients come when they have, or are told of, a first object; objects of a session whose owner has not come are orphans:
all are freed `retention_seconds` after the last one was written.

Memory is bounded: scaler_storage.engine.pager spills what is not mapped, and requests that need room wait in a queue
for it, or are refused where there can be none. What other hosts have made may stay there
(scaler_storage.engine.holding). A mapped segment is pinned: the bytes under it do not change until the pin is given
back. Segments that a lost or careless peer may still use are never used again. A peer on this host may hold a lock as
long as its process lives: once that is free, what the peer was doing ends, whether or not its connection is gone, and
its session some seconds later (scaler_storage.engine.processes).

Invariants (`check`): what the pager's do; every upload has a known writer; every object stands on the shelf of exactly
its session; every pin has a known peer; the orphaned sessions are those without an owner, the one that is due first in
front. And after `settle` nobody waits for room unless something is being moved to disk, or written by peers on this
host.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from typing import Any

from scaler_io.links.effects import Effect
from scaler_io.links.events import HubEvent, PeerJoined, PeerLost, SendFailed
from scaler_protocol.errors import ProtocolError, StorageFullError
from scaler_protocol.handshake import PROTOCOL_VERSION, Hello, RefusalCode, Refused, Role, Welcome
from scaler_protocol.monitoring import NeedStorageStatus, StorageStatus
from scaler_protocol.objects import part_count
from scaler_protocol.storage import (
    AllocateObject,
    DeleteObjects,
    DropObjects,
    GetObject,
    HoldObject,
    HostProof,
    ListObjects,
    MapObject,
    PutObject,
    SealObject,
    SpeakForHost,
    UnpinObjects,
)
from scaler_storage.engine.holding import Holding
from scaler_storage.engine.processes import LOOK_SECONDS, Processes
from scaler_storage.engine.reading import Reading
from scaler_storage.engine.records import LoadObject, PeerRecord, ShelfRecord
from scaler_storage.engine.segments import Segments
from scaler_storage.engine.state import StorageState
from scaler_storage.engine.totals import status_of
from scaler_storage.engine.unsent import Unsent
from scaler_storage.engine.writing import Writing

HEARTBEAT_SECONDS = 5.0
WRITING_SECONDS = 10.0
"""How long somebody who is writing may keep others waiting for room."""
RETURN_SECONDS = 2.0
"""From the first one who knew an earlier server until nobody else is expected to come back with what he has."""
_ENDED_LIMIT = 65_536
"""Ended sessions that are remembered."""
_COUNT_BITS = 40
"""Pins and editions are the incarnation and a counter: those of an earlier server are nobody's and nothing's now."""


class StorageCore:
    """All of the object storage server but its sockets and files. `handle` is the only way in, `settle` the way out."""

    def __init__(
        self,
        incarnation: int,
        segments: Segments,
        memory_limit: int,
        retention_seconds: float = 60.0,
        spill_limit: int | None = None,
        client_timeout_seconds: float = 60.0,
    ) -> None:
        self._incarnation = incarnation
        self._client_timeout = client_timeout_seconds
        self._segments = segments
        self._state = StorageState(segments, memory_limit, spill_limit)
        self._holding = Holding(self._state)
        self._reading = Reading(self._state, self._holding, incarnation << _COUNT_BITS)
        self._writing = Writing(self._state, self._reading, retention_seconds, incarnation << _COUNT_BITS)
        self._unsent = Unsent(self._state, self._writing, self._reading)
        self._followed = False
        """Whether somebody has come who knew another server here."""
        self._processes = Processes(segments)
        self._restored_at = 0.0
        """When it was looked last whether the segments' directory is there."""
        self._stalled: float | None = None
        """Since when those who wait for room wait for what others are writing."""
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
            ListObjects: self._reading.list,
            SpeakForHost: self._holding.speak,
            HoldObject: self._writing.hold,
            DropObjects: self._holding.dropped,
        }

    def admit(self, hello: Hello) -> Welcome | Refused:
        """Whether a peer may join; a refusal lists everything that is wrong."""
        reasons: dict[int, str] = {}
        if hello.protocol != PROTOCOL_VERSION:
            version = f"protocol version {hello.protocol}, the object storage server speaks {PROTOCOL_VERSION}"
            reasons[RefusalCode.PROTOCOL] = version
        if hello.role not in (Role.CLIENT, Role.AGENT, Role.OPERATOR):
            reasons[RefusalCode.ROLE] = f"unknown role {hello.role}"
        if len(hello.identity) != 16:
            reasons[RefusalCode.IDENTITY] = f"an identity has 16 bytes, not {len(hello.identity)}"
        if hello.role == Role.CLIENT and not hello.session:
            reasons[RefusalCode.SESSION] = "a client has a session"
        if self._is_anothers(hello):
            reasons[RefusalCode.SESSION] = f"session {hello.session} is another client's"
        if reasons:
            return Refused(list(reasons.values()), list(reasons))
        return Welcome(
            self._incarnation,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            timeout_seconds=self._client_timeout,
            segment_directory=self._segments.directory,
        )

    def _is_anothers(self, hello: Hello) -> bool:
        shelf = self._state.shelves.get(hello.session)
        return shelf is not None and shelf.key is not None and not hmac.compare_digest(shelf.key, hello.session_key)

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Take one event in; raises ProtocolError for a message that this peer may not send, changing nothing."""
        self._state.now = now
        if isinstance(event, SendFailed):
            self._unsent.failed(peer, event.message)
            return
        handler = self._handlers.get(type(event))
        if handler is None:
            raise ProtocolError(f"{type(event).__name__} is nothing an object storage server is told")
        known = self._state.peers.get(peer)
        operates = known is not None and known.role == Role.OPERATOR
        if operates != isinstance(event, NeedStorageStatus) and not isinstance(event, PeerJoined | PeerLost):
            raise ProtocolError("operators see figures, and nobody else does; they have no objects")
        self._processes.heard(peer)
        handler(peer, event)

    def settle(self, now: float) -> list[Effect]:
        """What to do about everything that was handled, in its order."""
        state = self._state
        state.now = now
        if now >= self._restored_at + LOOK_SECONDS:
            self._restored_at = now
            if self._segments.restored():
                self._lose_segments()
        self._writing.fullness.settle(now)
        self._take_moved()
        self._look_who_lives()
        while state.orphans and next(iter(state.orphans.values())) <= now:
            session = next(iter(state.orphans))
            state.log(logging.DEBUG, f"nobody came for the objects of session {session}")
            for name in list(state.shelves[session].objects):
                state.free(name)
        state.pager.pool.trim(now)
        self._try_again()
        if not state.queue or state.pager.moving:
            self._stalled = None
        elif self._stalled is None:
            self._stalled = now
        elif now >= self._stalled + WRITING_SECONDS:
            self._refuse_waiting(f"what is being written was not finished in {WRITING_SECONDS:g} s")
        self._holding.look()
        self._reading.expect_no_more()
        self._holding.tell_hosts()
        self._unsent.look()
        out, state.out = state.out, []
        return out

    def _lose_segments(self) -> None:
        """Somebody has removed the segments' directory: it is made again, and what stood there is lost."""
        state = self._state
        self._processes.forget_all()
        state.pager.pool.forget_waiting()
        for peer, name in [key for key, upload in state.uploads.items() if upload.allocated]:
            self._writing.drop_upload(peer, state.peers[peer], name)
        records = {*state.objects.values(), *(record for _, record in self._reading.pins.values())}
        segments = [*(record.segment for record in records), *(upload.segment for upload in state.uploads.values())]
        for segment in filter(None, segments):
            segment.lent = True  # its file is gone: it is never used again
        lost = [name for name, each in state.objects.items() if each.here and each.segment and each.segment.name]
        for name in lost:
            state.free(name)
        state.log(
            logging.ERROR,
            f"segment directory {self._segments.directory} was removed by somebody else and is made again; {len(lost)} "
            "objects are lost. systemd-logind does so at logout: see RemoveIPC= in logind.conf, --segment-directory",
        )

    def _look_who_lives(self) -> None:
        """End what dead processes were doing: their connections may take long to break, and are waited for then."""
        peers, now = self._state.peers, self._state.now
        for peer in self._processes.look(now):
            self._leave(peer, peers[peer])
        for peer in self._processes.expired(now):
            self._disown(peer, peers[peer], "its process has ended")
            peers[peer].session = 0

    def _take_moved(self) -> None:
        """Go on with what has been moved to disk and back."""
        state = self._state
        loaded, failed, failure = state.pager.finished(state.now)
        for record in loaded:
            self._reading.loaded(record)
        for record, moved in failed:
            self._reading.failed(record, moved)
        if failure:
            # Who comes later tries the disk anew.
            self._refuse_waiting(f"nothing can be moved to disk: {failure}")

    def _refuse_waiting(self, why: str) -> None:
        """Nobody who waits for room gets any."""
        state, full = self._state, StorageFullError(f"the memory is full, and {why}")
        waiting = list(state.queue)
        state.queue.clear()
        for peer, event in waiting:
            if isinstance(event, LoadObject):
                self._reading.refuse(event, full)
            else:
                self._writing.refuse(peer, event, full)

    def _try_again(self) -> None:
        """Handle what has waited for room, as long as there is some."""
        state = self._state
        while state.queue:
            peer, event = state.next_waiting()
            if isinstance(event, LoadObject):
                self._reading.load(peer, event)
            elif isinstance(event, PutObject):
                self._writing.put(peer, event)
            else:
                self._writing.allocate(peer, event)
            if state.queue and state.queue[0][1] is event:
                break
        state.tried()

    def due(self) -> float | None:
        """When orphans or unneeded memory are freed, waiting has an end, or the living are looked at."""
        orphans = next(iter(self._state.orphans.values()), None)
        stalled = None if self._stalled is None else self._stalled + WRITING_SECONDS
        others = (
            self._processes.due(),
            self._holding.due(),
            self._reading.due(),
            self._state.pager.pool.due(),
            self._unsent.due(),
            self._writing.fullness.due(),
        )
        return min((at for at in (orphans, stalled, *others) if at is not None), default=None)

    def status(self) -> StorageStatus:
        """The totals of this moment."""
        return status_of(self._state)

    # --- peers ------------------------------------------------------------------------------------------------------

    def _joined(self, peer: bytes, event: PeerJoined) -> None:
        if event.resumed:
            return
        state, hello = self._state, event.hello
        if hello.peer_incarnation not in (0, self._incarnation) and not self._followed:
            self._followed, state.return_until = True, state.now + RETURN_SECONDS
        old = state.peers.get(peer)
        if old is not None:
            self._leave(peer, old)
            self._processes.remove(peer)
        state.peers[peer] = PeerRecord(hello.role, hello.session)
        if hello.session:
            state.ended.pop(hello.session, None)
            state.orphans.pop(hello.session, None)
            shelf = state.shelves.setdefault(hello.session, ShelfRecord())
            shelf.owners.add(peer)
            shelf.key = hello.session_key
        if old is not None and old.session != hello.session:
            self._disown(peer, old, "its client began another")

    def _lost(self, peer: bytes, event: PeerLost) -> None:
        record = self._state.peers[peer]
        self._leave(peer, record)
        del self._state.peers[peer]
        self._processes.remove(peer)
        self._disown(peer, record, event.reason)

    def _leave(self, peer: bytes, record: PeerRecord) -> None:
        """What a peer was doing ends."""
        for name in list(record.uploads):
            self._writing.drop_upload(peer, record, name)
        self._writing.forget_requests(peer)
        self._reading.leave(record)
        self._holding.leave(peer, record)

    def _prove(self, peer: bytes, event: HostProof) -> None:
        if not self._segments.directory or not hmac.compare_digest(event.token, self._segments.token):
            raise ProtocolError("a HostProof with another token")
        if event.life and not event.life.isalnum():
            raise ProtocolError(f"a life is named by letters and digits, not {event.life!r}")
        self._state.peers[peer].local = True
        if event.life:
            self._processes.add(peer, event.life)

    def _disown(self, peer: bytes, record: PeerRecord, reason: str) -> None:
        shelf = self._state.shelves.get(record.session)
        if shelf is None or peer not in shelf.owners:
            return
        shelf.owners.discard(peer)
        if not shelf.owners:
            self._end_session(record.session, shelf, reason)

    def _end_session(self, session: int, shelf: ShelfRecord, reason: str) -> None:
        state = self._state
        self._writing.drop_session(session)
        count = len(shelf.objects)
        for name in list(shelf.objects):
            state.free(name)
        state.close_shelf(session)
        state.ended[session] = None
        if len(state.ended) > _ENDED_LIMIT:
            del state.ended[next(iter(state.ended))]
        state.log(logging.DEBUG, f"session {session} ended ({reason}), {count} objects freed")

    def check(self) -> None:
        """Assert the invariants."""
        state = self._state
        pinned = {record for _, record in self._reading.pins.values()}
        writing = [upload.segment for upload in state.uploads.values()]
        state.pager.check([record for record in state.objects.values() if not record.host], pinned, writing)
        self._holding.check()
        on_shelves = {(name, session) for session, shelf in state.shelves.items() for name in shelf.objects}
        assert on_shelves == {(name, record.session) for name, record in state.objects.items()}
        assert all(shelf.owners or shelf.objects for shelf in state.shelves.values())
        assert not state.ended.keys() & state.shelves.keys()
        for upload in state.uploads.values():
            assert len(upload.parts) + upload.missing == part_count(upload.size) and upload.missing
            assert upload.session not in state.ended
        assert set(state.uploads) == {(peer, name) for peer, record in state.peers.items() for name in record.uploads}
        assert set(state.orphans) == {session for session, shelf in state.shelves.items() if not shelf.owners}
        assert list(state.orphans.values()) == sorted(state.orphans.values())
        owners = {(peer, record.session) for peer, record in state.peers.items() if record.session}
        assert owners == {(peer, session) for session, shelf in state.shelves.items() for peer in shelf.owners}
        pins = {(peer, pin) for peer, record in state.peers.items() for pin in record.pins}
        self._processes.check(state.peers.keys())
        assert pins == {(peer, pin) for pin, (peer, _) in self._reading.pins.items()}
        assert all(peer in state.peers for peer, event in state.queue if not isinstance(event, LoadObject))
        allocated = [upload.segment for upload in state.uploads.values() if upload.allocated]
        assert state.pager.arriving == sum(map(state.pager.pool.cost, allocated))
        for record in state.objects.values():
            assert not record.waiting or not record.here
