"""What is under way to peers that do not read, and what waits."""

from __future__ import annotations

from collections import Counter

import pytest

from scaler_io.links.events import PeerLost
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Hello, Role, ServiceKind
from scaler_protocol.messages import Message
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import (
    DeleteObjects,
    GetObject,
    ListObjects,
    MapObject,
    ObjectList,
    ObjectPart,
    PutObject,
    RegisterReplica,
    RegisterReplicaServer,
)
from scaler_storage.engine import awaited_reads, listings, readers, reading
from scaler_storage.engine.segments import MemorySegments
from support.storage_engines import PART, EngineDriver, make_parts_small

PARTS = 20
CONTENT = bytes(range(PARTS * PART))
NAME, FAR = b"n" * 16, b"f" * 16
READER, OTHER, VOICE = b"r" * 16, b"o" * 16, b"v" * 16
HOST = b"H" * 32


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    make_parts_small(monkeypatch)
    monkeypatch.setattr(readers, "PEER_BYTES", 4 * PART)
    monkeypatch.setattr(readers, "KEY_BYTES", 6 * PART)
    monkeypatch.setattr(readers, "_SMALL_BYTES", 0)


class ReadServer(EngineDriver):
    """An engine with an object of session 1, whose peers acknowledge answers only when they are told to."""

    def __init__(self, *, spills: bool = False, memory_limit: int = 100_000) -> None:
        super().__init__(memory_limit, 10_000, spills=spills)
        self.parts: list[tuple[bytes, int]] = []
        """Requests that were answered with a part, in order."""
        for peer in (READER, OTHER):
            self.admit(Hello(Role.CLIENT, peer, 1, session=1, service=ServiceKind.STORAGE))
        self.put(NAME)

    def put(self, name: bytes, version: int = 0, peer: bytes = READER) -> None:
        for offset in range(0, len(CONTENT), PART):
            part = Payloads([CONTENT[offset : offset + PART]])
            self.tell(peer, PutObject(name, len(CONTENT), part, offset, 1, 0, version))

    def settle(self) -> list[tuple[bytes, Message]]:
        said = super().settle()
        for peer, message in said:
            if isinstance(message, ObjectPart) and message.found:
                assert message.parts.frame == CONTENT[message.request * PART :][:PART]
                self.unread[peer] += PART
                self.parts.append((peer, message.request))
            elif isinstance(message, ObjectList):
                self.unread[peer] += 16 * len(message.objects)
        return said

    def ask(self, peer: bytes, name: bytes = NAME, first: int = 0, count: int = PARTS) -> None:
        """Ask for parts in one turn."""
        for index in range(first, first + count):
            self.core.handle(peer, GetObject(name, index * PART, PART, index), self.now)
        self.settle()

    def read(self, peer: bytes) -> None:
        """The peer reads all answers, and acknowledges them."""
        self.unread[peer] = 0
        self.settle()


def test_a_peer_that_does_not_read_has_few_answers_under_way_and_gets_the_others_in_order() -> None:
    server = ReadServer()
    server.ask(READER)
    assert len(server.parts) == 4
    server.ask(READER, first=0, count=1)
    for _ in range(PARTS):
        server.read(READER)
    assert [number for _, number in server.parts] == [*range(PARTS), 0]


def test_peers_of_one_key_share_and_none_is_stopped_by_others() -> None:
    server = ReadServer()
    server.keys = {READER: b"a", OTHER: b"a"}
    server.ask(READER)
    server.ask(OTHER)
    assert server.parts == [(READER, index) for index in range(4)] + [(OTHER, 0), (OTHER, 1)]
    for _ in range(PARTS):
        server.read(OTHER)
    assert [number for peer, number in server.parts if peer == OTHER] == [*range(PARTS)]
    third = b"t" * 16
    server.keys[third] = b"a"
    server.admit(Hello(Role.CLIENT, third, 1, session=1, service=ServiceKind.STORAGE))
    server.ask(OTHER)
    server.ask(third, count=3)
    assert [number for peer, number in server.parts if peer == third] == [0], "one part at a time"
    server.keys[third] = b"b"
    server.settle()
    assert [number for peer, number in server.parts if peer == third] == [0, 1, 2], "the peer of another key"


def test_an_object_that_comes_from_its_host_is_not_sent_at_once_to_who_does_not_read() -> None:
    server = ReadServer()
    server.admit(Hello(Role.AGENT, VOICE, 1, service=ServiceKind.STORAGE))
    server.tell(VOICE, RegisterReplicaServer(HOST))
    server.tell(VOICE, RegisterReplica(FAR, len(CONTENT), 1, 7, HOST))
    for _ in range(3):
        server.ask(READER, FAR)
    server.put(FAR, 7, VOICE)
    assert len(server.parts) == 4
    for _ in range(3 * PARTS):
        server.read(READER)
    assert [number for _, number in server.parts] == [*range(PARTS)] * 3


def test_parts_of_an_object_on_disk_are_not_sent_at_once_either() -> None:
    server = ReadServer(spills=True, memory_limit=2 * len(CONTENT) + 1024)
    server.tell(OTHER, PutObject(FAR, len(CONTENT) + 1, Payloads([CONTENT[:PART]]), 0, 1))
    assert isinstance(server.segments, MemorySegments)
    server.segments.work()
    server.settle()
    server.ask(READER)
    server.segments.work()
    server.settle()
    assert len(server.parts) == 4
    for _ in range(PARTS):
        server.read(READER)
    assert [number for _, number in server.parts] == [*range(PARTS)]


class ListServer(ReadServer):
    """Lists in pieces of four ids."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pieces: list[tuple[bytes, int, int, int]] = []
        """Peer, request, ids and those left of each piece."""
        super().__init__()
        monkeypatch.setattr(listings, "PIECE_IDS", 4)
        monkeypatch.setattr(readers, "PEER_BYTES", 100 * 16)
        monkeypatch.setattr(readers, "KEY_BYTES", 100 * 16)
        self.ids = {NAME, *(bytes([number]) * 16 for number in range(10))}
        self.admit(Hello(Role.CLIENT, VOICE, 1, session=2, service=ServiceKind.STORAGE))
        for each in self.ids - {NAME}:
            self.tell(READER, PutObject(each, 1, Payloads([b"a"]), 0, 1))

    def settle(self) -> list[tuple[bytes, Message]]:
        said = super().settle()
        lists = [(peer, each) for peer, each in said if isinstance(each, ObjectList)]
        self.pieces += [(peer, each.request, len(each.objects), each.left) for peer, each in lists]
        assert len(lists) <= 1
        return said


def test_a_list_comes_in_pieces_one_in_a_turn_and_waits_for_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ListServer(monkeypatch)
    monkeypatch.setattr(readers, "PEER_BYTES", 4 * 16)
    server.tell(READER, ListObjects(7))
    server.settle()
    assert server.pieces == [(READER, 7, 4, 7)]
    for _ in range(3):
        server.read(READER)
    assert server.pieces == [(READER, 7, 4, 7), (READER, 7, 4, 3), (READER, 7, 3, 0)]
    assert server.core.due() is None


def test_lists_of_a_session_follow_each_other_and_others_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ListServer(monkeypatch)
    for number in range(6):
        server.tell(VOICE, PutObject(bytes([100 + number]) * 16, 1, Payloads([b"a"]), 0, 2))
    server.core.handle(READER, ListObjects(1), server.now)
    server.core.handle(OTHER, ListObjects(2), server.now)
    server.core.handle(VOICE, ListObjects(3), server.now)
    server.settle()
    while server.core.due() == server.now:
        server.settle()
    asked = [request for _, request, _, _ in server.pieces]
    assert asked[:5] == [1, 3, 1, 3, 1] and asked[5:] == [2, 2, 2]


def test_a_list_has_what_there_is_when_its_piece_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ListServer(monkeypatch)
    listed: list[bytes] = []
    said = server.tell(READER, ListObjects())
    while said:
        [(_, piece)] = said
        assert isinstance(piece, ObjectList)
        listed += piece.objects
        rest = sorted(server.ids - set(listed))
        if rest:
            server.ids.discard(rest[0])
            server.core.handle(READER, DeleteObjects(rest[:1]), server.now)
        said = server.settle()
    assert sorted(listed) == sorted(server.ids)


def test_a_peer_that_leaves_lets_others_list_their_session(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ListServer(monkeypatch)
    monkeypatch.setattr(readers, "PEER_BYTES", 4 * 16)
    server.tell(READER, ListObjects(1))
    server.tell(OTHER, ListObjects(2))
    server.settle()
    assert [request for _, request, _, _ in server.pieces] == [1]
    server.tell(READER, PeerLost("gone"))
    assert [request for _, request, _, _ in server.pieces] == [1, 2]


def test_a_peer_may_have_a_limited_number_of_lists_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "READS_MOST", 10)
    server = ListServer(monkeypatch)
    for _ in range(10):
        server.core.handle(READER, ListObjects(), server.now)
    with pytest.raises(ProtocolError, match="10 requests of this peer for lists wait already"):
        server.core.handle(READER, ListObjects(), server.now)


def test_what_waited_may_be_gone() -> None:
    server = ReadServer()
    server.ask(READER, count=5)
    [(_, missing)] = server.tell(READER, DeleteObjects([NAME]))
    assert isinstance(missing, ObjectPart) and not missing.found


def test_reads_of_a_lost_peer_are_forgotten() -> None:
    server = ReadServer()
    server.ask(READER)
    server.tell(READER, PeerLost("gone"))
    server.unread.clear()
    assert server.settle() == [] and len(server.parts) == 4


def test_a_peer_may_have_a_limited_number_of_reads_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "READS_MOST", 10)
    server = ReadServer()
    server.ask(READER, count=14)
    with pytest.raises(ProtocolError, match="10 reads of this peer wait already"):
        server.ask(READER, count=1)
    server.ask(OTHER, count=1)
    assert server.parts[-1] == (OTHER, 0)


def test_a_peer_may_have_a_limited_number_of_reads_wait_for_what_an_earlier_server_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "READS_MOST", 10)
    server = ReadServer()
    server.admit(Hello(Role.CLIENT, VOICE, 1, peer_incarnation=8, session=2, service=ServiceKind.STORAGE))
    for _ in range(10):
        assert server.tell(READER, GetObject(FAR, 0, PART)) == []
    for event in (GetObject(FAR, 0, 0), GetObject(NAME, 0, PART), MapObject(NAME, PART)):
        with pytest.raises(ProtocolError, match="10 reads of this peer wait for objects of an earlier server already"):
            server.core.handle(READER, event, server.now)
    assert server.tell(OTHER, GetObject(FAR, 0, PART)) == []
    server.put(FAR)
    for _ in range(11):
        server.unread.clear()
        server.settle()
    server.ask(READER, count=1)
    assert Counter(peer for peer, _ in server.parts) == {READER: 11, OTHER: 1}


def test_reads_of_what_a_host_does_not_bring_are_limited_and_end_with_their_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(awaited_reads, "READS_MOST", 10)
    server = ReadServer()
    server.admit(Hello(Role.AGENT, VOICE, 1, service=ServiceKind.STORAGE))
    server.tell(VOICE, RegisterReplicaServer(HOST))
    server.tell(VOICE, RegisterReplica(FAR, len(CONTENT), 1, 5, HOST))
    server.ask(READER, FAR, count=10)
    with pytest.raises(ProtocolError, match="10 reads of this peer wait for objects already"):
        server.ask(READER, FAR, count=1)
    server.ask(OTHER, FAR, count=1)
    server.tell(READER, PeerLost("gone"))
    assert [peer for peer, _ in server.core._state.objects[FAR].waiting] == [OTHER]
    server.put(FAR, version=5, peer=VOICE)
    assert server.parts == [(OTHER, 0)]
