"""Sessions are kept apart by object storage: two clients, forged ids, forged sessions."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import wait

import pytest

from scaler import Client
from scaler_io.objects.connection import ObjectConnection
from scaler_protocol.addresses import Address
from scaler_protocol.errors import HandshakeRefusedError, ObjectNotFoundError, ObjectRefusedError
from scaler_protocol.ids import new_session
from scaler_protocol.objects import OBJECT_ID_BYTES, Reference
from support.faults import Services
from support.gates import SECONDS
from support.object_tasks import give, size_of
from support.own_keys import CLIENT, own
from support.storage import WatchedStorage

BIG = 300_000


@pytest.fixture(scope="module")
def storage() -> Iterator[WatchedStorage]:
    with WatchedStorage() as started:
        yield started


@pytest.fixture(scope="module")
def services(storage: WatchedStorage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with Services(tmp_path_factory.mktemp("isolation"), "--object-storage-address", storage.address) as started:
        started.add_agent(2)
        yield started


@pytest.fixture
def alice(services: Services) -> Iterator[Client]:
    with Client(services.address) as client:
        yield client


@pytest.fixture
def bob(services: Services) -> Iterator[Client]:
    with Client(services.address) as client:
        yield client


def packed(client: Client, size: int = BIG) -> tuple[bytes, object]:
    """The reference of a result of a client's, and what keeps it."""
    future = client.submit(give, size)
    wait([future], SECONDS)
    return bytes(future._outcome), future


def test_what_is_given_by_reference_can_be_read_and_not_harmed(
    alice: Client, bob: Client, storage: WatchedStorage
) -> None:
    reference, future = packed(alice)
    theirs = bob._io.storage
    assert len(theirs.fetch(reference)) > BIG
    theirs.free(reference)
    theirs._connection().clear()
    with pytest.raises(ObjectRefusedError, match="belongs to another session"):
        theirs._connection().put(bytes(len(theirs.fetch(reference))), name=reference[:OBJECT_ID_BYTES])
    with pytest.raises(ObjectRefusedError, match="is another client's"):
        theirs._connection().put(bytes(BIG), session=alice._io.storage.session)
    assert storage.objects == 1 and future.result() == bytes(BIG)  # type: ignore[attr-defined]
    assert bob.submit(size_of, bytes(BIG)).result(SECONDS) == BIG


def test_forged_ids_name_nothing(alice: Client, bob: Client) -> None:
    reference, future = packed(alice)
    name, size = reference[:OBJECT_ID_BYTES], Reference.unpack(reference).size
    forged = [secrets.token_bytes(OBJECT_ID_BYTES), bytes(OBJECT_ID_BYTES), name[:-1] + bytes([name[-1] ^ 1])]
    forged += [name[::-1], name[:8] + bytes(8)]
    for each in forged:
        with pytest.raises(ObjectNotFoundError):
            bob._io.storage.fetch(Reference(each, size).pack())
    with pytest.raises(ObjectNotFoundError):
        bob._io.storage.fetch(Reference(name, size + 1).pack())
    del future


def test_results_can_not_be_told_from_each_other(alice: Client) -> None:
    kept = [packed(alice, BIG + number) for number in range(20)]
    names = [reference[:OBJECT_ID_BYTES] for reference, _ in kept]
    assert len(set(names)) == 20
    for size in (4, 8):  # no counter, no session number, no common head or tail
        assert len({name[:size] for name in names}) == 20 == len({name[-size:] for name in names})


def test_another_clients_session_can_not_be_taken(alice: Client, storage: WatchedStorage) -> None:
    reference, future = packed(alice)
    session = alice._io.storage.session
    alice._io.storage._connection().open()  # she opens it in the background: until then nobody owns her session
    for key in (b"", secrets.token_bytes(16)):
        thief = ObjectConnection(
            Address.parse(storage.address), session=session, key=key, timeout_seconds=SECONDS, credentials=own(CLIENT)
        )
        with pytest.raises(HandshakeRefusedError, match=f"session {session} is another client's"):
            thief.open()
        thief.close()
    other = ObjectConnection(
        Address.parse(storage.address), session=new_session(), timeout_seconds=SECONDS, credentials=own(CLIENT)
    )
    other.delete([Reference.unpack(reference)], session=session)
    assert len(other.get(Reference.unpack(reference))) > BIG
    other.close()
    assert future.result() == bytes(BIG)  # type: ignore[attr-defined]


def test_monitors_see_a_hash(alice: Client, storage: WatchedStorage) -> None:
    reference, future = packed(alice)
    status = storage._status()
    [name] = status.biggest_names
    assert list(status.biggest_sizes) == [Reference.unpack(reference).size]
    assert reference[:OBJECT_ID_BYTES].hex() not in repr(status) and name not in reference.hex()
    del future
