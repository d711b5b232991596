"""Requests that wait for room."""

from __future__ import annotations

import pytest

from scaler_protocol.errors import StorageFullError, restore
from scaler_protocol.handshake import Hello, Role, ServiceKind
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import AllocateObject, ObjectStored, PutObject
from scaler_storage.engine.pool import OVERHEAD_BYTES
from scaler_storage.engine.records import LoadObject, RoomEvent
from scaler_storage.engine.room_queue import LEAST_BYTES, REQUEST_BYTES, WAITING_BYTES, RoomQueue
from support.storage_engines import EngineDriver

NAME = b"n" * 16
MIB = 1024 * 1024
ONE, OTHER = b"1" * 16, b"2" * 16


def part(name: bytes = NAME, size: int = MIB) -> PutObject:
    return PutObject(name, 100 * MIB, Payloads([bytes(size)]))


def test_requests_come_in_order_and_a_retried_one_keeps_its_place() -> None:
    queue = RoomQueue(0, lambda peer: b"")
    first: RoomEvent = part()
    second: RoomEvent = AllocateObject(NAME, 5)
    queue.add(ONE, first)
    queue.add(OTHER, second)
    assert queue.next() == (ONE, first) and queue.first == second
    queue.put_back(ONE, first)
    assert queue.first == first and list(queue) == [(ONE, first), (OTHER, second)]
    assert queue.remove(lambda peer, event: peer == ONE) == [(ONE, first)] and len(queue) == 1
    queue.check()


def test_the_requests_of_a_peer_take_limited_memory() -> None:
    queue = RoomQueue(0, lambda peer: b"")
    with pytest.raises(StorageFullError, match="of this peer wait for room already"):
        for _ in range(17):
            queue.add(ONE, part())
    assert len(queue) == 15
    with pytest.raises(StorageFullError):
        for _ in range(WAITING_BYTES):
            queue.add(OTHER, LoadObject(NAME))
    assert len(queue) == 15 + WAITING_BYTES // REQUEST_BYTES
    queue.check()
    queue.next()
    queue.add(ONE, part())


def test_the_requests_of_all_take_limited_memory_and_each_key_has_a_share_of_it() -> None:
    keys = {bytes([number, 0] * 8): b"many" for number in range(100)}
    queue = RoomQueue(0, lambda peer: keys.get(peer, b""))
    with pytest.raises(StorageFullError, match="of this client's key"):
        for peer in keys:
            for _ in range(15):
                queue.add(peer, part())
    held = len(queue)
    assert held == LEAST_BYTES // (MIB + REQUEST_BYTES)
    for _ in range(15):
        queue.add(ONE, part())
    queue.check()
    assert len(queue) == held + 15
    assert len(queue.remove(lambda peer, event: peer != ONE)) == held
    queue.check()


def test_who_writes_more_than_may_wait_is_refused() -> None:
    server = EngineDriver(4 * MIB, MIB, spills=True)
    server.admit(Hello(Role.CLIENT, ONE, 1, session=1, service=ServiceKind.STORAGE))
    for number in range(3):
        assert server.tell(ONE, PutObject(bytes([number]) * 16, MIB - 1, Payloads([bytes(MIB - 1)])))
    size = 2 * MIB - 3 * OVERHEAD_BYTES
    answers = []
    for _ in range(20):
        answers += server.tell(ONE, PutObject(NAME, size, Payloads([bytes(MIB)])))
    errors = [restore(each.error.encode()) for _, each in answers if isinstance(each, ObjectStored) and each.error]
    assert len(errors) == 5 and all(isinstance(error, StorageFullError) for error in errors)
    assert server.core.status().waiting == 15
