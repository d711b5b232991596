"""Segments under StorageEngine: allocate, seal, map, pin, spill, load; and a state machine that watches their bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scaler_io.links.events import PeerLost
from scaler_protocol.errors import ObjectRefusedError, ProtocolError, ScalerError, StorageFullError, restore
from scaler_protocol.handshake import Hello, Role, ServiceKind
from scaler_protocol.messages import Message
from scaler_protocol.objects import host_proof
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import (
    AllocateObject,
    DeleteObjects,
    GetObject,
    HostProof,
    MapObject,
    ObjectAllocated,
    ObjectMapped,
    ObjectPart,
    ObjectStored,
    PutObject,
    SealObject,
    UnpinObjects,
)
from scaler_storage.engine.engine import WRITING_SECONDS, StorageEngine
from scaler_storage.engine.pool import OVERHEAD_BYTES, RECYCLE_SECONDS
from scaler_storage.engine.processes import GRACE_SECONDS, LOOK_SECONDS
from scaler_storage.engine.segments import MemorySegments, Segment, size_class
from support.examples import examples
from support.storage_engines import EngineDriver

KIB = 1024
SHARED = 4 * KIB
"""Objects from this size on have a segment that can be mapped: of one page, and of more if they are bigger."""
PAGE = 4 * KIB + OVERHEAD_BYTES
"""What such an object takes of the limit."""
ALICE, BOB, FAR = (bytes([number]) * 16 for number in range(3))
NAMES = [bytes([letter]) * 16 for letter in b"uvwxyz"]


class SharingServer(EngineDriver):
    """An engine with clients Alice and Bob on its host (session 1), and one elsewhere; each answer is kept."""

    def __init__(
        self,
        memory_limit: int = 100 * PAGE,
        *,
        spills: bool = False,
        spill_limit: int | None = None,
        living: bool = False,
    ) -> None:
        super().__init__(memory_limit, SHARED, spills=spills, spill_limit=spill_limit)
        self.living = living
        self.answers: dict[int, Message] = {}
        self.requests = 0
        self.lock_files: dict[bytes, str] = {}
        for peer in (ALICE, BOB, FAR):
            self.join(peer)

    def join(self, peer: bytes) -> None:
        self.admit(Hello(Role.CLIENT, peer, 1, session=1, service=ServiceKind.STORAGE))
        if peer != FAR:
            self.lock_files[peer] = f"life{self.number()}" if self.living else ""
            self.tell(peer, self.proof(peer, self.lock_files[peer]))

    def die(self, peer: bytes) -> None:
        """Its process ends, and its connection does not break."""
        self.segments.dead.add(self.lock_files[peer])
        for _ in range(2):
            self.later(LOOK_SECONDS)

    def settle(self) -> list[tuple[bytes, Message]]:
        said = super().settle()
        for _, message in said:
            request = message.request  # type: ignore[union-attr]
            assert request not in self.answers
            self.answers[request] = message
        state = self.core._state
        assert not state.queue or state.pager.moving or state.pager.arriving or state.pager.uploading
        return said

    def work(self) -> None:
        """What is to be moved is moved."""
        self.segments.work()
        self.settle()

    def number(self) -> int:
        self.requests += 1
        return self.requests

    def allocate(self, peer: bytes, name: bytes, size: int = SHARED) -> int:
        self.tell(peer, AllocateObject(name, size, 1, request := self.number()))
        return request

    def seal(self, peer: bytes, name: bytes, segment: str) -> ScalerError | None:
        self.tell(peer, SealObject(name, segment, request := self.number()))
        return self.error(request)

    def write(self, allocated: int, content: bytes) -> str:
        answer = self.answers[allocated]
        assert isinstance(answer, ObjectAllocated) and not answer.error and answer.segment
        self.segments.write(self.segment(answer.segment), 0, content)
        return answer.segment

    def segment(self, name: str) -> Segment:
        [segment] = [each for each in self.segments.live if each.name == name]
        return segment

    def put(self, name: bytes, letter: bytes = b"a", size: int = SHARED) -> None:
        segment = self.write(self.allocate(ALICE, name, size), letter * size)
        assert self.seal(ALICE, name, segment) is None

    def map(self, peer: bytes, name: bytes, size: int = SHARED) -> int:
        self.tell(peer, MapObject(name, size, request := self.number()))
        return request

    def mapped(self, request: int) -> ObjectMapped:
        answer = self.answers[request]
        assert isinstance(answer, ObjectMapped)
        return answer

    def bytes_of(self, request: int) -> set[bytes]:
        """The bytes that the segment of a mapping consists of."""
        content = self.segments.live[self.segment(self.mapped(request).segment)]
        return {bytes([each]) for each in content}

    def get(self, name: bytes, peer: bytes = FAR) -> int:
        self.tell(peer, GetObject(name, 0, 10, request := self.number()))
        return request

    def error(self, request: int) -> ScalerError | None:
        text = getattr(self.answers[request], "error", "")
        return restore(text.encode()) if text else None


def test_what_was_written_into_a_segment_can_be_mapped_and_got() -> None:
    server = SharingServer()
    server.put(NAMES[0])
    request = server.map(BOB, NAMES[0])
    assert server.mapped(request).found and server.bytes_of(request) == {b"a"}
    part = server.answers[server.get(NAMES[0])]
    assert isinstance(part, ObjectPart) and part.parts.frame == b"a" * 10
    assert server.core.status().pinned_bytes == 4 * KIB


def test_parts_from_elsewhere_can_be_mapped() -> None:
    server = SharingServer()
    server.tell(FAR, PutObject(NAMES[0], SHARED, Payloads([b"f" * SHARED]), 0, 1, server.number()))
    assert server.bytes_of(server.map(BOB, NAMES[0])) == {b"f"}


def test_who_has_not_proven_to_be_here_gets_no_segment() -> None:
    server = SharingServer()
    for guess in (HostProof(server.segments.token), HostProof(b""), server.proof(ALICE)):
        with pytest.raises(ProtocolError, match=r"HostProof\.proof does not answer the challenge"):
            server.core.handle(FAR, guess, 0.0)
    for request in (server.allocate(FAR, NAMES[0]), server.map(FAR, NAMES[0])):
        assert "came before a HostProof" in str(server.error(request))
    assert "no segment '1' allocated" in str(server.seal(FAR, NAMES[0], "1"))
    assert server.core.status().bytes == 0


def test_a_dead_process_is_not_waited_for() -> None:
    server = SharingServer(living=True)
    server.put(NAMES[0])
    pinned, writing = server.map(BOB, NAMES[0]), server.allocate(BOB, NAMES[1])
    server.tell(ALICE, DeleteObjects([NAMES[0]], 1))
    assert server.core.status().bytes == 2 * PAGE and server.mapped(pinned).found
    server.now += 10 * LOOK_SECONDS
    server.settle()
    assert server.core.status().bytes == 2 * PAGE
    server.die(BOB)
    assert (server.core.status().bytes, server.core.status().pinned_bytes) == (0, 0)
    assert "no segment" in str(server.seal(BOB, NAMES[1], "2")) and server.answers[writing]
    server.tell(BOB, PeerLost("its connection is gone"))
    server.put(NAMES[2])
    for peer in (ALICE, FAR):
        assert server.core.status().objects == 1
        server.die(peer) if peer == ALICE else server.tell(peer, PeerLost("gone"))
    assert server.core.status().objects == 1
    server.now += GRACE_SECONDS
    server.settle()
    assert server.core.status().objects == 0  # with its session


def test_who_speaks_is_not_dead() -> None:
    server = SharingServer(living=True)
    server.put(NAMES[0])
    for peer in (BOB, FAR):
        server.tell(peer, PeerLost("gone"))
    server.die(ALICE)
    assert server.mapped(server.map(ALICE, NAMES[0])).found
    server.now += 10 * GRACE_SECONDS
    server.settle()
    assert server.core.status().objects == 1
    server.tell(ALICE, PeerLost("gone"))
    assert server.core.status().objects == 0


def test_another_owner_keeps_the_session_of_a_dead_process() -> None:
    server = SharingServer(living=True)
    server.put(NAMES[0])
    for peer in (BOB, FAR):
        server.tell(peer, PeerLost("gone"))
    server.die(ALICE)
    server.join(BOB)
    server.now += GRACE_SECONDS
    server.settle()
    assert server.core.status().objects == 1


def test_a_process_lives_on_without_its_connection() -> None:
    server = SharingServer(living=True)
    lock_file = server.lock_files[BOB]
    server.tell(BOB, PeerLost("gone"))
    server.join(BOB)
    server.tell(BOB, server.proof(BOB, lock_file))
    server.now += 10 * LOOK_SECONDS
    server.settle()
    server.put(NAMES[0])
    assert server.mapped(server.map(BOB, NAMES[0])).found


def test_a_life_is_no_path() -> None:
    with pytest.raises(ProtocolError, match="letters and digits"):
        server = SharingServer()
        server.core.handle(ALICE, server.proof(ALICE, "../token"), 0.0)


def test_without_a_directory_nobody_is_here() -> None:
    core = StorageEngine(1, MemorySegments(), 1)
    with pytest.raises(ProtocolError):
        core.handle(ALICE, HostProof(host_proof(b"token", b"challenge", ALICE)), 0.0)


def test_small_objects_have_no_segment() -> None:
    server = SharingServer()
    server.tell(ALICE, PutObject(NAMES[0], 3, Payloads([b"abc"]), 0, 1, server.number()))
    assert "too small to be mapped" in str(server.error(server.map(BOB, NAMES[0], 3)))
    assert "too small for a segment" in str(server.error(server.allocate(BOB, NAMES[1], 3)))
    assert server.core.status().bytes == 3 + OVERHEAD_BYTES


def test_what_is_not_there_is_not_mapped() -> None:
    server = SharingServer()
    server.put(NAMES[0])
    assert not server.mapped(server.map(BOB, NAMES[1])).found
    assert not server.mapped(server.map(BOB, NAMES[0], SHARED + 1)).found
    assert server.core.status().unknown == 2


def test_what_is_stored_already_needs_no_segment() -> None:
    server = SharingServer()
    server.put(NAMES[0])
    answer = server.answers[server.allocate(BOB, NAMES[0])]
    assert isinstance(answer, ObjectAllocated) and not answer.error and not answer.segment
    assert "has 4,096 bytes, not 4,097" in str(server.error(server.allocate(BOB, NAMES[0], SHARED + 1)))


def test_of_two_writers_the_first_wins_and_both_are_stored() -> None:
    server = SharingServer()
    requests = [server.allocate(peer, NAMES[0]) for peer in (ALICE, BOB)]
    segments = [server.write(request, letter * SHARED) for request, letter in zip(requests, (b"a", b"b"), strict=True)]
    assert server.seal(BOB, NAMES[0], segments[1]) is None
    assert server.seal(ALICE, NAMES[0], segments[0]) is None
    assert server.bytes_of(server.map(ALICE, NAMES[0])) == {b"b"}
    assert server.core.status().recyclable_bytes == 4 * KIB  # its writer has said that it is done with it


def test_only_the_segment_that_was_allocated_last_is_sealed() -> None:
    server = SharingServer()
    first = server.write(server.allocate(ALICE, NAMES[0]), b"1" * SHARED)
    second = server.write(server.allocate(ALICE, NAMES[0]), b"2" * SHARED)
    assert "no segment" in str(server.seal(ALICE, NAMES[0], first))
    assert "no segment" in str(server.seal(ALICE, NAMES[0], second))
    assert not server.mapped(server.map(BOB, NAMES[0])).found


def test_a_freed_segment_is_reused_unless_a_process_may_still_have_it() -> None:
    server = SharingServer()
    server.put(NAMES[0])
    [segment] = server.segments.live
    server.tell(ALICE, DeleteObjects([NAMES[0]]))
    server.put(NAMES[0])
    assert set(server.segments.live) == {segment}
    request = server.map(BOB, NAMES[0])
    server.tell(ALICE, DeleteObjects([NAMES[0]]))
    assert not server.mapped(server.map(ALICE, NAMES[0])).found
    server.put(NAMES[1], b"b")
    assert server.bytes_of(request) == {b"a"} and len(server.segments.live) == 2
    server.tell(ALICE, UnpinObjects([server.mapped(request).pin]))  # not its own
    assert server.core.status().recyclable_bytes == 0
    server.tell(BOB, UnpinObjects([server.mapped(request).pin, 5]))
    assert server.core.status().recyclable_bytes == 4 * KIB


@pytest.mark.parametrize("how", ["lost", "again", "inherited", "half written", "deleted while written"])
def test_a_segment_that_a_process_may_still_have_is_never_reused(how: str) -> None:
    server = SharingServer()
    if how in ("half written", "deleted while written"):
        server.allocate(BOB, NAMES[0])
        server.tell(BOB, PeerLost("killed") if how == "half written" else DeleteObjects([NAMES[0]]))
    else:
        server.put(NAMES[0])
        pin = server.mapped(server.map(BOB, NAMES[0])).pin
        if how == "lost":
            server.tell(BOB, PeerLost("killed"))
        elif how == "again":
            server.join(BOB)
        else:
            server.tell(BOB, UnpinObjects([], [pin]))
        assert server.segments.live and not server.core.status().pinned_bytes
        server.tell(ALICE, DeleteObjects([NAMES[0]]))
    assert not server.segments.live and server.core.status().bytes == 0


def test_free_segments_are_given_up_in_time_and_when_memory_is_needed() -> None:
    server = SharingServer(memory_limit=8 * PAGE)
    for name in NAMES:
        server.put(name)
    server.tell(ALICE, DeleteObjects())
    assert server.core.status().recyclable_bytes == 8 * KIB  # a quarter of the limit
    assert server.core.due() == RECYCLE_SECONDS
    server.put(NAMES[0], size=9 * 4 * KIB)
    assert server.core.status().recyclable_bytes == 0
    server.tell(ALICE, DeleteObjects())
    server.put(NAMES[0])
    server.tell(ALICE, DeleteObjects())
    server.now = RECYCLE_SECONDS
    server.settle()
    assert not server.segments.live and server.core.due() is None


def test_memory_that_is_not_there_is_the_limit_too() -> None:
    server = SharingServer()
    server.segments.room = 2 * 4 * KIB
    for name in NAMES[:2]:
        server.put(name)
    assert isinstance(server.error(server.allocate(ALICE, NAMES[2])), StorageFullError)
    server.tell(ALICE, DeleteObjects(NAMES[:2]))
    server.put(NAMES[2], size=2 * SHARED)


def test_classes_waste_little() -> None:
    for size in (SHARED, 300_000, 10**6, 2**30 + 1, 3 * 10**10):
        assert size <= size_class(size, SHARED) <= size * 17 / 16 + 4096
        assert size_class(size, SHARED) % 4096 == 0
    assert size_class(100, SHARED) == 100


# --- disk -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def full() -> Iterator[SharingServer]:
    """With three objects, and room for no other."""
    server = SharingServer(memory_limit=3 * PAGE, spills=True, spill_limit=3 * SHARED)
    for name, letter in zip(NAMES[:3], (b"0", b"1", b"2"), strict=True):
        server.put(name, letter)
    yield server


def test_what_was_not_used_for_longest_goes_to_disk_and_comes_back(full: SharingServer) -> None:
    full.get(NAMES[0])
    request = full.allocate(ALICE, NAMES[3])
    assert request not in full.answers
    full.work()
    assert full.seal(ALICE, NAMES[3], full.write(request, b"3" * SHARED)) is None
    assert full.segments.disk == {1: b"1" * SHARED}
    assert list(full.core.status().biggest_in_memory).count(False) == 1
    request = full.map(BOB, NAMES[1])
    other = full.get(NAMES[1])
    full.work()  # another one goes
    full.work()
    assert full.bytes_of(request) == {b"1"} and full.answers[other].parts.frame == b"1" * 10  # type: ignore[union-attr]
    status = full.core.status()
    assert (status.hits, status.misses, status.spilled_bytes_total, status.loaded_bytes_total) == (
        1,
        2,
        2 * SHARED,
        SHARED,
    )
    assert (status.spilled, status.spilled_bytes) == (1, SHARED)
    full.tell(ALICE, DeleteObjects())
    assert not full.segments.disk and full.core.status().spilled_bytes == 0


def test_what_is_mapped_stays(full: SharingServer) -> None:
    requests = [full.map(BOB, name) for name in NAMES[:3]]
    assert isinstance(full.error(full.allocate(ALICE, NAMES[3])), StorageFullError)
    full.tell(BOB, UnpinObjects([full.mapped(requests[2]).pin]))
    request = full.allocate(ALICE, NAMES[3])
    full.work()
    assert full.error(request) is None and full.segments.disk == {1: b"2" * SHARED}
    request = full.map(ALICE, NAMES[2])
    full.tell(ALICE, DeleteObjects([NAMES[3]]))
    full.work()
    assert full.mapped(request).found


def test_what_is_mapped_on_its_way_to_disk_stays(full: SharingServer) -> None:
    request = full.allocate(ALICE, NAMES[3])
    mapped = full.map(BOB, NAMES[0])
    full.work()
    assert full.bytes_of(mapped) == {b"0"} and request not in full.answers
    full.work()
    assert full.error(request) is None and list(full.segments.disk.values()) == [b"1" * SHARED]


@pytest.mark.parametrize("again", [False, True])
def test_what_is_deleted_on_its_way_is_gone(full: SharingServer, again: bool) -> None:
    full.allocate(ALICE, NAMES[3])
    if again:
        full.work()
        full.tell(ALICE, DeleteObjects([NAMES[1]]))
        waiting = full.map(BOB, NAMES[0])
    full.tell(ALICE, DeleteObjects([NAMES[0]]))
    full.work()
    assert not full.segments.disk and full.core.status().spilled == 0
    if again:
        assert not full.mapped(waiting).found


def test_requests_for_room_are_answered_in_their_order(full: SharingServer) -> None:
    big = full.allocate(ALICE, NAMES[3], 2 * SHARED)
    small = full.allocate(BOB, NAMES[4])
    gone = full.allocate(BOB, NAMES[5])
    full.tell(BOB, DeleteObjects([NAMES[5]]))
    assert "was deleted" in str(full.error(gone))
    assert not {big, small} & full.answers.keys() and full.core.status().waiting == 2
    full.work()
    assert full.error(big) is None and small not in full.answers
    full.work()
    assert full.error(small) is None


def test_who_is_gone_waits_for_nothing(full: SharingServer) -> None:
    full.allocate(BOB, NAMES[3])
    full.tell(BOB, PeerLost("killed"))
    assert full.core.status().waiting == 0
    full.work()
    assert full.core.status().writing == 0


def test_a_quota_on_disk(full: SharingServer) -> None:
    for name in NAMES[3:]:
        request = full.allocate(ALICE, name)
        full.work()
        full.seal(ALICE, name, full.write(request, b"n" * SHARED))
    assert full.core.status().spilled == 3
    error = full.error(full.map(BOB, NAMES[0]))
    assert isinstance(error, StorageFullError) and "12,288 of 12,288 on disk" in str(error)
    full.tell(ALICE, DeleteObjects([NAMES[3]]))
    request = full.map(BOB, NAMES[0])
    full.work()
    assert full.bytes_of(request) == {b"0"}


def test_a_full_disk_harms_nobody(full: SharingServer) -> None:
    full.segments.disk_error = "No space left on device"
    requests = [full.allocate(ALICE, NAMES[3]), full.allocate(BOB, NAMES[4])]
    full.work()
    for request in requests:
        error = full.error(request)
        assert isinstance(error, StorageFullError) and "No space left on device" in str(error)
    assert [full.bytes_of(full.map(BOB, name)) for name in NAMES[:3]] == [{b"0"}, {b"1"}, {b"2"}]
    assert full.core.status().spilled_bytes == 0 and "storage is full" in full.logs[0]
    full.tell(BOB, PeerLost("gone"))
    full.segments.disk_error = ""
    request = full.allocate(ALICE, NAMES[3])
    full.work()
    assert full.error(request) is None


def test_an_object_that_does_not_come_back_is_lost(full: SharingServer) -> None:
    full.allocate(ALICE, NAMES[3])
    full.work()
    full.segments.disk.clear()
    full.tell(ALICE, DeleteObjects([NAMES[3]]))
    request = full.map(BOB, NAMES[0])
    full.work()
    assert not full.mapped(request).found and "is lost: it is gone" in full.logs[-1]
    assert full.core.status().objects == 2


def test_what_is_being_written_is_waited_for_but_not_for_ever() -> None:
    server = SharingServer(memory_limit=2 * PAGE, spills=True)
    writing = [server.allocate(ALICE, name) for name in NAMES[:2]]
    waiting = [server.allocate(ALICE, name) for name in NAMES[2:4]]
    assert server.core.status().waiting == 2
    assert server.seal(ALICE, NAMES[0], server.write(writing[0], b"0" * SHARED)) is None
    server.work()
    assert server.error(waiting[0]) is None and waiting[1] not in server.answers
    server.now = 5.0
    server.work()
    assert server.core.due() == WRITING_SECONDS
    server.now = WRITING_SECONDS
    server.settle()
    error = server.error(waiting[1])
    assert isinstance(error, StorageFullError) and "were not finished within 10 s" in str(error)


def test_an_object_that_memory_has_no_room_for_stays_on_disk(full: SharingServer) -> None:
    full.allocate(ALICE, NAMES[3])
    full.work()
    full.tell(ALICE, DeleteObjects([NAMES[3]]))
    full.segments.memory_error = "No space left on device"
    request, other = full.map(BOB, NAMES[0]), full.get(NAMES[0])
    full.work()
    assert isinstance(full.error(request), StorageFullError)
    part = full.answers[other]
    assert isinstance(part, ObjectPart) and part.found and bytes(part.parts.frame) == b"0" * 10  # from disk
    full.segments.memory_error = ""
    request = full.map(BOB, NAMES[0])
    full.work()
    assert full.bytes_of(request) == {b"0"}


def test_what_is_on_disk_is_read_there_when_memory_and_disk_are_full(full: SharingServer) -> None:
    request = full.allocate(ALICE, NAMES[3])
    full.work()
    assert full.seal(ALICE, NAMES[3], full.write(request, b"3" * SHARED)) is None
    for name in NAMES[1:4]:  # what is mapped can not be moved
        assert full.mapped(full.map(BOB, name)).found
    wanted = full.map(ALICE, NAMES[0])
    assert isinstance(full.error(wanted), StorageFullError)
    part = full.answers[full.get(NAMES[0])]
    assert isinstance(part, ObjectPart) and part.found and bytes(part.parts.frame) == b"0" * 10


def test_a_removed_segment_directory() -> None:
    server = SharingServer(living=True)
    server.put(NAMES[0])
    server.tell(ALICE, PutObject(NAMES[1], 3, Payloads([b"abc"]), 0, 1, server.number()))
    pinned, writing = server.map(BOB, NAMES[0]), server.allocate(BOB, NAMES[2])
    server.segments.removed = True
    server.now += LOOK_SECONDS
    server.settle()
    assert "was removed by another program" in server.logs[-1] and "lost 1 object. " in server.logs[-1]
    assert not server.mapped(server.map(FAR, NAMES[0])).found and server.answers[pinned]
    assert "no segment" in str(server.seal(BOB, NAMES[2], "2")) and server.answers[writing]
    server.now += 100 * LOOK_SECONDS
    server.settle()
    assert server.core.status().objects == 1  # no process died
    server.put(NAMES[0], b"b")
    assert server.bytes_of(server.map(BOB, NAMES[0])) == {b"b"}


def test_room_that_memory_refuses_is_made_on_disk() -> None:
    server = SharingServer(spills=True)
    server.segments.room = 2 * 4 * KIB
    for name in NAMES[:2]:
        server.put(name)
    request = server.allocate(ALICE, NAMES[2])
    server.work()
    assert server.error(request) is None


# --- the state machine ----------------------------------------------------------------------------------------------

peers, names = st.sampled_from([ALICE, BOB]), st.sampled_from(NAMES)
sizes = st.sampled_from([SHARED - 1, SHARED, 2 * SHARED, 3 * SHARED])


class SegmentModel(RuleBasedStateMachine):
    """No peer reads bytes of another object, and every request has exactly one answer."""

    def __init__(self) -> None:
        super().__init__()
        self.server = SharingServer(memory_limit=4 * PAGE, spills=True, spill_limit=6 * SHARED, living=True)
        self.letters = 0
        self.written: dict[int, tuple[bytes, bytes, int, int]] = {}
        """Allocations that are not sealed: peer, object, letter, size."""
        self.contents: dict[bytes, tuple[int, int]] = {}
        """The letter and size of each object that was stored."""
        self.views: dict[int, tuple[bytes, int]] = {}
        """Mappings: the peer, and the letter of the content."""
        self.fetching_from: set[int] = set()
        self.mapping: dict[int, tuple[bytes, bytes, int]] = {}

    def forget(self, peer: bytes) -> None:
        for held in (self.written, self.views, self.mapping):
            for number in [number for number, each in held.items() if each[0] == peer]:
                del held[number]
        self.fetching_from &= self.server.answers.keys()  # who is gone need not be answered

    @rule(peer=peers, name=names)
    def put(self, peer: bytes, name: bytes) -> None:
        self.allocate(peer, name, SHARED)
        self.finish(max(self.written))

    @rule(peer=peers, name=names, size=sizes)
    def allocate(self, peer: bytes, name: bytes, size: int) -> None:
        if size < SHARED:
            self.server.tell(
                peer, PutObject(name, size, Payloads([b"s" * size]), 0, 1, request := self.server.number())
            )
            self.fetching_from.add(request)
            return
        for request in [each for each, (who, what, *_) in self.written.items() if (who, what) == (peer, name)]:
            del self.written[request]
        self.letters = self.letters % 250 + 1
        request = self.server.allocate(peer, name, size)
        self.fetching_from.add(request)
        self.written[request] = peer, name, self.letters, size

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def seal(self, data: st.DataObject) -> None:
        self.finish(data.draw(st.sampled_from(sorted(self.written))))

    def finish(self, request: int) -> None:
        answer = self.server.answers.get(request)
        if answer is None:
            return
        peer, name, letter, size = self.written.pop(request)
        assert isinstance(answer, ObjectAllocated)
        if answer.error or not answer.segment:
            return
        live = [each for each in self.server.segments.live if each.name == answer.segment]
        if live:
            self.server.segments.write(live[0], 0, bytes([letter]) * size)
        known = name in self.server.core._state.objects
        if self.server.seal(peer, name, answer.segment) is None and not known:
            self.contents[name] = letter, size

    @rule(peer=peers, name=names)
    def map(self, peer: bytes, name: bytes) -> None:
        letter, size = self.contents.get(name, (0, SHARED))
        request = self.server.map(peer, name, size)
        self.fetching_from.add(request)
        self.mapping[request] = peer, name, letter

    @rule(name=names)
    def get(self, name: bytes) -> None:
        self.fetching_from.add(self.server.get(name))

    @precondition(lambda self: self.views)
    @rule(data=st.data(), inherited=st.booleans())
    def unpin(self, data: st.DataObject, inherited: bool) -> None:
        request = data.draw(st.sampled_from(sorted(self.views)))
        peer, _ = self.views.pop(request)
        pin = self.server.mapped(request).pin
        self.server.tell(peer, UnpinObjects([] if inherited else [pin], [pin] if inherited else []))

    @rule(peer=peers, chosen=st.lists(names, max_size=2))
    def delete(self, peer: bytes, chosen: list[bytes]) -> None:
        self.server.tell(peer, DeleteObjects(chosen))
        for name in chosen:
            for request in [each for each, (who, what, *_) in self.written.items() if (who, what) == (peer, name)]:
                del self.written[request]

    @rule(peer=peers, dead=st.booleans())
    def lose(self, peer: bytes, dead: bool) -> None:
        if dead and peer in self.server.lock_files:
            self.server.die(peer)
        self.server.tell(peer, PeerLost("gone"))
        self.forget(peer)
        self.server.join(peer)

    @rule(
        error=st.sampled_from(["", "", "No space left"]),
        memory=st.booleans(),
        seconds=st.sampled_from([0.0, RECYCLE_SECONDS]),
    )
    def work(self, error: str, memory: bool, seconds: float) -> None:
        self.server.segments.disk_error = error
        self.server.segments.memory_error = error if memory else ""
        self.server.now += seconds
        self.server.work()

    @invariant()
    def every_view_shows_its_object(self) -> None:
        for request in [request for request in self.mapping if request in self.server.answers]:
            peer, _, letter = self.mapping.pop(request)
            if self.server.mapped(request).found:
                self.views[request] = peer, letter
        for request, (_, letter) in self.views.items():
            assert self.server.bytes_of(request) >= {bytes([letter])}
            segment = self.server.segment(self.server.mapped(request).segment)
            assert self.server.segments.read(segment, 0, SHARED) == bytes([letter]) * SHARED

    def teardown(self) -> None:
        self.server.segments.disk_error = self.server.segments.memory_error = ""
        for _ in range(200):
            self.server.now += WRITING_SECONDS / 2
            if not self.fetching_from - self.server.answers.keys():
                break
            self.server.work()
        assert not self.fetching_from - self.server.answers.keys()
        for answer in self.server.answers.values():
            error = restore(answer.error.encode()) if (text := getattr(answer, "error", "")) and text else None  # type: ignore[union-attr]
            assert error is None or isinstance(error, ObjectRefusedError)
            assert isinstance(answer, ObjectStored | ObjectAllocated | ObjectMapped | ObjectPart)
        for peer in (ALICE, BOB, FAR):
            self.server.tell(peer, PeerLost("the end"))
        self.server.work()
        self.server.now += RECYCLE_SECONDS
        self.server.settle()
        assert not self.server.segments.live and not self.server.segments.disk


TestSegmentModel = SegmentModel.TestCase
TestSegmentModel.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
