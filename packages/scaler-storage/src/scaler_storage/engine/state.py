"""The tables that the parts of StorageCore share. Pure, no IO."""

from __future__ import annotations

from collections import deque

from scaler_io.links.effects import Effect, Log, Send
from scaler_protocol.errors import ObjectRefusedError, ScalerError, describe
from scaler_protocol.handshake import Role
from scaler_protocol.messages import Message
from scaler_protocol.storage import GetObject, MapObject, ObjectMapped, ObjectPart
from scaler_storage.engine.pager import Pager
from scaler_storage.engine.records import ObjectRecord, PeerRecord, RoomEvent, ShelfRecord, UploadRecord
from scaler_storage.engine.segments import Segment, Segments

_MISSED_LIMIT = 100_000


class StorageState:
    """What there is, who is there, who waits, and what is to be said."""

    def __init__(self, segments: Segments, memory_limit: int, spill_limit: int | None) -> None:
        self.segments = segments
        self.pager = Pager(segments, memory_limit, spill_limit)
        self.now = 0.0
        self.peers: dict[bytes, PeerRecord] = {}
        self.objects: dict[bytes, ObjectRecord] = {}
        self.uploads: dict[tuple[bytes, bytes], UploadRecord] = {}
        self.shelves: dict[int, ShelfRecord] = {}
        self.orphans: dict[int, float] = {}
        """When the objects of each session without an owner are freed, the earliest first."""
        self.ended: dict[int, None] = {}
        self.queue: deque[tuple[bytes, RoomEvent]] = deque()
        """Requests that wait for room, in their order, and who made them."""
        self.voices: dict[bytes, dict[bytes, None]] = {}
        """Of each other host the peers that speak for it."""
        self.dropped: dict[bytes, list[tuple[bytes, int, int, int]]] = {}
        """What each host need not hold any more: id, size, session, edition."""
        self.missed: dict[tuple[bytes, int], int] = {}
        """What a host that nobody spoke for need not hold any more, by id and edition: the session of each."""
        self.return_until = 0.0
        """Until when those who knew an earlier server may still be coming back with what they have."""
        self.held = self.held_bytes = self.brought_ever = 0
        self.refused = 0
        self.hits = self.misses = self.unknown = 0
        self.out: list[Effect] = []
        self._retrying = False

    def send(self, peer: bytes, message: Message) -> None:
        """Say something at the end of this turn."""
        self.out.append(Send(peer, message))

    def log(self, level: int, text: str) -> None:
        """Tell the operator."""
        self.out.append(Log(level, text))

    def room(self, peer: bytes, event: RoomEvent, size: int) -> Segment | None:
        """A segment; or None, and the event is handled again later. Raises StorageFullError."""
        if self.queue and not self._retrying:
            self.queue.append((peer, event))
            return None
        segment = self.pager.take(size)
        if segment is None:
            self.wait_again(peer, event)
        return segment

    def wait_again(self, peer: bytes, event: RoomEvent) -> None:
        """There is no room yet: who has waited already stays in front."""
        if self._retrying:
            self.queue.appendleft((peer, event))
        else:
            self.queue.append((peer, event))

    def next_waiting(self) -> tuple[bytes, RoomEvent]:
        """Take the first of the queue, to try it again."""
        self._retrying = True
        return self.queue.popleft()

    def tried(self) -> None:
        """New requests queue up behind what waits."""
        self._retrying = False

    def session(self, record: PeerRecord, named: int) -> int:
        """The session that a peer speaks of; raises ObjectRefusedError where that is not its own, or has ended."""
        session = named or record.session
        if not session:
            raise ObjectRefusedError("an object belongs to a session, and none is named")
        if record.role == Role.CLIENT and session != record.session:
            raise ObjectRefusedError(f"session {session} is another client's")
        if session in self.ended:
            raise ObjectRefusedError(f"session {session} has ended")
        return session

    def find(self, name: bytes) -> ObjectRecord | None:
        """An object that can be read."""
        record = self.objects.get(name)
        return record if record is not None and (not record.host or record.host in self.voices) else None

    def hold(self, record: ObjectRecord, host: bytes, edition: int) -> None:
        """An object stands on another host, and nowhere else."""
        record.host, record.edition = host, edition
        self.held += 1
        self.held_bytes += record.size

    def unhold(self, name: bytes, record: ObjectRecord, *, drop: bool) -> None:
        """An object does not stand on another host alone any more; with `drop` it need not be there at all."""
        if drop and record.host in self.voices:
            row = name, record.size, record.session, record.edition
            self.dropped.setdefault(record.host, []).append(row)
        elif drop:
            self.miss(name, record.session, record.edition)
        record.host = record.asked = b""
        self.held -= 1
        self.held_bytes -= record.size

    def miss(self, name: bytes, session: int, edition: int) -> None:
        """A host is out of reach that need not hold an object any more: it hears so when it says that it does."""
        self.missed[name, edition] = session
        if len(self.missed) > _MISSED_LIMIT:
            del self.missed[next(iter(self.missed))]

    def close_shelf(self, session: int) -> None:
        """Nothing belongs to a session any more."""
        self.shelves.pop(session, None)
        self.orphans.pop(session, None)
        if session in self.missed.values():
            self.missed = {key: other for key, other in self.missed.items() if other != session}

    def free(self, name: bytes, why: ScalerError | None = None) -> None:
        """An object is no more; who waits for it hears so, or `why`."""
        record = self.objects.pop(name)
        if record.host:
            self.unhold(name, record, drop=True)
        shelf = self.shelves[record.session]
        shelf.objects.discard(name)
        if not shelf.objects and not shelf.owners:
            self.close_shelf(record.session)
        self.pager.drop(record, self.now)
        self.refuse_readers(record, why)

    def refuse_readers(self, record: ObjectRecord, why: ScalerError | None = None) -> None:
        """Who waits for an object hears why it can not come; without a reason, that it is not there."""
        waiting, record.waiting = record.waiting, []
        for peer, event in waiting:
            self.missing(peer, event, why)

    def missing(self, peer: bytes, event: GetObject | MapObject, why: ScalerError | None = None) -> None:
        """The answer without an object."""
        error = describe(why).decode() if why is not None else ""
        kind = ObjectPart if isinstance(event, GetObject) else ObjectMapped
        self.send(peer, kind(event.object, False, request=event.request, error=error))


def proven(record: PeerRecord, message: Message) -> None:
    """Raises ObjectRefusedError unless the peer has proven to be on this host."""
    if not record.local:
        raise ObjectRefusedError(f"{type(message).__name__} came before a HostProof")
