"""Uploads in parts that do not go on, while others need the memory."""

from __future__ import annotations

from scaler_protocol.errors import ScalerError, StorageFullError, restore
from scaler_protocol.handshake import Hello, Role, ServiceKind
from scaler_protocol.messages import Message
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import (
    GetObject,
    ObjectPart,
    ObjectStored,
    PutObject,
    RegisterReplica,
    RegisterReplicaServer,
)
from scaler_storage.engine.engine import WRITING_SECONDS
from scaler_storage.engine.uploads import START_SECONDS
from support.storage_engines import EngineDriver

MIB = 1024 * 1024
SLOW, OTHER, HOST = b"s" * 16, b"o" * 16, b"h" * 16
BIG, SMALL = b"b" * 16, b"c" * 16


class FullServer(EngineDriver):
    """An engine with 4 MiB, of which the upload of one peer takes 3."""

    def __init__(self, *, spills: bool) -> None:
        super().__init__(4 * MIB, 8 * MIB, spills=spills)
        for session, peer in enumerate((SLOW, OTHER), 1):
            self.admit(Hello(Role.CLIENT, peer, 1, session=session, service=ServiceKind.STORAGE))
        assert self.put(SLOW, BIG, 0, 3) == [None]

    def put(self, peer: bytes, name: bytes, index: int, parts: int) -> list[ScalerError | None]:
        """Put a part of an object; returns the outcomes of all that was put and has been answered now."""
        part = PutObject(name, parts * MIB, Payloads([bytes(MIB)]), index * MIB)
        return outcomes(self.tell(peer, part))


def outcomes(said: list[tuple[bytes, Message]]) -> list[ScalerError | None]:
    stored = [message for _, message in said if isinstance(message, ObjectStored)]
    return [restore(message.error.encode()) if message.error else None for message in stored]


def test_one_that_does_not_go_on_gives_way() -> None:
    server = FullServer(spills=False)
    [full] = server.put(OTHER, SMALL, 0, 2)
    assert isinstance(full, StorageFullError)
    server.now = START_SECONDS + 1.5  # its one part is enough for one second
    assert server.put(OTHER, SMALL, 0, 2) == [None] and server.put(OTHER, SMALL, 1, 2) == [None]
    assert "gave up 1 upload slower than 1,048,576 bytes a second" in server.logs[-1]
    [refused] = server.put(SLOW, BIG, 1, 3)
    assert "its first part must come before" in str(refused)


def test_one_that_goes_on_does_not_give_way() -> None:
    server = FullServer(spills=False)
    server.now = START_SECONDS + 0.5
    [full] = server.put(OTHER, SMALL, 0, 2)
    assert isinstance(full, StorageFullError)
    assert server.put(SLOW, BIG, 1, 3) + server.put(SLOW, BIG, 2, 3) == [None, None]


def test_where_there_is_a_disk_others_wait_for_it() -> None:
    server = FullServer(spills=True)
    assert server.put(OTHER, SMALL, 0, 2) == server.put(OTHER, SMALL, 1, 2) == []
    server.now = 5.0
    assert server.put(SLOW, BIG, 1, 3) + server.put(SLOW, BIG, 2, 3) == [None, None]
    server.segments.work()
    assert outcomes(server.settle()) == [None, None]


def test_where_there_is_a_disk_it_gives_way_when_others_have_waited() -> None:
    server = FullServer(spills=True)
    server.now = 5.0
    assert server.put(OTHER, SMALL, 0, 2) == server.put(OTHER, SMALL, 1, 2) == []
    assert outcomes(server.later(WRITING_SECONDS)) == [None, None]


def test_readers_of_what_a_host_sends_too_slowly_are_told_so() -> None:
    server = FullServer(spills=False)
    server.admit(Hello(Role.AGENT, HOST, 1, service=ServiceKind.STORAGE))
    assert outcomes(server.later(START_SECONDS + 1.5)) == []
    server.tell(HOST, RegisterReplicaServer(b"H" * 32))
    server.tell(HOST, RegisterReplica(SMALL, 3 * MIB, 2, 7, b"H" * 32))
    server.tell(OTHER, GetObject(SMALL, 0, MIB, 1))
    brought = PutObject(SMALL, 3 * MIB, Payloads([bytes(MIB)]), session=2, version=7)
    assert outcomes(server.tell(HOST, brought)) == [None]  # the first upload has given way
    server.now += START_SECONDS + 1.5
    server.core.handle(SLOW, PutObject(BIG, 3 * MIB, Payloads([bytes(MIB)])), server.now)
    [failed] = [message for to, message in server.settle() if to == OTHER]
    assert isinstance(failed, ObjectPart) and "sends it too slowly" in str(restore(failed.error.encode()))
