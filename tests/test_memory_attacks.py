"""Peers that would fill a server's memory, from strangers to clients that ignore their credit, while a client works."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client
from scaler_io.transport.connections import PEER_BYTES
from scaler_protocol.errors import restore
from scaler_protocol.handshake import Role, ServiceKind
from scaler_protocol.ids import first_task, new_identity
from scaler_protocol.messages import Done, Group, Submit
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import GetObject, ObjectStored, PutObject
from support.faults import Service, Services
from support.gates import SECONDS
from support.intruders import hello
from support.memory_attacks import MEGABYTE, Attacker, Growth
from support.processes import descendants, free_ports, taken_port
from support.tasks import add
from support.waiting import wait_until

MOST = 150 * MEGABYTE
"""How much memory an attack may take until it is noticed; each would take several times as much."""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A scheduler with its storage and one agent."""
    with Services(tmp_path_factory.mktemp("services"), "--insecure") as started:
        started.add_agent(2, "--insecure")
        wait_until(lambda: taken_port([started.port + 1]) is not None, "the storage server")
        yield started


@pytest.fixture
def client(services: Services) -> Iterator[Client]:
    """A client that is not hurt by an attack."""
    with Client(services.address, insecure=True) as client:
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
        for _ in range(40):
            attacker.send(PutObject(new_identity(), 100, Payloads([bytes(100)])), padding=8_000_000)
            while not isinstance(attacker.read(), ObjectStored):
                pass
            growth.look()
    assert growth.look() < 40 * 8_000_000 / 2


LISTENERS = pytest.mark.parametrize(
    ("offset", "kind"), [(0, b"DEALER"), (1, b"DEALER"), (2, b"SUB")], ids=["scheduler", "storage", "monitors"]
)
FRAME = bytes(MEGABYTE)


@LISTENERS
@pytest.mark.usefixtures("client")
def test_a_stranger_who_announces_a_frame_of_2_gb_is_cut_off(services: Services, offset: int, kind: bytes) -> None:
    growth = Growth(process_of(services, offset))
    with Attacker(services.port + offset, kind=kind) as attacker:
        attacker.send_bytes(b"\x02" + (2**31).to_bytes(8, "big"))
        assert attacker.is_cut_off(FRAME, 2000, growth)
    assert growth.most < MOST


@LISTENERS
@pytest.mark.usefixtures("client")
def test_a_stranger_whose_message_never_ends_is_cut_off(services: Services, offset: int, kind: bytes) -> None:
    growth = Growth(process_of(services, offset))
    frame = FRAME if kind == b"DEALER" else bytes(100)
    with Attacker(services.port + offset, kind=kind) as attacker:
        flood = b"".join([b"\x03" + len(frame).to_bytes(8, "big") + frame] * (MEGABYTE // len(frame)))
        assert attacker.is_cut_off(flood, 1000, growth)
    assert growth.most < MOST


@pytest.mark.parametrize("offset", [0, 1], ids=["scheduler", "storage"])
@pytest.mark.usefixtures("client")
def test_a_client_whose_message_never_ends_is_cut_off(services: Services, offset: int) -> None:
    growth = Growth(process_of(services, offset))
    service = (ServiceKind.SCHEDULER, ServiceKind.STORAGE)[offset]
    with Attacker(services.port + offset, hello(Role.CLIENT, service)) as attacker:
        flood = b"".join([b"\x03" + len(FRAME).to_bytes(8, "big") + FRAME])
        assert attacker.is_cut_off(flood, 1000, growth)
    assert growth.most < PEER_BYTES + MOST


@pytest.mark.parametrize("offset", [0, 1], ids=["scheduler", "storage"])
def test_strangers_with_halves_of_long_messages_are_cut_off(services: Services, client: Client, offset: int) -> None:
    """A client works meanwhile, and so does the service, however busy the machine is."""
    growth = Growth(process_of(services, offset))
    with contextlib.ExitStack() as stack:
        attackers = [stack.enter_context(Attacker(services.port + offset)) for _ in range(50)]
        for attacker in attackers:
            with contextlib.suppress(OSError):  # a stranger that has said nothing for some seconds is cut off before
                attacker.send_bytes(b"\x02" + (15 * MEGABYTE).to_bytes(8, "big"))
            attacker.is_cut_off(FRAME, 14, growth)
            assert len(client.submit(bytes, MEGABYTE).result(SECONDS)) == MEGABYTE
        assert all(attacker.is_closed() for attacker in attackers)
    assert growth.most < MOST


@pytest.mark.usefixtures("client")
def test_who_reads_no_answers_of_storage_holds_little_of_it(services: Services) -> None:
    growth, name, size = Growth(process_of(services, 1)), new_identity(), 8 * MEGABYTE
    with Attacker(services.port + 1, hello(service=ServiceKind.STORAGE)) as attacker:
        for part in range(8):
            attacker.send(PutObject(name, size, Payloads([FRAME]), offset=part * MEGABYTE))
            while not isinstance(attacker.read(), ObjectStored):
                pass
        before = growth.look()
        with contextlib.suppress(OSError):
            for number in range(1000):
                attacker.send(GetObject(name, number % 8 * MEGABYTE, MEGABYTE, number))
                growth.look()
        growth.watch(3)
    assert growth.most - before < 2 * MOST


@pytest.mark.usefixtures("client")
def test_a_client_that_ignores_its_credit_is_refused_then_cut_off(services: Services) -> None:
    growth, greeting = Growth(services.scheduler.pid), hello()
    nobody = Group(b"f" * 16, capability_names=("nobody has it",), capability_values=(1,))
    calls, first = Payloads([bytes(4096)] * 256), first_task(greeting.session) + 1
    with Attacker(services.port, greeting) as attacker:
        for number in range(68):  # twice its credit is taken, and 8 MiB more are refused before it is cut off
            attacker.send(Submit([nobody], range(first + number * 256, first + number * 256 + 256), calls))
            growth.look()
        while not isinstance(done := attacker.read(), Done):
            pass
        assert "and its credit is 33,554,432" in str(restore(done.results[0]))
        with pytest.raises(OSError, match=r"reset|closed|[Bb]roken"):
            for number in range(68, 1000):
                attacker.send(Submit([nobody], range(first + number * 256, first + number * 256 + 256), calls))
                growth.look()
        growth.watch(1)
    assert growth.most < 2 * MOST


def test_strangers_do_not_fill_the_memory_of_a_relay_that_waits_for_its_scheduler(tmp_path: Path) -> None:
    port = free_ports(2)
    words = (f"tcp://127.0.0.1:{port}", "--scheduler", f"tcp://127.0.0.1:{port + 1}", "--insecure")
    relay = Service(tmp_path / "relay.log", "scaler_scheduler.relay", *words)
    try:
        wait_until(lambda: "no connection to the scheduler" in relay.said(), "a relay")
        growth = Growth(relay.pid)
        with Attacker(port) as attacker:
            frame = b"\x02" + len(FRAME).to_bytes(8, "big") + FRAME
            assert attacker.is_cut_off(frame, 1000, growth)
        assert growth.most < MOST
    finally:
        relay.process.send_signal(signal.SIGINT)
        assert relay.process.wait(SECONDS) == 0
