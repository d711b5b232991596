"""Bytes that are not meant for us, on the scheduler's port and the storage's, while a client works."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from scaler import Client
from scaler_protocol.codec import encode
from scaler_protocol.handshake import Role, ServiceKind
from scaler_protocol.ids import first_task
from scaler_protocol.messages import Group, Submit
from scaler_protocol.payloads import Payloads
from support.faults import Services, resident
from support.gates import SECONDS
from support.intruders import answered, flood, hello, raw_noise, wrong_frames, wrong_messages
from support.processes import descendants, taken_port
from support.tasks import add
from support.waiting import wait_until

GARBAGE = 10_000
LOG_LINES = 60
MEMORY_BYTES = 30 * 1024 * 1024


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Services of their own, which admit everybody, and whose logs say what came."""
    with Services(tmp_path_factory.mktemp("services"), "--insecure") as started:
        started.add_agent(2, "--insecure")
        wait_until(lambda: taken_port([started.port + 1]) is not None, "the storage server")
        yield started


@pytest.fixture
def work(services: Services) -> Iterator[Client]:
    """A client that has work under way all the time, and is not hurt."""
    with Client(services.address, insecure=True) as client:
        futures = [client.submit(add, number, 1) for number in range(2000)]
        yield client
        futures += [client.submit(add, number, 1) for number in range(2000, 4000)]
        assert [future.result(SECONDS) for future in futures] == list(range(1, 4001))
    assert services.scheduler.process.poll() is None
    assert "Traceback" not in services.scheduler.said()


def counted(services: Services, server: str) -> int:
    """The highest number of a malformed message that a server has told of."""
    numbers = re.findall(rf"{server}: malformed message number (\d+)", services.scheduler.said())
    return max(map(int, numbers), default=0)


PORTS = pytest.mark.parametrize(
    ("offset", "server"), [(0, "Scheduler"), (1, "[Ss]torage[^:]*")], ids=["scheduler", "storage"]
)
SERVICES = (ServiceKind.SCHEDULER, ServiceKind.STORAGE)
"""By the offset of their ports."""


@PORTS
@pytest.mark.usefixtures("work")
def test_bytes_of_nobody(services: Services, offset: int, server: str) -> None:
    for seed in range(5):
        raw_noise(services.port + offset, random.Random(seed))


@PORTS
@pytest.mark.usefixtures("work")
def test_frames_that_are_no_messages(services: Services, offset: int, server: str) -> None:
    before = counted(services, server)
    for seed in range(5):
        wrong_frames(services.port + offset, random.Random(seed))
    wait_until(lambda: counted(services, server) > before, "malformed messages are told of")


@PORTS
@pytest.mark.parametrize("role", [Role.CLIENT, Role.AGENT], ids=["client", "agent"])
@pytest.mark.usefixtures("work")
def test_messages_of_the_wrong_direction(services: Services, offset: int, server: str, role: int) -> None:
    wrong_messages(services.port + offset, role, SERVICES[offset])


@PORTS
@pytest.mark.usefixtures("work")
def test_a_flood_of_garbage(services: Services, offset: int, server: str) -> None:
    pid = services.scheduler.pid if not offset else descendants(services.scheduler.pid)[0]
    before, lines = resident(pid)[0], services.scheduler.said().count("malformed")
    told = counted(services, server)
    for seed in range(5):
        flood(services.port + offset, random.Random(seed), GARBAGE)
    wait_until(lambda: counted(services, server) > told, "the flood is reported")
    assert resident(pid)[0] - before < MEMORY_BYTES
    assert services.scheduler.said().count("malformed") - lines < LOG_LINES


@pytest.mark.usefixtures("work")
def test_a_submit_that_is_refused_is_answered(services: Services) -> None:
    greeting, function = hello(), b"w" * 16
    task = first_task(greeting.session) + 1
    submit = Submit(
        [Group(function)], [task], Payloads([b"call"]), functions=[function], names=["n"], bodies=Payloads([b"body"])
    )
    reason = b"is not the BLAKE2b-128 of the body"
    assert reason in answered(services.port, greeting, encode(submit), until=reason)


@PORTS
@pytest.mark.usefixtures("work")
def test_a_numbered_message_that_is_malformed_is_answered(services: Services, offset: int, server: str) -> None:
    reason = b"malformed message: not a message"
    assert reason in answered(services.port + offset, hello(service=SERVICES[offset]), [b"\xff" * 64], until=reason)
