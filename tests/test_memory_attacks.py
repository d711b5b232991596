"""Peers that would fill the memory of a server while a client works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scaler import Client
from scaler_protocol.handshake import ServiceKind
from scaler_protocol.ids import new_identity
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import ObjectStored, PutObject
from support.faults import Services
from support.gates import SECONDS
from support.intruders import hello
from support.memory_attacks import MEGABYTE, Attacker, Growth
from support.processes import descendants, taken_port
from support.tasks import add
from support.waiting import wait_until

MOST = 150 * MEGABYTE
"""How much memory an attack may take at a time; each would take several times as much."""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A scheduler with its storage and one agent."""
    with Services(tmp_path_factory.mktemp("services")) as started:
        started.add_agent(2)
        wait_until(lambda: taken_port([started.port + 1]) is not None, "the storage server")
        yield started


@pytest.fixture
def client(services: Services) -> Iterator[Client]:
    """A client that is not hurt by an attack."""
    with Client(services.address) as client:
        yield client
        assert client.submit(add, 1, 1).result(SECONDS) == 2
        assert len(client.submit(bytes, MEGABYTE).result(SECONDS)) == MEGABYTE


def process_of(services: Services, offset: int) -> int:
    """The process that listens there: the scheduler, its storage, or the scheduler's publisher."""
    return descendants(services.scheduler.pid)[0] if offset == 1 else services.scheduler.pid


@pytest.mark.usefixtures("client")
def test_small_objects_do_not_keep_the_long_messages_in_which_they_came(services: Services) -> None:
    growth = Growth(process_of(services, 1))
    with Attacker(services.port + 1, hello(service=ServiceKind.STORAGE)) as attacker:
        for _ in range(100):
            attacker.send(PutObject(new_identity(), 100, Payloads([bytes(100)])), padding=8_000_000)
            while not isinstance(attacker.read(), ObjectStored):
                pass
            growth.look()
    assert growth.look() < MOST
