"""Publisher and Subscriber over real sockets."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from scaler_io.transport import publishing
from scaler_io.transport.connections import TOPICS
from scaler_io.transport.endpoint import ListenError
from scaler_io.transport.publishing import PUBLISHED_AHEAD, Publisher, Subscriber
from scaler_protocol.addresses import Address
from support.processes import free_ports
from support.resets import reset_while_messages_wait, service

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
    while publisher.has_subscribers:
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
    assert not publisher.joined() and not publisher.has_subscribers
    first = Subscriber(address)
    wait_joined(publisher)
    publisher.send([HEAD, b"one"])
    assert next_frames(first) == [HEAD, b"one"]
    second = Subscriber(address)
    wait_joined(publisher)
    publisher.send([HEAD, b"two"])
    assert next_frames(first) == next_frames(second) == [HEAD, b"two"]
    first.subscribe_again()
    wait_joined(publisher)
    first.close()
    second.close()
    wait_left(publisher)


def strange(address: Address, kind: int) -> zmq.Socket[bytes]:
    """A peer that is no monitor."""
    made = zmq.Context[zmq.Socket[bytes]].instance().socket(kind)
    made.linger = 0
    made.connect(str(address))
    return made


def test_strangers_silence_nobody(publisher: Publisher, tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "monitor"))
    publisher.bind(address)
    listener, topics, talker = Subscriber(address), strange(address, zmq.SUB), strange(address, zmq.XSUB)
    wait_joined(publisher)
    for act in (
        lambda: topics.subscribe(b"zzz"),
        lambda: topics.unsubscribe(b"zzz"),
        lambda: talker.send(b"a user message"),
        lambda: talker.send(b"\x01topic"),
        lambda: talker.send(b"\x00topic"),
    ):
        act()  # type: ignore[no-untyped-call]
        assert select.select([publisher.fileno()], [], [], SECONDS)[0]
        assert not publisher.joined() and publisher.has_subscribers
        publisher.send([HEAD, b"still"])
        assert next_frames(listener) == [HEAD, b"still"]
    topics.close()
    talker.close()
    listener.close()
    wait_left(publisher)


def is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(4096)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_who_never_subscribed_unsubscribes_nobody(publisher: Publisher, tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "monitor"))
    publisher.bind(address)
    listener = Subscriber(address)
    wait_joined(publisher)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(address.path)
        stranger.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16 + 1 + 31))
        stranger.sendall(b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB")
        stranger.sendall(b"\x00\x01\x00" + b"\x04\x07\x06CANCEL")  # the message of old, and the command
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may be cut off before the last one
            for number in range(TOPICS + 1):  # more than a connection may have
                stranger.sendall(b"\x00\x02\x01%c" % number)
        stranger.setblocking(False)
        until = time.monotonic() + SECONDS
        while not is_closed(stranger):
            assert not publisher.joined() and publisher.has_subscribers
            assert time.monotonic() < until
            select.select([publisher.fileno()], [], [], 0.05)
    publisher.send([HEAD, b"still"])
    assert next_frames(listener) == [HEAD, b"still"]
    listener.close()
    wait_left(publisher)


def test_others_have_a_turn_while_subscriptions_change_without_end(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless:
        received = 0

        def recv(self, *_: object) -> zmq.Frame:
            self.received += 1
            return zmq.Frame(b"\1")

    endless = Endless()
    monkeypatch.setattr(publishing, "RAW", endless)
    monkeypatch.setattr(publishing, "is_readable", lambda socket: True)
    monkeypatch.setattr(publishing, "descriptor_of", lambda frame: 1 << 20)
    assert publisher.joined() and publisher.is_readable()
    assert endless.received == publishing._CHANGES_TOGETHER


def test_who_listens_no_more_and_stays_has_left(publisher: Publisher, tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "monitor"))
    publisher.bind(address)
    listener = strange(address, zmq.SUB)
    listener.subscribe(b"")
    wait_joined(publisher)
    listener.unsubscribe(b"")
    wait_left(publisher)
    listener.close()


def test_long_subscriptions_are_not_kept(publisher: Publisher, tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "monitor"))
    publisher.bind(address)
    before = Path("/proc/self/statm").read_text("ascii").split()[1]
    greedy = strange(address, zmq.SUB)
    gone: zmq.Socket[bytes] = greedy.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    for _ in range(100):
        greedy.subscribe(os.urandom(20_000))
    assert gone.poll(int(SECONDS * 1000)), "the connection lasts"
    listener = Subscriber(address)
    wait_joined(publisher)
    grown = int(Path("/proc/self/statm").read_text("ascii").split()[1]) - int(before)
    assert grown * 4096 < 200 * 1024 * 1024, "the subscriber's own tree is half of it"
    greedy.disable_monitor()
    gone.close()
    greedy.close()
    listener.close()


def test_a_peer_with_many_short_topics_is_disconnected(
    publisher: Publisher, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = Address(path=str(tmp_path / "monitor"))
    publisher.bind(address)
    listener, greedy = Subscriber(address), strange(address, zmq.SUB)
    wait_joined(publisher)
    gone: zmq.Socket[bytes] = greedy.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    greedy.setsockopt(zmq.RECONNECT_IVL, -1)
    for number in range(TOPICS):
        greedy.subscribe(b"%d" % number)
    for _ in range(2 * TOPICS):
        listener.subscribe_again()  # the same topic, again and again
        wait_joined(publisher)
        assert not listener.receive()  # and ZeroMQ notes that it may send more
    for number in range(100_000):
        greedy.subscribe(b"%d" % number)
    until = time.monotonic() + SECONDS
    news = zmq.Poller()
    news.register(publisher.fileno(), zmq.POLLIN)
    news.register(gone, zmq.POLLIN)  # this comes after the publisher's last event
    while not gone.poll(0):
        assert news.poll(max(0, int(1000 * (until - time.monotonic())))), "the connection lasts"
        publisher.joined()
    publisher.send([HEAD, b"still"])
    while next_frames(listener) != [HEAD, b"still"]:
        pass
    [line] = caplog.messages
    assert line.startswith(f"monitors: closed 1 connection, whose peers subscribed to more than {TOPICS} topics")
    greedy.disable_monitor()
    for each in (gone, greedy, listener):
        each.close()


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
    while subscriber.wait(0.5 if received >= PUBLISHED_AHEAD else SECONDS):
        received += len(subscriber.receive())
    assert PUBLISHED_AHEAD <= received < sent
    subscriber.close()


PUBLISHING = """
import sys
from scaler_io.transport import publishing, sockets
from scaler_protocol.addresses import Address

sockets._BEAT_MS = 50
publisher = publishing.Publisher()
publisher.bind(Address("127.0.0.1", int(sys.argv[1])))
print("published", flush=True)
sys.stdin.readline()
while not publisher.joined():
    pass
print("alive", flush=True)
"""


def test_connections_that_are_reset_while_their_subscriptions_wait_do_not_end_the_process() -> None:
    port = free_ports(1)
    with service(PUBLISHING, str(port)) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "published\n"
        reset_while_messages_wait(port, b"SUB", b"\x01topic")
        subscriber = Subscriber(Address("127.0.0.1", port))
        print("go on", file=process.stdin, flush=True)
        assert process.stdout.readline() == "alive\n"
        subscriber.close()


def test_an_address_in_use_is_refused_by_name(publisher: Publisher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ListenError, match=f"cannot listen to {address}: Address already in use"):
            publisher.bind(address)
