"""Replicas: a state machine compares the engine with a model of the replicas and the waiting readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from scaler_io.links.events import PeerJoined, PeerLost, SendFailed
from scaler_protocol.codec import decode, encode
from scaler_protocol.errors import ObjectRefusedError, ProtocolError, StorageFullError, restore
from scaler_protocol.handshake import Hello, Role, ServiceKind
from scaler_protocol.messages import Message
from scaler_protocol.monitoring import NeedStorageStatus, StorageStatus
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import (
    DeleteObjects,
    DropReplicas,
    FetchReplica,
    GetObject,
    MapObject,
    ObjectMapped,
    ObjectPart,
    ObjectStored,
    PutObject,
    RegisterReplica,
    RegisterReplicaServer,
)
from scaler_storage.engine.engine import RETURN_SECONDS
from scaler_storage.engine.pool import OVERHEAD_BYTES
from scaler_storage.engine.remote_objects import FETCH_START_SECONDS
from support.storage_engines import PART, EngineDriver, make_parts_small

SIZE = 7
SIZE_MOST = 2**63 - 1
CLIENT, WORKER = b"c" * 16, b"w" * 16
HOSTS = (b"H" * 32, b"K" * 32)
VOICES = {b"1" * 16: HOSTS[0], b"2" * 16: HOSTS[0], b"3" * 16: HOSTS[1]}
NAMES = [bytes([letter]) * 16 for letter in b"xyz"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    make_parts_small(monkeypatch)


class HoldingServer(EngineDriver):
    """An engine with a client and a worker, and who holds objects elsewhere."""

    def __init__(self, memory_limit: int = 100_000, shared_bytes: int = SIZE) -> None:
        super().__init__(memory_limit, shared_bytes)
        self.join(CLIENT)
        self.join(WORKER)

    def join(self, peer: bytes) -> None:
        role, session = (Role.CLIENT, 1) if peer == CLIENT else (Role.AGENT, 0)
        self.admit(Hello(role, peer, 1, session=session, service=ServiceKind.STORAGE))
        if peer in VOICES:
            assert not self.tell(peer, RegisterReplicaServer(VOICES[peer]))

    def hold(self, name: bytes, version: int, host: bytes = HOSTS[0], session: int = 1) -> ObjectStored:
        [(peer, answer)] = self.tell(WORKER, RegisterReplica(name, SIZE, session, version, host, 5))
        assert peer == WORKER and isinstance(answer, ObjectStored) and answer.request == 5
        return answer

    def put(self, peer: bytes, name: bytes, content: bytes, version: int = 0) -> list[tuple[bytes, Message]]:
        said = []
        for offset in range(0, len(content), PART):
            part = Payloads([content[offset : offset + PART]])
            said += self.tell(peer, PutObject(name, len(content), part, offset, 1, 6, version))
        return said


def refusal(answer: Message) -> Exception:
    assert isinstance(answer, ObjectStored) and answer.error and not answer.version
    return restore(answer.error.encode())


def test_a_replica_takes_no_memory_and_is_fetched_when_a_peer_reads_it() -> None:
    server, voice = HoldingServer(), b"1" * 16
    server.join(voice)
    assert server.hold(NAMES[0], 77).version == 77
    status = server.core.status()
    assert (status.hosts, status.objects, status.replicas, status.replica_bytes, status.bytes) == (1, 1, 1, SIZE, 0)
    assert server.tell(CLIENT, GetObject(NAMES[0], 0, 0)) == [
        (CLIENT, ObjectPart(NAMES[0], True, SIZE, Payloads.cut(b"", [0]), version=77))
    ]
    wanted = FetchReplica(NAMES[0], SIZE, 1, 77)
    assert server.tell(CLIENT, GetObject(NAMES[0], PART, PART)) == [(voice, wanted)]
    assert server.tell(WORKER, GetObject(NAMES[0], 0, PART)) == []
    server.tell(WORKER, server.proof(WORKER))
    assert server.tell(WORKER, MapObject(NAMES[0], SIZE)) == []
    said = server.put(voice, NAMES[0], b"abcdefg", 77)
    parts = [(peer, bytes(each.parts.frame), each.version) for peer, each in said if isinstance(each, ObjectPart)]
    assert parts == [(CLIENT, b"efg", 77), (WORKER, b"abcd", 77)]
    assert [peer for peer, each in said if isinstance(each, ObjectMapped) and each.segment] == [WORKER]
    assert [each.version for _, each in said if isinstance(each, ObjectStored)] == [0, 77]
    status = server.core.status()
    assert (status.replicas, status.replica_bytes, status.fetched_bytes_total) == (0, 0, SIZE)
    assert server.tell(CLIENT, DeleteObjects([NAMES[0]])) == []  # the host was told when it was brought


def test_what_one_agent_does_not_bring_another_one_of_its_host_does() -> None:
    server = HoldingServer()
    for voice in (b"1" * 16, b"2" * 16):
        server.join(voice)
    server.hold(NAMES[0], 77)
    [(asked, wanted)] = server.tell(CLIENT, GetObject(NAMES[0], 0, PART))
    [other] = {b"1" * 16, b"2" * 16} - {asked}
    server.tell(asked, PutObject(NAMES[0], SIZE, Payloads([b"abcd"]), 0, 1, 6, 77))
    assert server.tell(asked, PeerLost("killed")) == [(other, wanted)]
    assert server.core.status().writing == 0
    [(reader, missing)] = server.tell(other, PeerLost("killed"))
    assert reader == CLIENT and isinstance(missing, ObjectPart) and not (missing.found or missing.error)
    [(_, missing)] = server.tell(CLIENT, GetObject(NAMES[0], 0, 0))
    assert isinstance(missing, ObjectPart) and not missing.found
    server.join(other)
    assert server.hold(NAMES[0], 77).version == 77  # it says so again
    assert server.tell(CLIENT, GetObject(NAMES[0], 0, PART)) == [(other, wanted)]


def test_who_does_not_begin_is_not_waited_for() -> None:
    server = HoldingServer()
    server.join(b"1" * 16)
    server.hold(NAMES[0], 77)
    [(first, wanted)] = server.tell(CLIENT, GetObject(NAMES[0], 0, PART))
    assert (
        server.core.due() == FETCH_START_SECONDS and server.later(FETCH_START_SECONDS) == []
    )  # there is no other replica server
    server.join(b"2" * 16)
    [(second, again)] = server.later(FETCH_START_SECONDS)
    assert (first, second) == (b"1" * 16, b"2" * 16) and again == wanted
    server.tell(second, PutObject(NAMES[0], SIZE, Payloads([b"abcd"]), 0, 1, 6, 77))
    assert server.later(10 * FETCH_START_SECONDS) == []
    said = server.tell(second, PutObject(NAMES[0], SIZE, Payloads([b"efg"]), PART, 1, 6, 77))
    assert CLIENT in dict(said) and server.later(FETCH_START_SECONDS) == [] and server.core.due() is None
    assert [
        each.error for _, each in server.put(first, NAMES[0], b"abcdefg", 77) if isinstance(each, ObjectStored)
    ] == [
        "",
        "",
    ]


def test_readers_wait_for_those_who_come_back_to_a_server_that_was_started_again() -> None:
    server, voice, late = HoldingServer(), b"1" * 16, b"l" * 16
    [(_, missing)] = server.tell(CLIENT, GetObject(NAMES[0], 0, PART))
    assert isinstance(missing, ObjectPart) and not missing.found
    server.tell(late, PeerJoined(Hello(Role.AGENT, late, 1, peer_incarnation=8, service=ServiceKind.STORAGE), False))
    assert [server.tell(CLIENT, GetObject(name, 0, limit)) for name in NAMES for limit in (0, PART)] == [[]] * 6
    server.tell(late, GetObject(NAMES[2], 0, PART))
    server.tell(late, PeerLost("killed"))
    server.join(voice)
    said = server.tell(voice, RegisterReplica(NAMES[0], SIZE, 1, 77, HOSTS[0], 5))
    assert [type(message) for _, message in said] == [ObjectPart, ObjectStored, FetchReplica]
    said = server.put(WORKER, NAMES[1], b"abcdefg")
    assert [each.found for peer, each in said if isinstance(each, ObjectPart)] == [True, True]
    assert server.core.due() == FETCH_START_SECONDS == RETURN_SECONDS
    said = server.later(RETURN_SECONDS)
    assert [(peer, each.found) for peer, each in said if isinstance(each, ObjectPart)] == [(CLIENT, False)] * 2
    again = PeerJoined(Hello(Role.AGENT, late, 2, peer_incarnation=8, service=ServiceKind.STORAGE), False)
    assert server.tell(late, again) == [] and len(server.tell(late, GetObject(NAMES[2], 0, PART))) == 1
    assert server.core.status().unknown == 4


def test_a_read_does_not_overtake_an_earlier_one_that_waited_for_the_host() -> None:
    server, voice, late = HoldingServer(), b"1" * 16, b"l" * 16
    server.tell(late, PeerJoined(Hello(Role.AGENT, late, 1, peer_incarnation=8, service=ServiceKind.STORAGE), False))
    server.join(voice)
    server.hold(NAMES[0], 77)
    server.tell(voice, PeerLost("killed"))
    assert server.tell(CLIENT, GetObject(NAMES[0], 0, PART, 1)) == [], "the host may come back"
    server.join(b"2" * 16)
    said = server.tell(CLIENT, GetObject(NAMES[0], PART, PART, 2))
    said += server.put(b"2" * 16, NAMES[0], b"abcdefg", 77)
    said += server.later(RETURN_SECONDS)
    parts = [(each.request, bytes(each.parts.frame)) for _, each in said if isinstance(each, ObjectPart)]
    assert parts == [(1, b"abcd"), (2, b"efg")]


def test_hosts_are_told_once_in_a_turn_what_is_deleted() -> None:
    server, voice = HoldingServer(), b"1" * 16
    server.join(voice)
    for number, name in enumerate(NAMES, 1):
        server.hold(name, number)
    [(_, dropped)] = server.tell(CLIENT, DeleteObjects(NAMES[:2]))
    assert isinstance(dropped, DropReplicas) and set(zip(dropped.objects, dropped.versions, strict=True)) == {
        (NAMES[0], 1),
        (NAMES[1], 2),
    }
    assert set(dropped.sessions) == {1} and set(dropped.sizes) == {SIZE}
    [(_, dropped)] = server.tell(CLIENT, PeerLost("gone"))
    assert isinstance(dropped, DropReplicas) and list(dropped.objects) == NAMES[2:]
    assert "session 1 has ended" in str(refusal(server.hold(NAMES[0], 4)))
    [(_, late)] = server.put(voice, NAMES[2], b"abcdefg", 3)[:1]
    assert "has another version" in str(refusal(late)) or "has ended" in str(refusal(late))
    assert server.core.status().objects == 0


def test_what_is_deleted_while_its_host_is_out_of_reach_is_not_held_when_that_comes_back() -> None:
    server, voice = HoldingServer(), b"1" * 16
    server.join(voice)
    for number, name in enumerate(NAMES, 1):
        server.hold(name, number)
    server.tell(voice, PeerLost("the network is down"))
    assert server.tell(CLIENT, DeleteObjects(NAMES[:1])) == []
    server.put(WORKER, NAMES[1], b"abcdefg")
    server.join(voice)
    assert [server.hold(name, number).version for number, name in enumerate(NAMES, 1)] == [0, 0, 3]
    assert server.hold(NAMES[0], 1).version == 0, "however often it says so"
    status = server.core.status()
    assert (status.objects, status.replicas) == (2, 1)
    assert server.hold(NAMES[0], 9).version == 9, "but it may be written again"
    server.tell(voice, PeerLost("the network is down"))
    server.tell(CLIENT, PeerLost("gone"))
    assert not server.core._state.sessions
    server.join(voice)
    assert "session 1 has ended" in str(refusal(server.hold(NAMES[2], 3)))


@pytest.mark.parametrize("brought", [False, True])
def test_a_host_that_was_not_told_of_a_deletion_in_time_does_not_bring_the_object_back(brought: bool) -> None:
    server, voice = HoldingServer(), b"1" * 16
    server.join(voice)
    server.hold(NAMES[0], 77)
    if brought:
        server.tell(CLIENT, GetObject(NAMES[0], 0, PART))
        server.put(voice, NAMES[0], b"abcdefg", 77)
    said = server.tell(CLIENT, DeleteObjects(NAMES[:1]))
    assert [type(message) for _, message in said] == [DropReplicas] * (not brought)
    server.tell(voice, PeerLost("it was stopped, and has read nothing of this"))
    server.join(voice)
    assert server.hold(NAMES[0], 77).version == 0 and server.core.status().objects == 0


def test_what_is_deleted_before_a_new_server_hears_of_it_is_not_held() -> None:
    server, voice = HoldingServer(), b"1" * 16
    server.join(voice)
    other = b"o" * 16
    server.tell(other, PeerJoined(Hello(Role.CLIENT, other, 1, session=2, service=ServiceKind.STORAGE), False))
    server.tell(other, DeleteObjects(NAMES))
    server.tell(CLIENT, DeleteObjects(NAMES[:1]))
    assert [server.hold(name, 77).version for name in NAMES] == [0, 77, 77]
    server.put(WORKER, NAMES[0], b"abcdefg")
    server.tell(CLIENT, DeleteObjects(NAMES[:1]))
    assert server.hold(NAMES[0], 78).version == 78, "it was written again since"


def test_the_latest_deletions_of_a_session_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaler_storage.engine.dropped_copies.DROPPED_LIMIT", 2)
    server = HoldingServer()
    server.join(b"1" * 16)
    server.tell(CLIENT, DeleteObjects(NAMES))
    assert [server.hold(name, 77).version for name in NAMES] == [77, 0, 0]


def test_no_room_for_what_is_wanted_fails_who_wants_it_and_nothing_else() -> None:
    server, voice = HoldingServer(memory_limit=OVERHEAD_BYTES + SIZE - 1), b"1" * 16
    server.join(voice)
    server.hold(NAMES[0], 77)
    server.tell(CLIENT, GetObject(NAMES[0], 0, PART))
    said = dict(server.put(voice, NAMES[0], b"abcdefg", 77)[:2])
    missing = said[CLIENT]
    assert isinstance(missing, ObjectPart) and isinstance(restore(missing.error.encode()), StorageFullError)
    assert isinstance(refusal(said[voice]), StorageFullError)
    assert server.core.status().replicas == 1
    assert server.tell(CLIENT, GetObject(NAMES[0], 0, PART)) == [(voice, FetchReplica(NAMES[0], SIZE, 1, 77))]


def test_only_agents_speak_for_hosts_and_only_hosts_with_agents_hold() -> None:
    server = HoldingServer()
    for peer, host in ((CLIENT, HOSTS[0]), (WORKER, b"short")):
        with pytest.raises(ProtocolError, match="cannot serve a host"):
            server.tell(peer, RegisterReplicaServer(host))
    assert isinstance(refusal(server.hold(NAMES[0], 77)), ObjectRefusedError)
    server.join(b"1" * 16)
    assert "no replica server" in str(refusal(server.hold(NAMES[0], 77, HOSTS[1])))
    with pytest.raises(ProtocolError, match="cannot serve a host"):
        server.tell(b"1" * 16, RegisterReplicaServer(HOSTS[1]))
    assert "another" not in server.hold(NAMES[0], 77).error
    [(_, answer)] = server.tell(CLIENT, RegisterReplica(NAMES[1], SIZE, 2, 5, HOSTS[0]))
    assert "session 2 is another client's" in str(refusal(answer))


def test_what_others_say_they_hold_can_be_told_of() -> None:
    """Nobody sees the bytes of it, and their sum may be more than a status can hold."""
    server, voice, operator = HoldingServer(), b"1" * 16, b"o" * 16
    server.join(voice)
    server.tell(operator, PeerJoined(Hello(Role.OPERATOR, operator, 1, service=ServiceKind.STORAGE), False))
    for name in NAMES:
        [(_, answer)] = server.tell(voice, RegisterReplica(name, SIZE_MOST, 1, 5, HOSTS[0]))
        assert isinstance(answer, ObjectStored) and answer.version == 5
    [(_, status)] = server.tell(operator, NeedStorageStatus())
    assert isinstance(status, StorageStatus) and status.replicas == 3
    told = decode([bytes(frame) for frame in encode(status)])
    assert isinstance(told, StorageStatus) and told.replica_bytes == 2**64 - 1
    assert server.tell(operator, SendFailed(status, "no memory")) == []


# --- the state machine ----------------------------------------------------------------------------------------------


@dataclass
class Thing:
    """An object: on a host, as long as that is named, or here."""

    content: bytes
    version: int
    host: bytes


class HoldingModel(RuleBasedStateMachine):
    """Objects of one session; bytes contain the number of their version or of their writer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        make_parts_small(self.patch)
        self.server = HoldingServer(shared_bytes=SIZE + 1)
        self.things: dict[bytes, Thing] = {}
        self.replica_servers: set[bytes] = set()
        self.readers: dict[bytes, int] = dict.fromkeys(NAMES, 0)
        """How many wait for each."""
        self.fetching_from: dict[bytes, bytes] = {}
        """Who is to bring each of those."""
        self.versions = 0
        self.missed: set[tuple[bytes, int]] = set()
        """Objects that were deleted while their host had no replica server."""
        self.gone: set[bytes] = set()
        """Objects that were deleted while the server did not know them, and were not put since."""

    def teardown(self) -> None:
        self.patch.undo()

    def spoken(self, host: bytes) -> set[bytes]:
        return {voice for voice in self.replica_servers if VOICES[voice] == host}

    def see(self, said: Sequence[tuple[bytes, Message]], before: dict[bytes, Thing]) -> list[Message]:
        """Check that the messages fit the model; returns the answers to writers."""
        answers: list[Message] = []
        dropped: set[tuple[bytes, int]] = set()
        for peer, message in said:
            if isinstance(message, ObjectPart):
                thing = self.things.get(message.object)
                here = thing is not None and not thing.host
                assert peer == CLIENT and message.found == here and not message.error
                if thing is not None and here:
                    assert message.parts.frame == thing.content[:PART] and message.version == thing.version
                self.readers[message.object] -= 1
            elif isinstance(message, FetchReplica):
                thing = self.things[message.object]
                assert peer in self.spoken(thing.host) and message.version == thing.version
                self.fetching_from[message.object] = peer
            elif isinstance(message, DropReplicas):
                assert peer in self.replica_servers
                dropped.update(zip(message.objects, message.versions, strict=True))
            else:
                answers.append(message)
        ended = {
            (name, old.version)
            for name, old in before.items()
            if self.spoken(old.host) and (name not in self.things or self.things[name].version != old.version)
        }
        assert dropped == ended
        self.missed |= {
            (name, old.version)
            for name, old in before.items()
            if old.host
            and not self.spoken(old.host)
            and (name not in self.things or self.things[name].version != old.version)
        }
        return answers

    def snapshot(self) -> dict[bytes, Thing]:
        return {name: Thing(thing.content, thing.version, thing.host) for name, thing in self.things.items()}

    @rule(voice=st.sampled_from(sorted(VOICES)))
    def speak(self, voice: bytes) -> None:
        if voice not in self.replica_servers:
            self.server.join(voice)
            self.replica_servers.add(voice)

    @precondition(lambda self: self.replica_servers)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        voice = data.draw(st.sampled_from(sorted(self.replica_servers)))
        self.replica_servers.discard(voice)
        self.see(self.server.tell(voice, PeerLost("killed")), {})

    @precondition(lambda self: self.missed)
    @rule(data=st.data(), host=st.sampled_from(HOSTS))
    def hold_what_has_ended(self, data: st.DataObject, host: bytes) -> None:
        name, version = data.draw(st.sampled_from(sorted(self.missed)))
        [answer] = self.see(self.server.tell(WORKER, RegisterReplica(name, SIZE, 1, version, host)), self.snapshot())
        assert isinstance(answer, ObjectStored)
        assert (bool(answer.error), answer.version) == (not self.spoken(host), 0)

    @rule(name=st.sampled_from(NAMES), host=st.sampled_from(HOSTS), again=st.booleans())
    def hold(self, name: bytes, host: bytes, again: bool) -> None:
        before, thing = self.snapshot(), self.things.get(name)
        self.versions += 1
        version = thing.version if again and thing is not None and thing.host else self.versions
        refused = not self.spoken(host)
        known = thing is not None and (thing.host, thing.version) == (host, version)
        free = thing is None or known or (thing.host != b"" and not self.spoken(thing.host))
        taken = free and name not in self.gone and not refused
        if taken and not known:
            self.things[name] = Thing(b"%07d" % version, version, host)
        said = self.server.tell(WORKER, RegisterReplica(name, SIZE, 1, version, host))
        [answer] = self.see(said, before)
        assert isinstance(answer, ObjectStored)
        assert (bool(answer.error), answer.version) == (refused, version if taken else 0)

    @rule(name=st.sampled_from(NAMES))
    def get(self, name: bytes) -> None:
        self.readers[name] += 1
        self.see(self.server.tell(CLIENT, GetObject(name, 0, PART)), {})

    @rule()
    def wait(self) -> None:
        before = dict(self.fetching_from)
        self.see(self.server.later(FETCH_START_SECONDS), {})
        for name, count in self.readers.items():
            if count:
                others = self.spoken(self.things[name].host) - {before[name]}
                assert self.fetching_from[name] in (others or {before[name]})

    @rule(name=st.sampled_from(NAMES), late=st.booleans(), data=st.data())
    def give(self, name: bytes, late: bool, data: st.DataObject) -> None:
        """A host puts what it holds, asked or not, or what it does not hold any more."""
        thing = self.things.get(name)
        writer = data.draw(st.sampled_from([WORKER, *sorted(self.replica_servers)]))
        version = thing.version if thing is not None and not late else 1_000_000
        if thing is not None and not late:
            thing.host = b""
        content = thing.content if thing is not None else b"%07d" % version
        answers = self.see(self.server.put(writer, name, content, version), {})
        assert len(answers) == 2
        for answer in answers:
            assert isinstance(answer, ObjectStored) and bool(answer.error) == (thing is None or late)

    @rule(name=st.sampled_from(NAMES), letter=st.sampled_from(b"AB"))
    def put(self, name: bytes, letter: int) -> None:
        before, thing = self.snapshot(), self.things.get(name)
        self.gone.discard(name)
        if thing is None or thing.host:
            self.things[name] = Thing(bytes([letter]) * SIZE, -1, b"")
        content = bytes([letter]) * SIZE
        said = self.server.tell(WORKER, PutObject(name, SIZE, Payloads([content[:PART]]), 0, 1))
        last = self.server.tell(WORKER, PutObject(name, SIZE, Payloads([content[PART:]]), PART, 1))
        for _, message in last:
            if isinstance(message, ObjectStored) and message.version:
                self.things[name].version = message.version
        assert all(isinstance(message, ObjectStored) and not message.error for _, message in said)
        [answer] = self.see(last, before)
        assert isinstance(answer, ObjectStored) and not answer.error

    @rule(chosen=st.lists(st.sampled_from(NAMES), min_size=1, max_size=2))
    def delete(self, chosen: list[bytes]) -> None:
        before = self.snapshot()
        self.gone.update(name for name in chosen if name not in self.things)
        for name in chosen:
            self.things.pop(name, None)
        self.see(self.server.tell(CLIENT, DeleteObjects(chosen)), before)

    @rule(name=st.sampled_from(NAMES), data=st.data(), late=st.booleans())
    def miss(self, name: bytes, data: st.DataObject, late: bool) -> None:
        """Files are gone from a host."""
        thing, voice = self.things.get(name), data.draw(st.sampled_from([WORKER, *sorted(self.replica_servers)]))
        version = thing.version if thing is not None and not late else 1_000_000
        if thing is not None and not late and thing.host and VOICES.get(voice) == thing.host:
            del self.things[name]
        self.see(self.server.tell(voice, DropReplicas([name], [SIZE], [1], [version])), {})

    @invariant()
    def holds(self) -> None:
        self.server.core.check()
        status = self.server.core.status()
        held = [thing for thing in self.things.values() if thing.host]
        assert (status.objects, status.replicas, status.replica_bytes) == (
            len(self.things),
            len(held),
            SIZE * len(held),
        )
        assert status.bytes == (SIZE + OVERHEAD_BYTES) * (len(self.things) - len(held))
        assert status.hosts == len({VOICES[voice] for voice in self.replica_servers})
        for name, count in self.readers.items():
            thing = self.things.get(name)
            assert not count or (thing is not None and self.fetching_from[name] in self.spoken(thing.host))


@pytest.mark.parametrize("examples", [75, pytest.param(3_000, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
def test_holders_of_objects(examples: int) -> None:
    run_state_machine_as_test(
        HoldingModel, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None)
    )
