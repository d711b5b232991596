"""How many objects the sessions of a key may have, wherever their bytes are."""

from __future__ import annotations

from collections import Counter

import pytest

from scaler_protocol.errors import StorageFullError, restore
from scaler_protocol.handshake import Hello, Role, ServiceKind
from scaler_protocol.messages import Message
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import DeleteObjects, ObjectStored, PutObject, RegisterReplica, RegisterReplicaServer
from scaler_storage.engine import object_budgets
from scaler_storage.engine.object_budgets import LEAST_OBJECTS, RECORD_BYTES, ObjectBudgets
from support.storage_engines import EngineDriver

KEY, OTHER = b"k" * 32, b"o" * 32
ADA, BEN, WORKER = b"a" * 16, b"b" * 16, b"w" * 16
HOST = b"h" * 16


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> EngineDriver:
    """With room for 4 objects; Ada's session 1 and Ben's session 2 are of different keys."""
    monkeypatch.setattr(object_budgets, "LEAST_OBJECTS", 4)
    made = EngineDriver(6000, 100_000, spills=True)
    for session, peer, key in ((1, ADA, KEY), (2, BEN, OTHER), (0, WORKER, b"w" * 32)):
        made.keys[peer] = key
        role = Role.CLIENT if session else Role.AGENT
        made.admit(Hello(role, peer, 1, session=session, service=ServiceKind.STORAGE))
    made.tell(WORKER, RegisterReplicaServer(HOST))
    return made


def stored(answers: list[tuple[bytes, Message]]) -> bool:
    """Whether an object was taken; otherwise because there are too many."""
    [answer] = [message for _, message in answers if isinstance(message, ObjectStored)]
    if answer.error:
        assert isinstance(error := restore(answer.error.encode()), StorageFullError) and "objects, here" in str(error)
    return not answer.error


def register(server: EngineDriver, number: int, session: int) -> bool:
    return stored(server.tell(WORKER, RegisterReplica(name(number), 300_000, session, 7, HOST)))


def test_replicas_are_not_registered_without_end_and_other_keys_go_on(server: EngineDriver) -> None:
    assert [register(server, number, 1) for number in range(6)] == [True] * 4 + [False] * 2
    assert register(server, 0, 1), "a known one may be registered again"
    assert [register(server, 10 + number, 2) for number in range(3)] == [True] * 2 + [False]
    server.tell(ADA, DeleteObjects([name(number) for number in range(4)]))
    assert [register(server, number, 2) for number in range(20, 23)] == [True] * 2 + [False]


def test_objects_on_disk_count(server: EngineDriver) -> None:
    content = Payloads([bytes(3000)])  # two of them do not fit into the memory
    taken = []
    for number in range(6):
        answers = server.tell(ADA, PutObject(name(number), 3000, content, 0))
        while not answers:
            server.segments.work()
            answers = server.settle()
        taken.append(stored(answers))
    assert taken == [True] * 4 + [False] * 2
    assert server.core.status().spilled >= 3


def test_a_session_counts_for_the_key_of_its_owner_from_when_it_is_known(server: EngineDriver) -> None:
    assert [register(server, number, 3) for number in range(4)] == [True] * 4
    late = b"l" * 16
    server.keys[late] = KEY
    server.admit(Hello(Role.CLIENT, late, 1, session=3, service=ServiceKind.STORAGE))
    assert not register(server, 5, 1), "the other session of its key"
    assert register(server, 6, 2)


def test_without_keys_each_client_counts_for_itself(server: EngineDriver) -> None:
    third = b"t" * 16
    server.admit(Hello(Role.CLIENT, third, 1, session=4, service=ServiceKind.STORAGE))
    assert [register(server, number, 77) for number in range(5)] == [True] * 4 + [False], "nobody owns this session"
    assert [register(server, 10 + number, 4) for number in range(3)] == [True] * 2 + [False]


def test_objects_that_are_still_being_freed_keep_nobody_out(server: EngineDriver) -> None:
    for number in range(4):
        register(server, number, 1)
    server.core._state.deleted.update({name(number): None for number in range(4)})
    assert [register(server, number, 1) for number in range(10, 15)] == [True] * 4 + [False]


def test_the_records_take_a_quarter_of_the_memory_limit() -> None:
    budgets = ObjectBudgets(100_000 * RECORD_BYTES)
    budgets.add(KEY, 25_000)
    assert budgets.is_full(KEY) and not budgets.is_full(OTHER)
    budgets.check(Counter({KEY: 25_000}))
    few = ObjectBudgets(0)
    few.add(KEY, LEAST_OBJECTS - 1)
    assert not few.is_full(KEY)
