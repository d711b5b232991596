"""Copies of results of other hosts: when they are made, what they take, and that objects outlive their hosts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from scaler_io.links.events import PeerLost
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Hello, Role, ServiceKind
from scaler_protocol.messages import Message
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import (
    CopyReplicas,
    DeleteObjects,
    DropReplicas,
    FetchReplica,
    GetObject,
    ObjectPart,
    ObjectStored,
    PutObject,
    RegisterReplica,
    RegisterReplicaServer,
)
from scaler_storage.engine.copies import RETRY_SECONDS
from scaler_storage.engine.copy_orders import LOOK_SECONDS
from scaler_storage.engine.pool import OVERHEAD_BYTES
from scaler_storage.engine.remote_objects import FETCH_START_SECONDS
from support.storage_engines import PART, EngineDriver, make_parts_small

SIZE = 7
ROOM = SIZE + OVERHEAD_BYTES
CLIENT, WORKER, SCHEDULER = b"c" * 16, b"w" * 16, b"s" * 16
HOSTS = (b"H" * 32, b"K" * 32)
AGENTS = {b"1" * 16: HOSTS[0], b"2" * 16: HOSTS[0], b"3" * 16: HOSTS[1]}
NAMES = [bytes([letter]) * 16 for letter in b"tuvxyz"]
A = b"1" * 16


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    make_parts_small(monkeypatch)


def content_of(version: int) -> bytes:
    return b"%07d" % version


class CopyingServer(EngineDriver):
    """An engine with a client, a worker of another host, and the scheduler."""

    def __init__(self, rooms: int = 100, *, spills: bool = False, spill_limit: int | None = None) -> None:
        super().__init__(rooms * ROOM, SIZE + 1, spills=spills, spill_limit=spill_limit)
        for peer, role in ((CLIENT, Role.CLIENT), (WORKER, Role.AGENT), (SCHEDULER, Role.OPERATOR)):
            self.admit(Hello(role, peer, 1, session=peer == CLIENT, service=ServiceKind.STORAGE))

    def join(self, agent: bytes) -> None:
        self.admit(Hello(Role.AGENT, agent, 1, service=ServiceKind.STORAGE))
        assert not self.tell(agent, RegisterReplicaServer(AGENTS[agent]))

    def hold(self, name: bytes, version: int, host: bytes = HOSTS[0]) -> int:
        said = self.tell(WORKER, RegisterReplica(name, SIZE, 1, version, host, 5))
        [answer] = [message for _, message in said if isinstance(message, ObjectStored)]
        return answer.version

    def want(self, *names: bytes) -> list[tuple[bytes, Message]]:
        return self.tell(SCHEDULER, CopyReplicas(names))

    def later(self, seconds: float) -> list[tuple[bytes, Message]]:
        self.segments.work()
        return super().later(seconds)

    def write(self, name: bytes, number: int) -> list[tuple[bytes, Message]]:
        """A worker puts an object whose content has this number."""
        return self.put(WORKER, name, 0, content=content_of(number))

    def put(
        self, peer: bytes, name: bytes, version: int, *, keep: bool = False, content: bytes = b""
    ) -> list[tuple[bytes, Message]]:
        said, content = [], content or content_of(version)
        for offset in range(0, SIZE, PART):
            part = Payloads([content[offset : offset + PART]])
            said += self.tell(peer, PutObject(name, SIZE, part, offset, 1, 6, version, keep))
        return said

    def read(self, name: bytes) -> bytes | None:
        """The bytes of an object that is here, or None if it is not found."""
        found = b""
        for offset in range(0, SIZE, PART):
            said = self.tell(CLIENT, GetObject(name, offset, PART)) or self.later(0) or self.later(0)
            [part] = [message for _, message in said if isinstance(message, ObjectPart)]
            assert not part.error
            if not part.found:
                return None
            found += bytes(part.parts.frame)
        return found

    def copies(self) -> tuple[int, int]:
        status = self.core.status()
        assert status.copies * SIZE == status.copy_bytes
        return status.copies, status.bytes // ROOM


def order(version: int, name: bytes = NAMES[0]) -> FetchReplica:
    return FetchReplica(name, SIZE, 1, version, keep=True)


def copied(server: CopyingServer, *names: bytes) -> None:
    """Objects of the first host with copies; their versions count from 1."""
    for version, name in enumerate(names, 1):
        server.hold(name, version)
        assert server.want(name) == [(A, order(version, name))]
        server.put(A, name, version, keep=True)


def test_a_requested_result_outlives_its_host() -> None:
    server = CopyingServer()
    server.join(A)
    copied(server, NAMES[0])
    status = server.core.status()
    assert (status.copies, status.copy_bytes, status.replicas, status.objects) == (1, SIZE, 1, 1)
    assert server.core.due() is None
    server.tell(A, PeerLost("killed"))
    assert server.read(NAMES[0]) == content_of(1)
    assert server.copies() == (0, 1) and server.core.status().replicas == 0
    server.join(A)
    assert server.hold(NAMES[0], 1) == 0, "a host that comes back need not keep it"


def test_nobody_copies_what_nobody_requests() -> None:
    server = CopyingServer()
    server.join(A)
    server.hold(NAMES[0], 1)
    assert server.want(NAMES[1]) == [] and server.core.due() is None
    with pytest.raises(ProtocolError):
        server.tell(CLIENT, CopyReplicas(NAMES))


def test_copies_are_made_one_after_another_while_nothing_else_is_under_way() -> None:
    server = CopyingServer()
    server.join(A)
    server.join(b"3" * 16)
    for version, name in enumerate(NAMES[:3], 1):
        server.hold(name, version, HOSTS[version == 3])
    server.tell(WORKER, PutObject(NAMES[5], SIZE, Payloads([b"0000"]), 0, 1))
    assert server.want(*NAMES[:3]) == [] and server.core.due() == LOOK_SECONDS
    assert server.later(LOOK_SECONDS) == []
    server.tell(WORKER, PutObject(NAMES[5], SIZE, Payloads([b"000"]), PART, 1))
    assert server.later(LOOK_SECONDS) == [(A, order(1, NAMES[0]))]
    assert server.tell(CLIENT, GetObject(NAMES[1], 0, PART)) == [(A, FetchReplica(NAMES[1], SIZE, 1, 2))]
    assert server.put(A, NAMES[0], 1, keep=True)[2:] == []
    assert server.later(LOOK_SECONDS) == [], "a reader waits"
    server.put(A, NAMES[1], 2)
    assert server.later(FETCH_START_SECONDS) == [(b"3" * 16, order(3, NAMES[2]))]
    assert server.copies() == (1, 3), "what was put for a reader needs no copy"


def test_a_reader_is_served_by_the_host_and_by_the_copy_where_the_host_goes_away_meanwhile() -> None:
    server = CopyingServer()
    server.join(A)
    copied(server, NAMES[0])
    assert server.tell(CLIENT, GetObject(NAMES[0], 0, PART)) == [(A, FetchReplica(NAMES[0], SIZE, 1, 1))]
    [(peer, part)] = server.tell(A, PeerLost("killed"))
    assert peer == CLIENT and isinstance(part, ObjectPart) and bytes(part.parts.frame) == content_of(1)[:PART]
    assert server.copies() == (0, 1)


def test_a_reader_does_not_wait_for_a_silent_host_of_which_there_is_a_copy() -> None:
    server = CopyingServer()
    server.join(A)
    copied(server, NAMES[0])
    assert server.tell(CLIENT, GetObject(NAMES[0], 0, PART)) == [(A, FetchReplica(NAMES[0], SIZE, 1, 1))]
    said = dict(server.later(FETCH_START_SECONDS))
    part = said[CLIENT]
    assert isinstance(part, ObjectPart) and bytes(part.parts.frame) == content_of(1)[:PART]
    assert said[A] == DropReplicas((NAMES[0],), (SIZE,), (1,), (1,)), "as after any other read"
    assert server.copies() == (0, 1) and server.read(NAMES[0]) == content_of(1)
    server.put(A, NAMES[0], 1)  # it wakes up, and answers
    assert server.read(NAMES[0]) == content_of(1) and server.copies() == (0, 1)


def test_a_host_that_lost_the_file_or_gives_it_up_leaves_the_copy() -> None:
    server = CopyingServer()
    server.join(A)
    copied(server, *NAMES[:2])
    server.tell(A, DropReplicas([NAMES[0]], [SIZE], [1], [1]))
    assert [each.error for _, each in server.put(A, NAMES[1], 2) if isinstance(each, ObjectStored)] == ["", ""]
    assert [server.read(name) for name in NAMES[:2]] == [content_of(1), content_of(2)]
    assert server.copies() == (0, 2)


def test_a_copy_ends_with_its_object_and_with_its_session() -> None:
    server = CopyingServer()
    server.join(A)
    copied(server, *NAMES[:2])
    server.hold(NAMES[2], 3)
    assert server.want(NAMES[2]) == [(A, order(3, NAMES[2]))]
    server.tell(CLIENT, DeleteObjects([NAMES[0], NAMES[2]]))
    assert server.copies() == (1, 1)
    server.tell(CLIENT, PeerLost("it ends"))
    assert server.copies() == (0, 0)


def test_memory_of_copies_is_taken_first_and_they_are_made_again_later() -> None:
    server = CopyingServer(rooms=4)
    server.join(A)
    copied(server, *NAMES[:2])
    server.hold(NAMES[2], 3)
    assert server.want(NAMES[2]) == [], "the copies of a key take at most half of the memory"
    for name in NAMES[3:6]:
        server.write(name, 0)
    assert server.copies() == (1, 4), "the oldest copy went, and nobody was refused"
    server.tell(CLIENT, DeleteObjects([*NAMES[3:6], NAMES[1]]))
    said = server.later(RETRY_SECONDS)
    assert [message for _, message in said if isinstance(message, FetchReplica)] == [order(3, NAMES[2])]
    server.put(A, NAMES[2], 3, keep=True)
    assert server.copies() == (1, 1)


def test_what_can_never_fit_takes_nothing_and_what_was_written_anew_is_no_copy() -> None:
    server = CopyingServer(rooms=4)
    server.join(A)
    copied(server, NAMES[0])
    [(_, answer)] = server.tell(WORKER, PutObject(NAMES[1], 5 * ROOM, Payloads([b"0000"]), 0, 1))
    assert isinstance(answer, ObjectStored) and answer.error and server.copies() == (1, 1)
    server.hold(NAMES[1], 2)
    server.put(A, NAMES[1], 0, keep=True)
    assert server.copies() == (1, 2) and server.read(NAMES[1]) == content_of(0)


def test_copies_are_on_disk_and_give_way_there_too() -> None:
    server = CopyingServer(rooms=2, spills=True, spill_limit=2 * SIZE)
    server.join(A)
    copied(server, *NAMES[:1])
    server.later(0)
    status = server.core.status()
    assert (status.copies, status.bytes, status.spilled_bytes) == (1, 0, SIZE)
    for name in NAMES[1:5]:
        server.write(name, 0)
        server.later(0)
    status = server.core.status()
    assert (status.copies, status.objects, status.refused) == (0, 5, 0)
    assert [server.read(name) for name in NAMES[1:5]] == [content_of(0)] * 4


def test_an_order_that_is_not_carried_out_is_given_again() -> None:
    server = CopyingServer()
    server.join(A)
    server.hold(NAMES[0], 1)
    server.hold(NAMES[1], 2)
    assert server.want(*NAMES[:2]) == [(A, order(1))]
    assert server.later(FETCH_START_SECONDS) == [(A, order(2, NAMES[1]))]
    server.put(A, NAMES[1], 2, keep=True)
    assert server.later(RETRY_SECONDS) == [(A, order(1))]


# --- the state machine ----------------------------------------------------------------------------------------------


class CopyingModel(RuleBasedStateMachine):
    """Hosts make objects, bring some of them, and are lost; no read gives other bytes than were written."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        make_parts_small(self.patch)
        self.agents: set[bytes] = set()
        self.versions: dict[bytes, int] = {}
        """The number that the content of each object has: its version on a host, unless it was put here."""
        self.orders: list[tuple[bytes, FetchReplica]] = []
        self.last = 0

    @initialize(rooms=st.integers(3, 8), spills=st.booleans(), spill_limit=st.sampled_from([None, SIZE, 3 * SIZE]))
    def start(self, rooms: int, spills: bool, spill_limit: int | None) -> None:
        self.server = CopyingServer(rooms, spills=spills, spill_limit=spill_limit if spills else None)
        for agent in (b"1" * 16, b"3" * 16):
            self.join(agent)

    def teardown(self) -> None:
        self.patch.undo()

    def see(self, said: Sequence[tuple[bytes, Message]]) -> list[ObjectStored]:
        answers = []
        for peer, message in said:
            if isinstance(message, FetchReplica):
                assert peer in self.agents
                self.orders.append((peer, message))
            elif isinstance(message, ObjectPart) and message.found:
                assert bytes(message.parts.frame) == content_of(self.versions[message.object])[:PART]
            elif isinstance(message, ObjectStored):
                answers.append(message)
        return answers

    @rule(agent=st.sampled_from(sorted(AGENTS)))
    def come(self, agent: bytes) -> None:
        if agent not in self.agents:
            self.join(agent)

    def join(self, agent: bytes) -> None:
        self.server.join(agent)
        self.agents.add(agent)

    @precondition(lambda self: self.agents)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from(sorted(self.agents)))
        self.agents.discard(agent)
        self.orders = [each for each in self.orders if each[0] != agent]
        safe = self.server.core._state.copies.names()
        self.see(self.server.tell(agent, PeerLost("killed")))
        self.see(self.server.later(0))
        for name in safe:
            said = self.server.tell(CLIENT, GetObject(name, 0, 0))
            [part] = [each for _, each in said if isinstance(each, ObjectPart) and each.object == name]
            assert part.found, "it has outlived its host"

    @precondition(lambda self: self.agents)
    @rule(name=st.sampled_from(NAMES), data=st.data(), wanted=st.sampled_from([True, True, False]))
    def hold(self, name: bytes, data: st.DataObject, wanted: bool) -> None:
        host = AGENTS[data.draw(st.sampled_from(sorted(self.agents)))]
        self.last += 1
        said = self.server.tell(WORKER, RegisterReplica(name, SIZE, 1, self.last, host, 5))
        [answer] = [each for each in self.see(said) if each.request == 5]
        if answer.version:
            self.versions[name] = self.last
        if wanted:
            self.see(self.server.want(name))

    @precondition(lambda self: self.orders)
    @rule(data=st.data(), ends=st.booleans())
    def bring(self, data: st.DataObject, ends: bool) -> None:
        order = data.draw(st.sampled_from(self.orders))
        agent, wanted = order
        if ends:
            self.orders.remove(order)
        content = content_of(wanted.version)
        for offset in range(0, SIZE if ends else PART, PART):
            part = Payloads([content[offset : offset + PART]])
            message = PutObject(wanted.object, SIZE, part, offset, 1, 6, wanted.version, wanted.keep)
            self.see(self.server.tell(agent, message))

    @rule(most=st.integers(1, len(NAMES)))
    def bring_all(self, most: int) -> None:
        """All that was ordered comes, and what is ordered then."""
        for _ in range(most):
            orders, self.orders = self.orders, []
            for agent, wanted in orders:
                self.see(self.server.put(agent, wanted.object, wanted.version, keep=wanted.keep))
            self.see(self.server.later(LOOK_SECONDS))

    @rule(name=st.sampled_from(NAMES))
    def get(self, name: bytes) -> None:
        self.see(self.server.tell(CLIENT, GetObject(name, 0, PART)))

    @rule(name=st.sampled_from(NAMES))
    def put(self, name: bytes) -> None:
        before = self.versions.get(name, 0)
        self.last += 1
        self.versions[name] = self.last  # readers that wait are answered at once
        answers = self.see(self.server.write(name, self.last))
        if not any(each.version for each in answers):  # refused, or it was there before
            self.versions[name] = before

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: bytes) -> None:
        self.see(self.server.tell(CLIENT, DeleteObjects([name])))

    @precondition(lambda self: self.agents)
    @rule(name=st.sampled_from(NAMES), data=st.data())
    def miss(self, name: bytes, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from(sorted(self.agents)))
        self.see(self.server.tell(agent, DropReplicas([name], [SIZE], [1], [self.versions.get(name, 0)])))

    @rule(seconds=st.sampled_from([LOOK_SECONDS, FETCH_START_SECONDS, RETRY_SECONDS]))
    def wait(self, seconds: float) -> None:
        self.see(self.server.later(seconds))


@pytest.mark.parametrize("examples", [75, pytest.param(3_000, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
def test_objects_with_copies_outlive_their_hosts(examples: int) -> None:
    run_state_machine_as_test(
        CopyingModel, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None)
    )
