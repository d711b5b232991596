"""Mutated recorded messages at every port: a service refuses them or takes them, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from scaler import Client
from scaler_protocol.handshake import ServiceKind
from support.faults import Services
from support.fuzzing import Mutations, Port, scheduler_traffic, storage_traffic
from support.gates import SECONDS
from support.memory_attacks import Attacker
from support.tasks import add

MESSAGES = 20_000
"""For each service."""
SOAK_MESSAGES = 5_000_000
LIFE_MESSAGES = 100_000
"""After which a service begins anew."""
SOCKET_MESSAGES = 1000
"""For each port of real services."""


@pytest.fixture(scope="module", params=[ServiceKind.SCHEDULER, ServiceKind.STORAGE], ids=["scheduler", "storage"])
def service(request: pytest.FixtureRequest) -> int:
    kind: int = request.param
    return kind


@pytest.fixture(scope="module")
def recorded(service: int, tmp_path_factory: pytest.TempPathFactory) -> Sequence[bytes]:
    """What a service of this kind was told."""
    folder = tmp_path_factory.mktemp("objects")
    return scheduler_traffic() if service == ServiceKind.SCHEDULER else storage_traffic(folder)


@pytest.mark.timeout(300)  # it waits for nothing, and computes for a minute on a slow machine
def test_mutated_messages_are_refused_or_taken(service: int, recorded: Sequence[bytes]) -> None:
    port = Port(service)
    port.send(Mutations(recorded, 1).next, MESSAGES, 1)
    assert port.refused > MESSAGES / 10 and port.taken > MESSAGES / 100


@pytest.mark.soak
def test_millions_of_mutated_messages_are_refused_or_taken(service: int, recorded: Sequence[bytes]) -> None:
    seed = time.time_ns()
    for life in range(SOAK_MESSAGES // LIFE_MESSAGES):
        print("seed", seed + life)
        port = Port(service)
        port.send(Mutations(recorded, seed + life).next, LIFE_MESSAGES, seed + life)
        assert port.taken


def test_mutated_messages_reach_real_ports_and_hurt_nobody(tmp_path: Path) -> None:
    recorded = {0: scheduler_traffic(), 1: storage_traffic(tmp_path), 2: [b"\x01", b"\x00", b"\x01topic"]}
    with Services(tmp_path, "--insecure") as services:
        services.add_agent(1, "--insecure")
        with Client(services.address, insecure=True) as client:
            futures = [client.submit(add, number, 1) for number in range(500)]
            for offset, messages in recorded.items():
                mutations = Mutations(messages, offset)
                sent = 0
                while sent < SOCKET_MESSAGES:
                    kind = b"DEALER" if offset < 2 else b"SUB"
                    with suppress(OSError), Attacker(services.port + offset, kind=kind) as attacker:
                        for _ in range(100):
                            sent += 1
                            attacker.send_frame(mutations.next(), more=sent % 50 == 0)
            assert [future.result(SECONDS) for future in futures] == list(range(1, 501))
            assert len(client.submit(bytes, 1_000_000).result(SECONDS)) == 1_000_000
        assert services.scheduler.process.poll() is None
        assert "could not be handled" not in services.scheduler.said()
