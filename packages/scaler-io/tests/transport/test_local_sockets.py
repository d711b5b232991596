"""Unix sockets between programs of one user: beside the network, over the same listener."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("servers run on Linux", allow_module_level=True)

from scaler_io.links.events import LinkDown, LinkRefused, LinkUp, UplinkEvent
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.links.uplink import Uplink
from scaler_io.security.authorized import AuthorizedKeys
from scaler_io.security.key_files import load_credentials, make_keys, revoke_key
from scaler_io.security.keyring import Credentials, KeyRole, Principal
from scaler_io.transport import local_sockets
from scaler_io.transport.connections import HELLO_SECONDS, STRANGER_BYTES
from scaler_io.transport.curve import new_pair
from scaler_io.transport.in_process import InProcessListener
from scaler_io.transport.local_sockets import LocalConnection, LocalDialed, socket_path
from scaler_io.transport.own_keys import local_socket
from scaler_io.transport.zeromq import Dialer
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Hello, Role, Welcome
from scaler_protocol.messages import MESSAGE_MOST, Cancel, Output
from scaler_protocol.payloads import Payloads

DEADLINE = 20.0
USER = Principal(b"k" * 32, KeyRole.CLIENT, "own")
SIZE = struct.Struct("<I")


class Served:
    """A hub whose listener has a Unix socket, and everybody who dials it."""

    def __init__(
        self, path: Path, address: Address | None = None, keys: AuthorizedKeys | None = None, user: Principal = USER
    ) -> None:
        self.path = path
        self.listener = InProcessListener(address or Address("127.0.0.1", 0), keys, local=(path, user))
        self.hub = Hub(
            1,
            admit=lambda hello: Welcome(1),
            timeouts=lambda hello: PeerTimeouts(1, 60),
            principal=self.listener.principal,
        )
        self.heard: list[object] = []
        self.malformed = 0
        self.dialers: dict[Dialer, list[UplinkEvent]] = {}

    def dial(self, name: bytes = b"c", *, role: int = Role.CLIENT, credentials: Credentials | None = None) -> Dialer:
        """One more who dials."""
        uplink = Uplink(Hello(role, name * 16, 5, session=1), time.monotonic(), timeout_seconds=60)
        dialer = Dialer(self.listener.address, uplink, credentials=credentials, local=self.path)
        self.dialers[dialer] = []
        return dialer

    def turn(self) -> None:
        """Everybody takes in and writes out."""
        now = time.monotonic()
        for watched in self.listener.watched:
            watched.process_events()
        for route, frames in self.listener.receive():
            try:
                got = self.hub.receive(route, frames, now)
            except ProtocolError:
                self.malformed += 1
                self.hub.refused(route, sum(map(len, frames)))
                continue
            if got is not None:
                self.heard.append(got[1])
        for route, written in self.hub.outgoing():
            self.listener.send(route, written)
        for dialer, events in self.dialers.items():
            events += dialer.turn(now)
            events += dialer.flush(now)

    def until(self, done: Callable[[], bool]) -> None:
        """Turns, as often as there is something to do."""
        deadline = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < deadline
            self.turn()
            if not (self.listener.readable() or any(dialer.readable() for dialer in self.dialers)):
                ends = [self.listener.fileno(), *(watched.fileno() for watched in self.listener.watched)]
                select.select([*ends, *(at for dialer in self.dialers for at in dialer.filenos())], (), (), 0.01)

    def connected(self, *, credentials: Credentials | None = None) -> Dialer:
        """A client that is welcome."""
        dialer = self.dial(credentials=credentials)
        self.until(lambda: any(isinstance(event, LinkUp) for event in self.dialers[dialer]))
        return dialer

    def close(self) -> None:
        for dialer in self.dialers:
            dialer.close()
        self.listener.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "s.socket")
    yield made
    made.close()


def is_local(dialer: Dialer) -> bool:
    return isinstance(dialer._connection, LocalDialed)


def output(number: int, size: int) -> Output:
    """A message that is a little longer than this."""
    return Output((number,), (1,), Payloads([b"x" * size]))


def connect(path: Path) -> socket.socket:
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect(str(path))
    stranger.settimeout(DEADLINE)
    return stranger


@pytest.mark.parametrize("size", [0, 20_000, 100_000, 3_000_000])
def test_messages_of_any_size_travel_both_ways_in_order(served: Served, size: int) -> None:
    dialer = served.connected()
    assert is_local(dialer)
    for number in range(20):
        for message in (Cancel((number,)), output(number, size)):
            dialer.uplink.send(message)
            served.hub.send(b"c" * 16, message)
    events = served.dialers[dialer]
    served.until(lambda: len(served.heard) >= 41 and len(events) >= 41)
    for arrived in (served.heard[1:], events[1:]):
        assert arrived[::2] == [Cancel((number,)) for number in range(20)]
        assert [(*event.tasks, *map(len, event.texts)) for event in arrived[1::2] if isinstance(event, Output)] == [
            (number, size) for number in range(20)
        ]


def test_a_service_may_send_more_than_it_receives_as_over_the_network(served: Served) -> None:
    dialer = served.connected()
    served.hub.send(b"c" * 16, output(1, MESSAGE_MOST + 5000))
    served.until(lambda: any(isinstance(event, Output) for event in served.dialers[dialer]))
    assert sum(isinstance(event, LinkUp) for event in served.dialers[dialer]) == 1


def test_the_last_messages_of_a_client_that_is_gone_arrive_though_it_was_sent_some(served: Served) -> None:
    dialer = served.connected()
    for number in range(3):
        dialer.uplink.send(Cancel((number,)))
    dialer.close()
    del served.dialers[dialer]
    served.hub.send(b"c" * 16, Cancel((9,)))
    for route, written in served.hub.outgoing():
        served.listener.send(route, written)
    served.until(lambda: Cancel((2,)) in served.heard)


def test_the_last_messages_of_a_service_that_is_gone_arrive_though_it_was_sent_some(tmp_path: Path) -> None:
    served = Served(tmp_path / "s.socket")
    with closing(served.connected()) as dialer:
        served.hub.send(b"c" * 16, Cancel((1,)))
        for route, written in served.hub.outgoing():
            served.listener.send(route, written)
        served.listener.close()
        dialer.uplink.send(Cancel((2,)))
        now = time.monotonic()
        assert dialer.flush(now) == []
        events = [*dialer.turn(now), *dialer.turn(now)]
    assert events[0] == Cancel((1,)) and isinstance(events[1], LinkDown)


def test_a_peer_that_does_not_read_holds_nobody_up(served: Served) -> None:
    slow, quick = served.connected(), served.dial(b"q")
    slow_events = served.dialers.pop(slow)
    for number in range(20):
        served.hub.send(b"c" * 16, output(number, 1_000_000))
    served.until(lambda: any(isinstance(event, LinkUp) for event in served.dialers[quick]))
    served.hub.send(b"q" * 16, Cancel((1,)))
    served.until(lambda: Cancel((1,)) in served.dialers[quick])
    served.dialers[slow] = slow_events
    served.until(lambda: sum(isinstance(event, Output) for event in slow_events) == 20)


def test_the_network_is_not_held_up_by_those_who_send_without_end(tmp_path: Path) -> None:
    served = Served(tmp_path / "s.socket")
    served.path = tmp_path / "none.socket"
    distant = served.connected()
    distant.uplink.send(Cancel((1,)))
    distant.flush(time.monotonic())
    served.until(served.listener.readable)
    for _ in range(100):
        served.listener.inbox.put((b"local", []))
    assert served.listener.readable()
    received = [route for _ in range(2) for route, _ in served.listener.receive(8)]
    assert received.count(b"local") == 8 and len(received) == 9
    served.path = tmp_path / "s.socket"
    served.close()


def test_where_no_service_listens_at_the_path_the_network_is_used(tmp_path: Path) -> None:
    path = tmp_path / "s.socket"
    with closing(InProcessListener(Address("127.0.0.1", 0))) as listener, socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        for place in (path, tmp_path / "none.socket"):
            uplink = Uplink(Hello(Role.CLIENT, b"c" * 16, 5, session=1), time.monotonic(), timeout_seconds=60)
            with closing(Dialer(listener.address, uplink, local=place)) as dialer:
                dialer.turn(time.monotonic())
                assert dialer._connection is not None and not is_local(dialer)


def test_a_service_removes_the_sockets_of_those_that_were_killed_and_its_own(tmp_path: Path) -> None:
    killed = tmp_path / "killed.socket"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(killed))
    living = Served(tmp_path / "living.socket")
    assert not killed.exists()
    other = Served(tmp_path / "other.socket")
    assert living.path.exists() and other.path.exists()
    for each in (living, other):
        each.close()
    assert list(tmp_path.iterdir()) == []


def test_a_service_does_not_remove_the_socket_of_one_that_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Overtaken(socket.socket):
        def listen(self, backlog: int = 1) -> None:
            local_sockets._remove_unused(tmp_path)
            super().listen(backlog)

    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", Overtaken)
        served = Served(tmp_path / "s.socket")
    assert is_local(served.connected())
    served.close()
    assert list(tmp_path.iterdir()) == []


def test_after_a_restart_of_the_service_at_its_port_the_link_goes_on(tmp_path: Path) -> None:
    served = Served(tmp_path / "s.socket")
    dialer = served.connected()
    address = served.listener.address
    served.listener.close()
    again = Served(tmp_path / "s.socket", address)
    again.dialers[dialer] = []
    again.until(lambda: any(isinstance(event, LinkUp) for event in again.dialers[dialer]))
    assert is_local(dialer)
    again.close()


def test_whoever_comes_by_the_socket_is_a_client(served: Served) -> None:
    agent = served.dial(role=Role.AGENT)
    served.until(lambda: bool(served.dialers[agent]))
    [refusal] = served.dialers[agent]
    assert isinstance(refusal, LinkRefused) and "client" in str(refusal)


@pytest.mark.parametrize(
    "garbage",
    [b"\0" * 100, b"\xff" * 100, SIZE.pack(MESSAGE_MOST * 2), SIZE.pack(40) + b"g" * 40],
    ids=["empty", "ones", "long", "text"],
)
def test_garbage_ends_its_own_connection_at_most(served: Served, garbage: bytes) -> None:
    dialer = served.connected()
    with connect(served.path) as stranger:
        stranger.sendall(garbage)
        dialer.uplink.send(Cancel((1,)))
        served.until(lambda: Cancel((1,)) in served.heard)
    assert is_local(dialer)


def test_a_stranger_cannot_have_much_memory_reserved(served: Served) -> None:
    dialer = served.connected()
    with connect(served.path) as stranger:
        stranger.sendall(SIZE.pack(STRANGER_BYTES + 1) + b"x" * 20_000)
        served.turn()
        dialer.uplink.send(output(1, 2 * STRANGER_BYTES))
        served.until(lambda: len(served.heard) == 2)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    assert is_local(dialer)


def test_a_message_that_ends_early_is_dropped(served: Served) -> None:
    dialer = served.connected()
    for size in (1000, 300_000):
        with connect(served.path) as stranger:
            stranger.sendall(SIZE.pack(size) + b"x" * (size // 2))
    dialer.uplink.send(Cancel((1,)))
    served.until(lambda: Cancel((1,)) in served.heard)
    assert served.malformed == 0


def test_when_the_users_key_is_revoked_its_connections_end_and_the_network_says_why(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, new_pair)
    client = load_credentials(keys, [KeyRole.CLIENT])
    served = Served(keys / "s.socket", keys=AuthorizedKeys(keys), user=client.holder)
    dialer = served.connected(credentials=client)
    assert is_local(dialer)
    with connect(served.path) as waiting:
        revoke_key(keys, "client")
        revoked = served.listener.revoked()
        served.hub.revoke(revoked)
        served.hub.tick(time.monotonic())
        with contextlib.suppress(ConnectionResetError):
            assert waiting.recv(1) == b""
    served.listener.close_greedy(1.0, lambda route: True)
    events = served.dialers[dialer]
    served.until(lambda: any(isinstance(event, LinkRefused) for event in events))
    assert "was revoked" in str(events[-1])
    served.close()


def test_a_connection_without_a_hello_is_closed_and_a_peers_is_not(served: Served) -> None:
    dialer = served.connected()
    with connect(served.path) as stranger:
        served.turn()
        routes = served.hub._routes
        for _ in range(2):
            served.listener.close_greedy(HELLO_SECONDS * 0.6, lambda route: route in routes)
        assert stranger.recv(1) == b""
    dialer.uplink.send(Cancel((1,)))
    served.until(lambda: Cancel((1,)) in served.heard)


def test_without_descriptors_it_accepts_again_later(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    local = served.listener._local
    assert local is not None
    with monkeypatch.context() as patched, connect(served.path):

        class Full:
            def fileno(self) -> int:
                return accepting.fileno()

            def accept(self) -> None:
                raise OSError("too many open files")

        accepting = local._accepting
        patched.setattr(local, "_accepting", Full())
        served.turn()
        assert select.select([local], (), (), 0)[0] == [], "not again at once"
    served.listener.close_greedy(1.0, lambda route: True)
    assert is_local(served.connected())


def test_the_reserve_of_descriptors_is_not_given_to_connections(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dialer = served.connected()
    with monkeypatch.context() as patched, connect(served.path) as one_too_many:
        patched.setattr(local_sockets, "connection_limit", lambda: 3)
        served.turn()
        assert one_too_many.recv(1) == b""
    assert "1 connection refused" in caplog.text
    dialer.uplink.send(Cancel((1,)))
    served.until(lambda: Cancel((1,)) in served.heard)


def test_a_service_ends_also_when_it_cannot_remove_its_path(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    served = Served(tmp_path / "keys" / "s.socket")
    (tmp_path / "keys").rename(tmp_path / "moved")
    (tmp_path / "keys").touch()
    served.close()
    with closing(InProcessListener(served.listener.address)):
        """Its port is free."""


def test_a_peer_that_reads_slowly_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, limits = 0.0, list[float]()

    class Slow:
        """Takes each part after a while."""

        def settimeout(self, seconds: float) -> None:
            limits.append(seconds)

        def sendall(self, part: memoryview) -> None:
            nonlocal now
            if not limits[-1]:
                raise BlockingIOError
            now += 0.15

        def close(self) -> None:
            """The end."""

    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = LocalConnection(ours)
        for number in range(5000):
            connection.send([b"%16d" % number, b"x" * 10_000])
        with monkeypatch.context() as patched:
            patched.setattr(connection, "_socket", Slow())
            patched.setattr(time, "monotonic", lambda: now)
            connection.close(0.2)
    assert limits == [pytest.approx(0.2), pytest.approx(0.05), 0.0]


def test_a_path_that_cannot_be_used_leaves_the_network(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "scaler")
    served = Served(tmp_path / ("x" * 120))
    assert not is_local(served.connected())
    assert "programs of this host use the network" in caplog.text
    served.close()


def test_only_services_with_the_users_own_keys_listen_there(tmp_path: Path) -> None:
    address = Address("127.0.0.1", 1234)
    path = local_socket(address, None, False)
    assert path is not None and path.name.endswith("_127.0.0.1_1234.socket")
    assert path.parent.stat().st_mode & 0o77 == 0
    assert local_socket(address, tmp_path, False) is None
    assert local_socket(address, None, True) is None
    assert local_socket(Address("192.0.2.1", 1234), None, False) is None
    assert socket_path(tmp_path, Address(path="/tmp/some")) is None
