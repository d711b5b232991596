"""Publisher and Subscriber over real sockets."""

from __future__ import annotations

import select
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler_io.zeromq import PUBLISHED_AHEAD, Publisher, Subscriber
from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError

SECONDS = 20.0
HEAD = bytes(16)


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    made = Publisher()
    yield made
    made.close()


def wait_joined(publisher: Publisher) -> None:
    until = time.monotonic() + SECONDS
    while not publisher.joined():
        assert select.select([publisher.fileno()], [], [], until - time.monotonic())[0], "nobody came"


def wait_left(publisher: Publisher) -> None:
    until = time.monotonic() + SECONDS
    while publisher.has_listeners:
        assert select.select([publisher.fileno()], [], [], until - time.monotonic())[0], "nobody left"
        assert not publisher.joined()


def next_frames(subscriber: Subscriber) -> list[bytes]:
    assert subscriber.wait(SECONDS)
    return subscriber.receive(1)[0]


def test_every_listener_is_noticed_and_hears(publisher: Publisher, tmp_path: Path) -> None:
    path = tmp_path / "monitor"
    address = Address(path=str(path))
    publisher.bind(address)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert not publisher.joined() and not publisher.has_listeners
    first = Subscriber(address)
    wait_joined(publisher)
    publisher.send([HEAD, b"one"])
    assert next_frames(first) == [HEAD, b"one"]
    second = Subscriber(address)
    wait_joined(publisher)
    publisher.send([HEAD, b"two"])
    assert next_frames(first) == next_frames(second) == [HEAD, b"two"]
    first.listen_anew()
    wait_joined(publisher)
    first.close()
    second.close()
    wait_left(publisher)


def test_a_listener_comes_back_by_itself(tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "monitor"))
    before, subscriber = Publisher(), Subscriber(address)
    before.bind(address)
    wait_joined(before)
    before.close()
    after = Publisher()
    after.bind(address)
    until = time.monotonic() + SECONDS
    while not after.joined():
        assert not subscriber.wait(0.01) and time.monotonic() < until  # it subscribes again while it looks
    after.send([HEAD, b"again"])
    assert next_frames(subscriber) == [HEAD, b"again"]
    subscriber.close()
    after.close()


def test_a_listener_that_does_not_listen_holds_nobody_up(publisher: Publisher, tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "monitor"))
    publisher.bind(address)
    subscriber = Subscriber(address)
    wait_joined(publisher)
    sent = 20 * PUBLISHED_AHEAD
    for _ in range(sent):
        publisher.send([HEAD, bytes(100_000)])
    received = 0
    while subscriber.wait(0.5):
        received += len(subscriber.receive())
    assert PUBLISHED_AHEAD <= received < sent
    subscriber.close()


def test_an_address_in_use_is_refused_by_name(publisher: Publisher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(AddressError, match=f"cannot listen to {address}: Address already in use"):
            publisher.bind(address)
