"""Keys whose peers broke the protocol."""

from __future__ import annotations

from contextlib import suppress

import pytest

from scaler_io.links.hub import FAULTS_LIMIT, Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.links.strays import STRAYS_LIMIT
from scaler_io.links.streams import HEADER
from scaler_io.links.suspensions import FORGET_SECONDS, LONGEST_SECONDS, Suspensions
from scaler_io.security.keyring import ANYONE, KeyRole, Principal
from scaler_protocol.codec import decode, encode
from scaler_protocol.errors import MalformedMessageError
from scaler_protocol.handshake import Hello, Role, Welcome
from scaler_protocol.messages import Cancel, Message

ADA = Principal(b"a" * 32, KeyRole.CLIENT, "ada")
BOB = Principal(b"b" * 32, KeyRole.CLIENT, "bob")
WORKER = Principal(b"w" * 32, KeyRole.WORKER, "workers")


class Service:
    """A hub of which routes begin with the initial of a principal; without one they have no key."""

    def __init__(self) -> None:
        self.hub = Hub(
            5,
            admit=lambda hello: Welcome(5),
            timeouts=lambda hello: PeerTimeouts(60, 60),
            principal=lambda route: {b"a": ADA, b"b": BOB, b"w": WORKER}.get(route[:1], ANYONE),
        )

    def is_welcomed(self, route: bytes, now: float, epoch: int = 1) -> bool:
        """Whether a Hello from a new connection is answered; the identity is the route."""
        self.say(route + bytes([epoch]), Hello(Role.CLIENT, route.ljust(16, b"."), 1, epoch=epoch), now)
        told = [frames for to, frames in self.hub.outgoing() if to == route + bytes([epoch])]
        return any(isinstance(decode(list(map(bytes, frames[1:]))), Welcome) for frames in told)

    def say(self, route: bytes, message: Message, now: float, number: int = 0) -> None:
        """Receive a message."""
        self.hub.receive(route, [HEADER.pack(number, 0), *map(bytes, encode(message))], now)

    def break_protocol(self, route: bytes, now: float) -> str:
        """The peer of a route sends what is not allowed until it is cut off; returns why it is lost."""
        self.say(route + b"\x01", Cancel([1]), now, 1)
        for _ in range(FAULTS_LIMIT + 1):
            self.hub.refused(route + b"\x01", 10)
        assert route + b"\x01" in self.hub.cuts()
        [(_, lost)] = self.hub.tick(now)
        return getattr(lost, "reason", "")


def test_a_key_whose_peer_was_cut_off_waits_and_longer_each_time() -> None:
    service = Service()
    assert all(service.is_welcomed(route, 0.0) for route in (b"a1", b"a2", b"b1"))
    assert service.break_protocol(b"a1", 1.0).endswith("not allowed; new connections of the key ada wait for 16 s")
    assert not service.is_welcomed(b"a3", 16.9)
    assert service.is_welcomed(b"b2", 16.9), "another key"
    assert service.is_welcomed(b"a2", 16.9, epoch=2), "a known peer connects again"
    assert service.is_welcomed(b"a4", 17.0)
    assert service.break_protocol(b"a4", 18.0).endswith("wait for 32 s")
    assert not service.is_welcomed(b"a5", 49.9) and service.is_welcomed(b"a5", 50.1, epoch=2)


def test_who_sends_on_while_its_key_waits_is_cut_off() -> None:
    service = Service()
    assert service.is_welcomed(b"a1", 0.0)
    service.break_protocol(b"a1", 1.0)
    service.hub.outgoing()
    service.say(b"a2", Cancel([1]), 1.5, 1)
    assert service.hub.cuts() == [b"a2"] and service.hub.outgoing() == []


def test_who_sends_on_without_a_hello_is_cut_off() -> None:
    """It may be a peer that was given up, so its key is not suspended."""
    service = Service()
    for number in range(1, STRAYS_LIMIT + 1):
        service.say(b"a1", Cancel([1]), 1.0, number)
    assert len(service.hub.outgoing()) == STRAYS_LIMIT and not service.hub.cuts()
    service.say(b"a1", Cancel([1]), 1.0, STRAYS_LIMIT + 1)
    assert service.hub.cuts() == [b"a1"] and not service.hub.outgoing()
    assert service.is_welcomed(b"a2", 1.5)


def test_a_malformed_message_suspends_the_key() -> None:
    service = Service()
    assert service.is_welcomed(b"a1", 0.0)
    with suppress(MalformedMessageError):
        service.hub.receive(b"a1\x01", [HEADER.pack(1, 0), b"nonsense"], 1.0)
    [(_, lost)] = service.hub.tick(1.0)
    assert "ada wait for 16 s" in getattr(lost, "reason", "")
    assert not service.is_welcomed(b"a2", 1.5)


@pytest.mark.parametrize("principal", [ANYONE, WORKER], ids=["no key", "workers"])
def test_what_many_hosts_share_is_not_suspended(principal: Principal) -> None:
    suspensions = Suspensions()
    assert suspensions.suspend(principal, 1.0) == 0 and not suspensions.is_suspended(principal, 1.0)


def test_a_suspension_has_a_longest_time_and_is_forgotten() -> None:
    suspensions, now = Suspensions(), 0.0
    for seconds in (16, 32, 64, LONGEST_SECONDS, LONGEST_SECONDS):
        assert suspensions.suspend(ADA, now) == seconds
        now += seconds
        assert not suspensions.is_suspended(ADA, now) and suspensions.is_suspended(ADA, now - 0.1)
    assert suspensions.suspend(ADA, now + FORGET_SECONDS) == 16
