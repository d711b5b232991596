"""Connections of a socket: what each may hold, and which are closed."""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from scaler_io.transport import connections
from scaler_io.transport.connections import (
    ALL_SECONDS,
    HELLO_SECONDS,
    HURRIED_SWEEP_SECONDS,
    PEER_BYTES,
    STRANGER_BYTES,
    STRANGERS_BYTES,
    SWEEP_SECONDS,
    Connection,
    ConnectionLimiter,
    SubscriptionLimiter,
    received_bytes,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="servers run on Linux only")
MEGABYTE = 1024 * 1024


class Pair(NamedTuple):
    """Both ends of a TCP connection over loopback."""

    near: socket.socket
    far: socket.socket

    def is_open(self) -> bool:
        """Whether our end has not closed it."""
        try:
            return self.far.recv(1) != b""
        except BlockingIOError:
            return True


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    """Three connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = []
        for _ in range(3):
            far = socket.create_connection(server.getsockname())
            far.setblocking(False)
            made.append(Pair(server.accept()[0], far))
    yield made
    for pair in made:
        pair.near.close()
        pair.far.close()


@pytest.fixture
def limiter(pairs: list[Pair]) -> Iterator[ConnectionLimiter]:
    made = ConnectionLimiter("tcp://127.0.0.1:1")
    for pair in pairs:
        made.accepted(pair.near.fileno())
    yield made
    made.close()


def say(pair: Pair, count: int) -> None:
    """Send bytes, and take them out of the kernel as ZeroMQ does."""
    while count:
        part = pair.far.send(bytes(min(count, 65536)))
        count -= part
        while part:
            part -= len(pair.near.recv(part))


def test_the_kernel_counts_what_a_connection_has_received(pairs: list[Pair]) -> None:
    assert received_bytes(pairs[0].near.fileno()) == 0
    say(pairs[0], 100_000)
    assert received_bytes(pairs[0].near.fileno()) == 100_000
    near, far = socket.socketpair()
    with near, far:
        assert received_bytes(near.fileno()) is None, "a Unix socket"
    assert received_bytes(1 << 20) is None, "no descriptor"


def test_connections_beyond_the_limit_are_shut_down_and_other_files_are_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limiter: ConnectionLimiter, pairs: list[Pair]
) -> None:
    assert pairs[0].is_open()
    other = os.open(os.devnull, os.O_RDONLY)
    monkeypatch.setattr(connections, "connection_limit", lambda: 3)
    for descriptor in (pairs[0].near.fileno(), other, 1 << 20):
        limiter.accepted(descriptor)
    assert not pairs[0].is_open()
    os.fstat(other)
    os.close(other)
    [line] = caplog.messages
    assert line.startswith("tcp://127.0.0.1:1: 1 connection refused") and "ulimit -n" in line


def test_a_stranger_may_send_little_and_a_peer_more(
    limiter: ConnectionLimiter, pairs: list[Pair], caplog: pytest.LogCaptureFixture
) -> None:
    stranger, peer, other = pairs
    limiter.first_message(peer.near.fileno(), b"peer")
    for pair in (stranger, peer):
        say(pair, STRANGER_BYTES + MEGABYTE)
    limiter.close_greedy(0.05, lambda route: route == b"peer", drained=True)
    assert not stranger.is_open()
    assert peer.is_open() and other.is_open()
    assert "closed 1 connection: 2,097,1" in caplog.text and "messages that do not end" in caplog.text


def test_a_peer_with_too_many_unread_bytes_is_closed(
    limiter: ConnectionLimiter, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PEER_BYTES", 3 * MEGABYTE)
    reader = limiter.first_message(pairs[0].near.fileno(), b"reads")
    limiter.first_message(pairs[1].near.fileno(), b"ends no message")
    for _ in range(2):
        for pair in pairs[:2]:
            say(pair, 2 * MEGABYTE)
        reader.read += 2 * MEGABYTE
        assert limiter.close_greedy(0.05, lambda route: bool(route), drained=False) == HURRIED_SWEEP_SECONDS
    assert pairs[0].is_open()
    assert not pairs[1].is_open()
    limiter.disconnected(pairs[1].near.fileno())
    assert limiter.close_greedy(0.05, lambda route: bool(route), drained=False) == ALL_SECONDS


def test_while_nothing_is_unread_a_look_waits_for_arrivals(limiter: ConnectionLimiter, pairs: list[Pair]) -> None:
    arrivals = limiter.arrivals
    assert arrivals is not None
    peer = limiter.first_message(pairs[0].near.fileno(), b"peer")

    def look() -> float:
        return limiter.close_greedy(0.05, lambda route: True, drained=False)

    look()
    assert look() == ALL_SECONDS and not select.select([arrivals], [], [], 0)[0]
    say(pairs[0], MEGABYTE)
    assert select.select([arrivals], [], [], 10)[0] == [arrivals]
    assert look() == SWEEP_SECONDS, "its bytes are unread"
    assert look() == SWEEP_SECONDS and not select.select([arrivals], [], [], 0)[0]
    peer.read += MEGABYTE
    assert look() == ALL_SECONDS


def test_a_late_message_does_not_take_the_connection_that_reuses_its_descriptor(
    limiter: ConnectionLimiter, pairs: list[Pair]
) -> None:
    descriptor = pairs[0].near.fileno()
    limiter.first_message(descriptor, b"gone")
    limiter.disconnected(descriptor)
    limiter.accepted(descriptor)
    limiter.first_message(descriptor, b"gone").read += 1
    limiter.cut(b"gone")
    assert pairs[0].is_open()
    assert limiter.first_message(descriptor, b"new") is limiter.routes[b"new"]
    limiter.first_message(descriptor, b"gone")
    assert limiter.routes[b"new"].read == 0
    limiter.close_greedy(0.05, None, drained=True)
    limiter.disconnected(descriptor)
    assert not limiter.routes


def test_a_peer_that_waits_to_send_more_learns_that_it_was_cut_off(
    limiter: ConnectionLimiter, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PEER_BYTES", MEGABYTE)
    greedy, reader = pairs[:2]
    limiter.first_message(greedy.near.fileno(), b"ends no message")
    say(greedy, 2 * MEGABYTE)
    limiter.close_greedy(0.05, lambda route: True, drained=False)
    greedy.near.close()
    with pytest.raises(BrokenPipeError):
        greedy.far.send(b"more")
    assert reader.is_open()


def test_only_connections_that_may_have_unread_bytes_are_examined_and_at_times_all(
    limiter: ConnectionLimiter, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    examined = set[int]()

    def look(seconds: float) -> list[int]:
        examined.clear()
        limiter.close_greedy(seconds, lambda route: True, drained=True)
        return [number for number, pair in enumerate(pairs) if pair.near.fileno() in examined]

    is_over = Connection.is_over

    def note(connection: Connection) -> bool:
        examined.add(connection.descriptor)
        return is_over(connection)

    monkeypatch.setattr(Connection, "is_over", note)
    assert look(0.05) == [0, 1, 2] and look(0.05) == []
    say(pairs[1], 1000)
    assert look(0.05) == [1], "ZeroMQ has read everything"
    say(pairs[2], 10)
    assert look(0.05) == [1, 2] and look(0.05) == [1], "1,000 bytes are unread, and 10 a heartbeat"
    assert look(ALL_SECONDS) == [0, 1, 2]


def test_what_is_no_part_of_messages_does_not_add_up(limiter: ConnectionLimiter, pairs: list[Pair]) -> None:
    peer = limiter.first_message(pairs[0].near.fileno(), b"peer")
    for _ in range(20):
        say(pairs[0], 200_000)
        peer.read += 100_000
        assert peer.unread(0.05, drained=True) == 0, "all messages were read, so the rest is something else"
    for _ in range(100):
        say(pairs[0], 17)
        assert peer.unread(2.0, drained=True) == 0, "a heartbeat of ZeroMQ"


def test_strangers_together_may_send_little(
    limiter: ConnectionLimiter, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STRANGERS_BYTES", MEGABYTE)
    for pair, size in zip(pairs, (300_000, 700_000, 500_000), strict=True):
        say(pair, size)
    limiter.close_greedy(0.05, lambda route: False, drained=True)
    assert [pair.is_open() for pair in pairs] == [True, False, True], "the greatest one goes"
    assert STRANGER_BYTES < STRANGERS_BYTES < PEER_BYTES


def test_a_connection_without_a_peer_is_closed_after_a_while(
    limiter: ConnectionLimiter, pairs: list[Pair], caplog: pytest.LogCaptureFixture
) -> None:
    limiter.first_message(pairs[1].near.fileno(), b"peer")
    for _ in range(11):
        limiter.close_greedy(HELLO_SECONDS / 10, lambda route: route == b"peer", drained=True)
    assert [pair.is_open() for pair in pairs] == [False, True, False]
    assert "without a Hello for 10 s" in caplog.text


def test_monitors_leave_files_to_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pairs: list[Pair]
) -> None:
    monkeypatch.setattr(connections, "monitor_connections", lambda: 2)
    monitors = SubscriptionLimiter("monitors")
    first, second, third = (pair.near.fileno() for pair in pairs)
    for descriptor in (first, second, third):
        monitors.accepted(descriptor)
    assert [pair.is_open() for pair in pairs] == [True, True, False]
    assert caplog.messages[0].startswith("monitors: 1 connection refused: monitors may have 2")
    monitors.disconnected(third)
    monitors.disconnected(first)
    monitors.accepted(first)
    assert pairs[0].is_open()


def test_who_changes_subscriptions_again_and_again_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pairs: list[Pair]
) -> None:
    monkeypatch.setattr(connections, "CHANGES", 4)
    monitors = SubscriptionLimiter("monitors")
    restless, other = (pair.near.fileno() for pair in pairs[:2])
    for descriptor in (restless, other):
        monitors.accepted(descriptor)
        assert monitors.subscription_changed(descriptor, b"\1")
    changes = [b"\0", b"\1", b"\0", b"\1"]
    assert [monitors.subscription_changed(restless, change) for change in changes] == [False, True, False, False]
    assert monitors.is_restless(restless) and not monitors.is_restless(other)
    assert [pair.is_open() for pair in pairs] == [False, True, True] and monitors.subscribers == {other}
    assert len(caplog.messages) == 1 and "whose peers changed their subscriptions" in caplog.text
    monitors.accepted(restless)
    assert monitors.subscription_changed(restless, b"\1"), "another connection"


def test_subscribers_may_stay(limiter: ConnectionLimiter, pairs: list[Pair]) -> None:
    for _ in range(11):
        limiter.close_greedy(HELLO_SECONDS / 10, None, drained=True)
    assert all(pair.is_open() for pair in pairs)


def test_a_reused_descriptor_is_left_alone(limiter: ConnectionLimiter, pairs: list[Pair]) -> None:
    descriptor = pairs[0].near.fileno()
    near, far = socket.socketpair()
    with near, far:
        os.dup2(near.fileno(), descriptor)
        limiter.close_greedy(2 * HELLO_SECONDS, lambda route: False, drained=True)
        far.setblocking(False)
        with pytest.raises(BlockingIOError):
            far.recv(1)
