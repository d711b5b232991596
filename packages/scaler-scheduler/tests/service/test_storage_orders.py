"""The scheduler's link to object storage, with a server that is a hub."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

from scaler_protocol.addresses import Address
from scaler_protocol.handshake import Welcome
from scaler_protocol.messages import Message
from scaler_protocol.sessions import KeepSession
from scaler_protocol.storage import CopyReplicas, DeleteObjects
from scaler_scheduler.core.state import SendToStorage
from scaler_scheduler.service.storage_orders import StorageOrders
from support.fake_services import FakeService
from support.gates import SECONDS

FIRST, SECOND = KeepSession(5, b"k"), KeepSession(6, b"k")
GONE = DeleteObjects([b"o" * 16], 5)
WANTED = CopyReplicas((b"w" * 16,))


@contextlib.contextmanager
def ordering() -> Iterator[tuple[FakeService, StorageOrders]]:
    """A server, and the scheduler's link to it; inside of a running loop."""
    service = FakeService(Address.parse("tcp://127.0.0.1:0"), lambda hello: Welcome(1))
    orders = StorageOrders(service.address, None)
    try:
        yield service, orders
    finally:
        orders.close()
        service.close()


async def heard(service: FakeService, count: int) -> list[Message]:
    """The next messages that the server receives."""
    until, messages = time.monotonic() + SECONDS, list[Message]()
    while len(messages) < count:
        assert time.monotonic() < until, messages
        messages += [
            event for _, event in service.receive() if isinstance(event, KeepSession | DeleteObjects | CopyReplicas)
        ]
        service.flush()
        await asyncio.sleep(0.01)
    return messages


def test_sessions_are_kept_again_at_another_server() -> None:
    async def run() -> None:
        with ordering() as (service, orders):
            for message in (FIRST, SECOND, GONE):
                orders.send(SendToStorage(message))
            assert {*map(type, await heard(service, 3))} == {KeepSession, DeleteObjects}
            orders.send(SendToStorage(KeepSession(5, b"k", keep=False)))
            assert await heard(service, 1) == [KeepSession(5, b"k", keep=False)]
            service.start(2)
            assert await heard(service, 1) == [SECOND]

    asyncio.run(run())


def test_requested_results_are_told_once_and_not_to_another_server() -> None:
    async def run() -> None:
        with ordering() as (service, orders):
            orders.send(SendToStorage(WANTED))
            orders.send(SendToStorage(SECOND))
            assert await heard(service, 2) == [WANTED, SECOND]
            service.start(2)
            assert await heard(service, 1) == [SECOND]

    asyncio.run(run())


def test_what_ends_without_a_link_ends_later_unless_it_has_begun_again() -> None:
    async def run() -> None:
        with ordering() as (service, orders):
            for message in (FIRST, SECOND, end(FIRST), end(SECOND), SECOND):
                orders.send(SendToStorage(message))  # the server has not answered yet
            assert await heard(service, 2) == [end(FIRST), SECOND]

    asyncio.run(run())


def end(message: KeepSession) -> KeepSession:
    """That the session of this message ends."""
    return KeepSession(message.session, message.key, keep=False)
