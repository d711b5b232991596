"""StorageEngine: parts, sessions, limits; and a state machine that compares it with a plain model of its rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scaler_io.links.effects import Log, Send
from scaler_io.links.events import HubEvent, PeerJoined, PeerLost
from scaler_protocol.codec import encode
from scaler_protocol.errors import InvalidFieldError, ObjectRefusedError, ProtocolError, StorageFullError, restore
from scaler_protocol.handshake import Hello, Refused, Role, ServiceKind, Welcome
from scaler_protocol.limits import DELETED_TOGETHER
from scaler_protocol.messages import Message, Release
from scaler_protocol.monitoring import NeedStorageStatus, StorageStatus
from scaler_protocol.objects import PART_BYTES
from scaler_protocol.payloads import Payloads
from scaler_protocol.sessions import KeepSession
from scaler_protocol.storage import (
    DeleteObjects,
    GetObject,
    ListObjects,
    ObjectList,
    ObjectPart,
    ObjectStored,
    PutObject,
)
from scaler_storage.engine import engine as core_module
from scaler_storage.engine.engine import PERMITTED, StorageEngine
from scaler_storage.engine.pool import OVERHEAD_BYTES
from scaler_storage.engine.segments import MemorySegments
from scaler_storage.engine.state import FREED_TOGETHER
from scaler_storage.engine.uploads import SLOWEST, START_SECONDS
from support.examples import examples
from support.storage_engines import PART, EngineDriver, make_parts_small

SHARED = 1000
"""Objects from this size on have a segment that can be mapped."""
ALICE, BOB, WORKER, OTHER_WORKER = (bytes([number]) * 16 for number in range(4))
NAME, OTHER = b"n" * 16, b"o" * 16


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    make_parts_small(monkeypatch)


def test_every_message_that_the_engine_takes_is_permitted_to_some_role() -> None:
    engine = StorageEngine(1, MemorySegments(), 1)
    taken = {kind for kind in engine._handlers if kind not in (PeerJoined, PeerLost)}
    assert taken == frozenset[type]().union(*PERMITTED.values())
    assert PERMITTED.keys() == {Role.CLIENT, Role.AGENT, Role.OPERATOR}


class SharedServer(EngineDriver):
    """An engine with clients Alice (session 1) and Bob (session 2), and two workers."""

    def __init__(self, memory_limit: int = 100_000) -> None:
        super().__init__(memory_limit, SHARED)
        self.join(ALICE, Role.CLIENT, 1)
        self.join(BOB, Role.CLIENT, 2)
        self.join(WORKER, Role.AGENT)
        self.join(OTHER_WORKER, Role.AGENT)

    def join(self, peer: bytes, role: int, session: int = 0, resumed: bool = False) -> None:
        assert {
            to
            for to, _ in self.admit(Hello(role, peer, 1, session=session, service=ServiceKind.STORAGE), resumed=resumed)
        } <= {peer}

    def says(self, peer: bytes, event: HubEvent) -> list[Message]:
        """The answers, which go only to that peer."""
        said = self.tell(peer, event)
        assert {to for to, _ in said} <= {peer}
        return [message for _, message in said]

    def put_part(
        self, peer: bytes, name: bytes, size: int, offset: int, part: bytes, session: int = 0
    ) -> ObjectRefusedError | None:
        [answer] = self.says(peer, PutObject(name, size, Payloads([part]), offset, session, 7))
        assert isinstance(answer, ObjectStored) and (answer.object, answer.request) == (name, 7)
        error = restore(answer.error.encode()) if answer.error else None
        assert error is None or isinstance(error, ObjectRefusedError)
        return error

    def put(self, peer: bytes, name: bytes, content: bytes, session: int = 0) -> ObjectRefusedError | None:
        for offset in range(0, len(content) or 1, PART):
            error = self.put_part(peer, name, len(content), offset, content[offset : offset + PART], session)
            if error:
                return error
        return None

    def part(self, peer: bytes, name: bytes, offset: int = 0, limit: int = PART) -> ObjectPart:
        [answer] = self.says(peer, GetObject(name, offset, limit, 8))
        assert isinstance(answer, ObjectPart) and (answer.object, answer.request) == (name, 8)
        return answer

    def get(self, peer: bytes, name: bytes) -> bytes | None:
        content, part = b"", self.part(peer, name)
        while part.found and part.parts.frame:
            content += part.parts.frame
            part = self.part(peer, name, len(content))
        return content if part.found else None


def test_that_storage_is_full_is_told_once_though_objects_come_and_go() -> None:
    server, told = SharedServer(memory_limit=OVERHEAD_BYTES + 2 * PART), list[str]()
    for _ in range(10):
        for name in (NAME, OTHER):
            server.core.handle(ALICE, PutObject(name, PART, Payloads([b"a" * PART]), 0, 0, 7), server.now)
        server.core.handle(ALICE, DeleteObjects([NAME]), server.now)
        told += [effect.text for effect in server.core.settle(server.now) if isinstance(effect, Log)]
    assert len(told) == 1 and told[0].startswith("storage is full: ")
    [counted] = [effect.text for effect in server.core.settle(60.0) if isinstance(effect, Log)]
    assert counted.startswith("storage is full: refused 9 more objects in 60 s, ")


def test_operators_see_figures_and_nobody_else_does() -> None:
    server = SharedServer()
    operator = b"p" * 16
    server.join(operator, Role.OPERATOR)
    assert server.put(ALICE, NAME, b"0123456789") is None
    [status] = server.says(operator, NeedStorageStatus())
    assert isinstance(status, StorageStatus) and (status.objects, list(status.biggest_sizes)) == (1, [10])
    assert status.biggest_names[0] != NAME.hex() and len(status.biggest_names[0]) == 16
    for peer, message in (
        (ALICE, NeedStorageStatus()),
        (WORKER, NeedStorageStatus()),
        (operator, GetObject(NAME, 0, PART, 8)),
        (operator, PutObject(OTHER, 1, Payloads([b"a"]))),
    ):
        with pytest.raises(ProtocolError):
            server.says(peer, message)


def test_an_object_is_there_when_its_last_part_has_come() -> None:
    server = SharedServer()
    assert "its first part must come before" in str(server.put_part(ALICE, NAME, 10, 8, b"ij"))
    assert server.put_part(ALICE, NAME, 10, 0, b"abcd") is None
    assert server.put_part(ALICE, NAME, 10, 8, b"ij") is None
    assert server.get(BOB, NAME) is None
    assert server.put_part(ALICE, NAME, 10, 4, b"efgh") is None
    assert server.get(BOB, NAME) == b"abcdefghij"
    assert server.part(BOB, NAME).size == 10


def test_who_only_looks_gets_no_bytes_and_the_version() -> None:
    server = SharedServer()
    assert not server.part(BOB, NAME, limit=0).found
    server.put(ALICE, NAME, b"abcde")
    looked, first, last = (server.part(BOB, NAME, *where) for where in [(0, 0), (0, PART), (PART, PART)])
    assert (looked.found, looked.size, looked.parts.frame) == (True, 5, b"")
    assert looked.version == first.version == last.version > 99 << 40
    server.says(ALICE, DeleteObjects([NAME]))
    server.put(ALICE, NAME, b"12345")
    assert server.part(BOB, NAME).version != looked.version


@pytest.mark.parametrize("content", [b"", b"a", b"abcd", b"abcde", b"abcdefgh"])
def test_every_size_comes_back(content: bytes) -> None:
    server = SharedServer()
    assert server.put(ALICE, NAME, content) is None
    assert server.get(WORKER, NAME) == content
    assert server.core.status().bytes == len(content) + OVERHEAD_BYTES


def test_a_range_is_answered_with_what_one_part_holds_of_it() -> None:
    server = SharedServer()
    server.put(ALICE, NAME, b"abcdefghij")
    for offset, limit, expected in [(1, 2, b"bc"), (2, 8, b"cd"), (8, 4, b"ij"), (10, 4, b""), (2**63, 4, b"")]:
        part = server.part(ALICE, NAME, offset, limit)
        assert (part.found, part.parts.frame) == (True, expected)


@pytest.mark.parametrize(
    ("size", "offset", "part"),
    [(10, 1, b"abcd"), (10, 0, b"abc"), (10, 0, b"abcde"), (10, 8, b"abcd"), (10, 12, b""), (0, 4, b""), (4, 0, b"")],
)
def test_a_part_that_is_none_is_refused_and_takes_no_memory(size: int, offset: int, part: bytes) -> None:
    server = SharedServer()
    assert "not a part of" in str(server.put_part(ALICE, NAME, size, offset, part))
    assert server.core.status().bytes == 0


def test_a_size_that_changes_ends_the_upload() -> None:
    server = SharedServer()
    assert server.put_part(ALICE, NAME, 10, 0, b"abcd") is None
    assert "has 10 bytes, not 9" in str(server.put_part(ALICE, NAME, 9, 4, b"efgh"))
    assert server.core.status().writing == 0


def test_an_id_is_refused_to_another_session() -> None:
    server = SharedServer()
    assert server.put_part(BOB, NAME, 8, 0, b"wxyz") is None
    assert server.put(ALICE, NAME, b"abcdefgh") is None
    assert "belongs to another session" in str(server.put_part(BOB, NAME, 8, 4, b"wxyz"))
    assert server.get(ALICE, NAME) == b"abcdefgh"
    assert server.core.status().refused == 1


def test_the_first_complete_copy_wins_and_the_second_counts_as_stored() -> None:
    server = SharedServer()
    assert server.put_part(WORKER, NAME, 8, 0, b"abcd", 1) is None
    assert server.put(OTHER_WORKER, NAME, b"ABCDEFGH", 1) is None
    assert server.put_part(WORKER, NAME, 8, 4, b"efgh", 1) is None
    assert server.get(ALICE, NAME) == b"ABCDEFGH"
    assert server.core.status().bytes == 8 + OVERHEAD_BYTES


def test_beyond_the_limit_a_put_is_refused_until_something_is_freed() -> None:
    server = SharedServer(memory_limit=2 * OVERHEAD_BYTES + 10)
    assert server.put(ALICE, NAME, b"abcdef") is None
    server.core.handle(ALICE, PutObject(OTHER, 5, Payloads([b"abcd"])), 0.0)
    effects = server.core.settle(0.0)
    assert [effect for effect in effects if isinstance(effect, Log)]
    error = server.put_part(ALICE, OTHER, 5, 0, b"abcd")
    assert isinstance(error, StorageFullError)
    assert "5 bytes do not fit: 1,030 of 2,058 are in use" in str(error)
    server.says(ALICE, DeleteObjects([NAME]))
    assert server.put(ALICE, OTHER, b"abcde") is None


def test_room_for_the_whole_object_is_kept_from_its_first_part_on() -> None:
    server = SharedServer(memory_limit=2 * OVERHEAD_BYTES + 10)
    assert server.put_part(ALICE, NAME, 10, 0, b"abcd") is None
    assert isinstance(server.put_part(BOB, OTHER, 1, 0, b"x"), StorageFullError)
    assert isinstance(server.put_part(BOB, OTHER, 2**64 - 1, 0, b"abcd"), StorageFullError)


def test_a_session_deletes_only_its_own() -> None:
    server = SharedServer()
    server.put(ALICE, NAME, b"alice")
    server.put(BOB, OTHER, b"bob")
    server.says(BOB, DeleteObjects([NAME]))
    server.says(BOB, DeleteObjects())
    assert server.get(ALICE, NAME) == b"alice"
    assert server.get(ALICE, OTHER) is None
    with pytest.raises(ProtocolError, match="a client of session 2 cannot delete objects of session 1"):
        server.core.handle(BOB, DeleteObjects([NAME], 1), 0.0)
    assert server.get(ALICE, NAME) == b"alice"
    with pytest.raises(ProtocolError, match="an agent can delete only objects that it names, not all of session 1"):
        server.core.handle(WORKER, DeleteObjects((), 1), 0.0)
    server.says(WORKER, DeleteObjects([NAME], 1))
    assert server.get(ALICE, NAME) is None


def test_a_session_is_told_what_there_is_of_it() -> None:
    server = SharedServer()
    server.put(ALICE, NAME, b"alice")
    server.put(WORKER, OTHER, b"for alice", session=1)
    server.put(BOB, b"b" * 16, b"bob")
    server.put_part(ALICE, b"w" * 16, 10, 0, b"half")
    [listed] = server.says(ALICE, ListObjects(5))
    assert isinstance(listed, ObjectList) and sorted(listed.objects) == sorted([NAME, OTHER])
    assert (listed.request, listed.left) == (5, 0)
    assert server.says(BOB, ListObjects(6)) == [ObjectList([b"b" * 16], 6)]
    assert server.says(WORKER, ListObjects(7)) == [ObjectList([], 7)]


def test_a_session_is_owned_by_those_with_its_key() -> None:
    server = SharedServer()
    first, fork, thief = (
        Hello(Role.CLIENT, bytes([number]) * 16, 1, session=7, service=ServiceKind.STORAGE) for number in (11, 12, 13)
    )
    first, fork, thief = (replace(hello, session_key=key) for hello, key in ((first, b"k"), (fork, b"k"), (thief, b"")))
    for hello in (first, fork):
        assert isinstance(server.core.admit(hello), Welcome)
        server.says(hello.identity, PeerJoined(hello, False))
    for role in (Role.CLIENT, Role.AGENT):
        refused = server.core.admit(replace(thief, role=role))
        assert refused == Refused(["session 7 is another client's"])
    server.put(first.identity, NAME, b"ours")
    server.says(first.identity, PeerLost("gone"))
    assert isinstance(server.core.admit(thief), Refused) and server.get(ALICE, NAME) == b"ours"
    server.says(fork.identity, PeerLost("gone"))
    assert isinstance(server.core.admit(thief), Welcome) and server.get(ALICE, NAME) is None


def test_a_client_writes_only_into_its_own_session_and_a_worker_into_the_one_it_names() -> None:
    server = SharedServer()
    assert "another client's" in str(server.put(ALICE, NAME, b"a", session=2))
    assert "names no session" in str(server.put(WORKER, NAME, b"a"))
    assert server.put(WORKER, NAME, b"a", session=2) is None


def many_objects(server: SharedServer, count: int) -> list[bytes]:
    names = [number.to_bytes(16, "big") for number in range(count)]
    for name in names:
        assert server.put(ALICE, name, b"a") is None
    return names


@pytest.mark.parametrize(
    "end", [lambda names: DeleteObjects(names), lambda names: DeleteObjects(), lambda names: PeerLost("gone")]
)
def test_many_objects_are_freed_in_pieces_and_are_gone_at_once(end: Callable[[list[bytes]], HubEvent]) -> None:
    server = SharedServer(memory_limit=2_000_000)
    names = many_objects(server, 5 * FREED_TOGETHER)
    assert server.says(ALICE, end(names)) == []
    assert not server.part(BOB, names[-1]).found
    pieces = [server.core.status().objects]
    assert pieces[0] >= 3 * FREED_TOGETHER
    while server.core.due() == server.now:
        assert server.later(0) == []
        pieces.append(server.core.status().objects)
    assert pieces[-1] == server.core.status().bytes == 0
    assert all(before - after <= FREED_TOGETHER for before, after in pairwise(pieces))


def test_what_is_deleted_with_many_others_can_be_put_again_at_once() -> None:
    server = SharedServer(memory_limit=2_000_000)
    names = many_objects(server, 5 * FREED_TOGETHER)
    server.core.handle(ALICE, DeleteObjects(names), server.now)
    server.core.handle(ALICE, PutObject(names[-1], 2, Payloads([b"bb"]), 0, 0, 7), server.now)
    [stored] = server.settle()
    assert isinstance(stored[1], ObjectStored) and not stored[1].error and stored[1].version
    [listed] = server.says(ALICE, ListObjects(8))
    assert listed == ObjectList([names[-1]], 8)
    for _ in range(10):
        server.later(0)
    assert server.core.status().objects == 1 and server.get(BOB, names[-1]) == b"bb"


def test_what_is_deleted_makes_room_at_once() -> None:
    server = SharedServer(memory_limit=5 * FREED_TOGETHER * (OVERHEAD_BYTES + 1))
    names = many_objects(server, 5 * FREED_TOGETHER)
    server.core.handle(ALICE, DeleteObjects(names), server.now)
    for number in range(4 * FREED_TOGETHER):
        server.core.handle(BOB, PutObject(number.to_bytes(16, "little"), 1, Payloads([b"b"]), 0, 0, 7), server.now)
    answers = [message for _, message in server.settle()]
    assert [each.error for each in answers if isinstance(each, ObjectStored)] == [""] * (4 * FREED_TOGETHER)


def test_a_session_whose_objects_are_being_freed_may_begin_again() -> None:
    server = SharedServer(memory_limit=2_000_000)
    names = many_objects(server, 5 * FREED_TOGETHER)
    server.says(ALICE, PeerLost("gone"))
    server.join(ALICE, Role.CLIENT, 1)
    assert server.says(ALICE, ListObjects(8)) == [ObjectList([], 8)]
    assert server.put(ALICE, names[0], b"bb") is None
    for _ in range(10):
        server.later(0)
    assert server.core.status().objects == 1 and server.get(BOB, names[0]) == b"bb"


def test_one_message_deletes_a_limited_number_of_objects() -> None:
    encode(DeleteObjects([bytes(16)] * DELETED_TOGETHER))
    with pytest.raises(InvalidFieldError):
        encode(DeleteObjects([bytes(16)] * (DELETED_TOGETHER + 1)))


def test_deleting_drops_what_is_half_written() -> None:
    server = SharedServer()
    server.put_part(ALICE, NAME, 8, 0, b"abcd")
    server.put_part(WORKER, NAME, 8, 0, b"abcd", 1)
    server.says(ALICE, DeleteObjects([NAME]))
    assert server.core.status().writing == 1
    server.says(WORKER, DeleteObjects([NAME], 1))
    assert server.core.status().bytes == 0


def test_a_lost_writer_leaves_nothing_half_written_and_everything_complete() -> None:
    server = SharedServer()
    server.put(WORKER, NAME, b"complete", 1)
    server.put_part(WORKER, OTHER, 8, 0, b"half", 1)
    server.says(WORKER, PeerLost("gone"))
    assert server.get(ALICE, NAME) == b"complete"
    assert server.core.status().writing == 0


def test_a_lost_client_ends_its_session_for_everybody() -> None:
    server = SharedServer()
    server.put(ALICE, NAME, b"hers")
    server.put(WORKER, OTHER, b"result", 1)
    server.put_part(WORKER, b"h" * 16, 8, 0, b"half", 1)
    server.says(ALICE, PeerLost("gone"))
    assert server.core.status().bytes == 0
    assert "session 1 has ended" in str(server.put(WORKER, NAME, b"late", 1))
    server.join(ALICE, Role.CLIENT, 1)
    assert server.put(WORKER, NAME, b"again", 1) is None


def test_a_session_lives_as_long_as_one_client_of_it() -> None:
    server = SharedServer()
    second = b"2" * 16
    server.join(second, Role.CLIENT, 1)
    server.put(ALICE, NAME, b"shared")
    server.says(ALICE, PeerLost("gone"))
    assert server.get(second, NAME) == b"shared"
    server.says(second, PeerLost("gone"))
    assert server.get(BOB, NAME) is None


def test_results_wait_for_a_client_that_has_not_come_yet() -> None:
    server = SharedServer()
    server.put(WORKER, NAME, b"early", 3)
    server.says(WORKER, PeerLost("gone"))
    server.join(b"3" * 16, Role.CLIENT, 3)
    assert server.get(b"3" * 16, NAME) == b"early"


def test_results_that_nobody_comes_for_are_freed_after_the_retention() -> None:
    server = SharedServer()
    server.put(WORKER, NAME, b"first", 3)
    server.later(50)
    server.put(WORKER, OTHER, b"second", 3)
    server.put(WORKER, b"4" * 16, b"another's", 4)
    assert server.core.due() == 110
    server.later(59)
    assert server.get(ALICE, NAME) == b"first"
    server.says(WORKER, DeleteObjects([b"4" * 16], 4))
    server.later(1)
    assert server.core.status().bytes == 0 and server.core.due() is None
    assert server.put(WORKER, NAME, b"late", 3) is None
    server.join(b"3" * 16, Role.CLIENT, 3)
    server.later(1000)
    assert server.get(b"3" * 16, NAME) == b"late"


def test_a_worker_owns_the_session_of_its_tasks_tasks() -> None:
    server = SharedServer()
    parent = b"p" * 16
    server.put(WORKER, NAME, b"early", 9)
    server.join(parent, Role.AGENT, 9)
    assert server.core.due() is None
    assert server.put(parent, OTHER, b"own") is None and server.put(parent, b"r" * 16, b"result", 1) is None
    server.says(parent, PeerLost("killed"))
    assert [server.get(ALICE, name) for name in (NAME, OTHER, b"r" * 16)] == [None, None, b"result"]
    assert "session 9 has ended" in str(server.put(WORKER, NAME, b"late", 9))


def test_a_peer_with_a_new_stream_keeps_its_session_but_not_its_uploads() -> None:
    server = SharedServer()
    server.put(ALICE, NAME, b"kept")
    server.put_part(ALICE, OTHER, 8, 0, b"half")
    server.join(ALICE, Role.CLIENT, 1, resumed=True)
    assert server.core.status().writing == 1
    server.join(ALICE, Role.CLIENT, 1)
    assert server.core.status().writing == 0
    assert server.get(ALICE, NAME) == b"kept"
    server.join(ALICE, Role.CLIENT, 5)
    assert server.get(ALICE, NAME) is None


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello(Role.CLIENT, ALICE, 1, session=1, protocol=99, service=ServiceKind.STORAGE), "protocol version 99"),
        (Hello(17, ALICE, 1, session=1, service=ServiceKind.STORAGE), "unknown role 17"),
        (Hello(Role.AGENT, b"short", 1, service=ServiceKind.STORAGE), "16 bytes, not 5"),
        (Hello(Role.CLIENT, ALICE, 1, service=ServiceKind.STORAGE), "a client has a session"),
    ],
)
def test_a_refusal_says_what_is_wrong(hello: Hello, reason: str) -> None:
    answer = StorageEngine(1, MemorySegments(), 1).admit(hello)
    assert isinstance(answer, Refused)
    assert reason in "; ".join(answer.reasons)


def test_a_message_of_another_service_is_refused() -> None:
    with pytest.raises(ProtocolError, match="unexpected message Release"):
        SharedServer().core.handle(ALICE, Release([1]), 0.0)


def test_the_memory_of_ended_sessions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "_ENDED_LIMIT", 2)
    server = SharedServer()
    for session in range(10, 15):
        server.join(b"e" * 16, Role.CLIENT, session)
        server.says(b"e" * 16, PeerLost("gone"))
    assert "has ended" in str(server.put(WORKER, NAME, b"late", 14))
    assert server.put(WORKER, NAME, b"late", 10) is None


# --- the state machine ----------------------------------------------------------------------------------------------

PEERS = {b"a" * 16: (Role.CLIENT, 1), b"b" * 16: (Role.CLIENT, 1), b"c" * 16: (Role.CLIENT, 2)}
PEERS |= {b"w" * 16: (Role.AGENT, 0), b"v" * 16: (Role.AGENT, 2)}
RETENTION = 60.0
NAMES = [bytes([letter]) * 16 for letter in b"xyz"]
peers, names, sessions = st.sampled_from(list(PEERS)), st.sampled_from(NAMES), st.sampled_from([1, 2])
Upload = tuple[int, int, dict[int, bytes]]


class StorageModel(RuleBasedStateMachine):
    """The rules of the core's docstring, written as plainly as possible."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        make_parts_small(self.patch)
        self.limit = 3 * OVERHEAD_BYTES + 20
        self.now = 0.0
        self.core = StorageEngine(1, MemorySegments(), self.limit, RETENTION)
        self.orphaned: dict[int, float] = {}
        self.joined: set[bytes] = set()
        self.ended: set[int] = set()
        self.objects: dict[bytes, tuple[int, bytes]] = {}
        self.uploads: dict[tuple[bytes, bytes], Upload] = {}
        self.begun: dict[tuple[bytes, bytes], float] = {}

    def teardown(self) -> None:
        self.patch.undo()

    def tell(self, peer: bytes, event: HubEvent) -> Sequence[Message]:
        self.core.handle(peer, event, self.now)
        return [effect.message for effect in self.core.settle(self.now) if isinstance(effect, Send)]

    def owned(self, session: int) -> bool:
        return any(PEERS[peer][1] == session for peer in self.joined)

    @rule(seconds=st.sampled_from([1.0, 30.0, RETENTION]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        over = {session for session, since in self.orphaned.items() if since + RETENTION <= self.now}
        over -= {session for session in over if self.owned(session)}
        self.objects = {name: each for name, each in self.objects.items() if each[0] not in over}
        assert not [effect for effect in self.core.settle(self.now) if isinstance(effect, Send)]

    def used(self) -> int:
        sizes = [len(content) for _, content in self.objects.values()] + [size for _, size, _ in self.uploads.values()]
        return sum(sizes) + OVERHEAD_BYTES * len(sizes)

    def give_up_slow(self) -> None:
        slow = [
            key
            for key, (_, _, parts) in self.uploads.items()
            if len(parts) * PART_BYTES < (self.now - self.begun[key] - START_SECONDS) * SLOWEST
        ]
        for key in slow:
            del self.uploads[key]

    def forget_writer(self, peer: bytes) -> None:
        self.uploads = {key: upload for key, upload in self.uploads.items() if key[0] != peer}

    @rule(peer=peers)
    def join(self, peer: bytes) -> None:
        role, session = PEERS[peer]
        self.forget_writer(peer)
        self.joined.add(peer)
        self.ended.discard(session)
        self.tell(peer, PeerJoined(Hello(role, peer, 1, session=session, service=ServiceKind.STORAGE), False))

    @precondition(lambda self: self.joined)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        peer = data.draw(st.sampled_from(sorted(self.joined)))
        _, session = PEERS[peer]
        self.forget_writer(peer)
        self.joined.discard(peer)
        if session and not self.owned(session):
            self.ended.add(session)
            self.objects = {name: each for name, each in self.objects.items() if each[0] != session}
            self.uploads = {key: upload for key, upload in self.uploads.items() if upload[0] != session}
        self.tell(peer, PeerLost("gone"))

    @precondition(lambda self: self.joined)
    @rule(
        data=st.data(),
        name=names,
        session=sessions,
        size=st.sampled_from([0, 3, 4, 7, 9, 12]),
        index=st.integers(0, 2),
        letter=st.sampled_from(b"AB"),
    )
    def put(self, data: st.DataObject, name: bytes, session: int, size: int, index: int, letter: int) -> None:
        peer = data.draw(st.sampled_from(sorted(self.joined)))
        part = bytes([letter]) * max(0, min(PART, size - index * PART))
        taken = self.take(peer, name, session, size, index, part)
        if not taken:
            self.uploads.pop((peer, name), None)
        [answer] = self.tell(peer, PutObject(name, size, Payloads([part]), index * PART, session))
        assert isinstance(answer, ObjectStored)
        assert taken == (not answer.error), answer.error

    def take(self, peer: bytes, name: bytes, session: int, size: int, index: int, part: bytes) -> bool:
        role, own = PEERS[peer]
        if (role == Role.CLIENT and session != own) or session in self.ended:
            return False
        if index and index * PART >= size:
            return False
        if name in self.objects:
            self.uploads.pop((peer, name), None)
            return (self.objects[name][0], len(self.objects[name][1])) == (session, size)
        if (peer, name) not in self.uploads:
            if index:
                return False
            if size + OVERHEAD_BYTES <= self.limit < self.used() + size + OVERHEAD_BYTES:
                self.give_up_slow()
            if self.used() + size + OVERHEAD_BYTES > self.limit:
                return False
            self.uploads[peer, name] = session, size, {}
            self.begun[peer, name] = self.now
        begun, of, parts = self.uploads[peer, name]
        if (begun, of) != (session, size):
            return False
        parts.setdefault(index, part)
        content = b"".join(parts[each] for each in sorted(parts))
        if len(content) == size:
            del self.uploads[peer, name]
            self.objects[name] = session, content
            self.orphaned[session] = self.now
        return True

    @precondition(lambda self: self.joined)
    @rule(data=st.data(), chosen=st.lists(names, max_size=2), session=sessions)
    def delete(self, data: st.DataObject, chosen: list[bytes], session: int) -> None:
        peer = data.draw(st.sampled_from(sorted(self.joined)))
        role, own = PEERS[peer]
        session = own if role == Role.CLIENT else session
        if session not in (0, own) and not chosen:
            with pytest.raises(ProtocolError, match="not all of session"):
                self.core.handle(peer, DeleteObjects((), session), self.now)
            return
        for name in chosen:
            if self.uploads.get((peer, name), (0,))[0] == session:
                del self.uploads[peer, name]
        for name in chosen or list(self.objects):
            if self.objects.get(name, (0,))[0] == session:
                del self.objects[name]
        assert not self.tell(peer, DeleteObjects(chosen, session))

    @invariant()
    def holds(self) -> None:
        self.core.check()
        status = self.core.status()
        assert (status.objects, status.writing, status.bytes) == (len(self.objects), len(self.uploads), self.used())
        for peer in sorted(self.joined)[:1]:
            for name in NAMES:
                [answer] = self.tell(peer, GetObject(name, 0, PART))
                assert isinstance(answer, ObjectPart)
                assert answer.found == (name in self.objects)
                if answer.found:
                    assert answer.parts.frame == self.objects[name][1][:PART]


TestStorageModel = StorageModel.TestCase
TestStorageModel.settings = settings(max_examples=examples(75), stateful_step_count=30, deadline=None)


def test_the_scheduler_owns_a_named_session_whichever_clients_come_and_go() -> None:
    server, scheduler = SharedServer(), b"s" * 16
    server.join(scheduler, Role.OPERATOR)
    server.core.handle(scheduler, KeepSession(99, b"key"), server.now)
    client = Hello(
        Role.CLIENT, b"c" * 16, 1, session=99, session_name="n", session_key=b"key", service=ServiceKind.STORAGE
    )
    assert isinstance(server.core.admit(client), Welcome)
    assert isinstance(server.core.admit(replace(client, session_key=b"other")), Refused)
    server.core.handle(client.identity, PeerJoined(client, False), server.now)
    assert server.put(client.identity, NAME, b"0123456789") is None
    server.core.handle(client.identity, PeerLost("gone", farewell=True), server.now)
    server.core.settle(server.now + 1000.0)
    assert server.get(BOB, NAME) == b"0123456789"
    with pytest.raises(ProtocolError, match="another key"):
        server.core.handle(scheduler, KeepSession(99, b"other", keep=False), server.now)
    server.core.handle(scheduler, KeepSession(99, b"key", keep=False), server.now)
    assert server.get(BOB, NAME) is None
    server.core.check()


def test_a_client_cannot_say_that_its_session_outlives_it() -> None:
    server = SharedServer()
    client = Hello(Role.CLIENT, b"c" * 16, 1, session=99, session_name="n", service=ServiceKind.STORAGE)
    assert isinstance(server.core.admit(client), Welcome)
    server.core.handle(client.identity, PeerJoined(client, False), server.now)
    assert server.put(client.identity, NAME, b"0123456789") is None
    server.core.handle(client.identity, PeerLost("gone", farewell=True), server.now)
    assert server.get(BOB, NAME) is None and 99 not in server.core._state.sessions


def test_a_named_session_without_owner_waits_for_the_next_one() -> None:
    server, scheduler = SharedServer(), b"s" * 16
    server.join(scheduler, Role.OPERATOR)
    server.core.handle(scheduler, KeepSession(99, b"key"), server.now)
    assert server.put(WORKER, NAME, b"0123456789", session=99) is None
    server.core.handle(scheduler, PeerLost("killed"), server.now)
    server.core.check()
    assert server.get(BOB, NAME) == b"0123456789"
    server.join(scheduler, Role.OPERATOR)
    server.core.handle(scheduler, KeepSession(99, b"key"), server.now)
    server.core.settle(server.now + 1000.0)
    assert server.get(BOB, NAME) == b"0123456789"
    server.core.handle(scheduler, PeerLost("killed"), server.now)
    server.core.settle(server.now + 2000.0)
    assert server.get(BOB, NAME) is None
    server.core.check()
