"""Keys over real sockets: who is admitted, who is told why not, and whose connections are closed."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from scaler_io.links.admission import Permissions
from scaler_io.links.events import LinkDown, LinkRefused, LinkUp, PeerJoined, PeerLost, UplinkEvent
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.links.streams import HEADER
from scaler_io.links.uplink import LinkState, Uplink
from scaler_io.security.authorized import AuthorizedKeys
from scaler_io.security.key_files import AUTHORIZED, add_key, load_credentials, make_keys, revoke_key
from scaler_io.security.keyring import Credentials, KeyRole
from scaler_io.transport import zeromq
from scaler_io.transport.curve import new_pair
from scaler_io.transport.publishing import Publisher, Subscriber
from scaler_io.transport.zeromq import Dialer, Listener
from scaler_protocol.addresses import Address
from scaler_protocol.codec import encode
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Goodbye, Hello, Role, Welcome
from scaler_protocol.messages import Cancel, Shutdown

SECONDS = 30.0
LOOPBACK = Address("127.0.0.1", 0)
GREETING = b"\xff" + bytes(8) + b"\x7f"
"""What a service of ZeroMQ says first."""
PERMITTED: Permissions = {Role.CLIENT: frozenset({Cancel}), Role.AGENT: frozenset({Shutdown})}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    directory = tmp_path / "keys"
    make_keys(directory, new_pair)
    return directory


class Service:
    """A hub behind a listener."""

    def __init__(self, keys: Path | None, address: Address = LOOPBACK) -> None:
        self.listener = Listener(address, AuthorizedKeys(keys) if keys is not None else None)
        self.address = self.listener.address
        self.events: list[object] = []
        self.faults: list[str] = []
        self.hub = Hub(
            1,
            admit=lambda hello: Welcome(1),
            timeouts=lambda hello: PeerTimeouts(30, 60),
            principal=self.listener.principal,
            permitted=PERMITTED,
        )

    def turn(self) -> None:
        now = time.monotonic()
        for watched in self.listener.watched:
            watched.process_events()
        for route, frames in self.listener.receive():
            try:
                self.events.append(self.hub.receive(route, frames, now))
            except ProtocolError as error:
                self.faults.append(str(error))
        self.hub.revoke(self.listener.revoked())
        self.events += self.hub.tick(now)
        for route, written in self.hub.outgoing():
            if not self.listener.send(route, written):
                self.hub.unreachable(route, now)
        for route in self.hub.cuts():
            self.listener.cut(route)

    @property
    def lost(self) -> list[str]:
        return [each[1].reason for each in self.events if isinstance(each, tuple) and isinstance(each[1], PeerLost)]

    @property
    def joined(self) -> int:
        return sum(isinstance(each, tuple) and isinstance(each[1], PeerJoined) for each in self.events)


@pytest.fixture
def service(keys: Path) -> Iterator[Service]:
    made = Service(keys)
    yield made
    made.listener.close()


class Peer:
    """A dialer with what it has heard."""

    def __init__(
        self, address: Address, credentials: Credentials | None, role: int = Role.CLIENT, identity: bytes = b"i" * 16
    ) -> None:
        hello = Hello(role, identity, 5, session=1, workers=1, queue_size=1)
        self.uplink = Uplink(hello, time.monotonic(), timeout_seconds=60)
        self.dialer = Dialer(address, self.uplink, credentials=credentials)
        self.events: list[UplinkEvent] = []

    def turn(self) -> None:
        now = time.monotonic()
        self.events += self.dialer.turn(now)
        self.events += self.dialer.flush(now)

    @property
    def up(self) -> bool:
        return self.uplink.state is LinkState.UP

    @property
    def downs(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, LinkDown)]

    @property
    def refusals(self) -> list[str]:
        return [reason for event in self.events if isinstance(event, LinkRefused) for reason in event.reasons]


@contextlib.contextmanager
def peering(address: Address, credentials: Credentials | None, **others: object) -> Iterator[Peer]:
    made = Peer(address, credentials, **others)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.dialer.close()


def until(done: Callable[[], object], *turns: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline
        for turn in turns:
            turn()
        select.select((), (), (), 0.001)


def credentials(keys: Path, role: KeyRole = KeyRole.CLIENT) -> Credentials:
    return load_credentials(keys, [role])


# --- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "role"),
    [
        (KeyRole.CLIENT, Role.CLIENT),
        (KeyRole.WORKER, Role.AGENT),
        (KeyRole.WORKER, Role.MANAGER),
        (KeyRole.WORKER, Role.CLIENT),
        (KeyRole.OPERATOR, Role.OPERATOR),
        (KeyRole.SERVER, Role.OPERATOR),
    ],
)
def test_a_key_of_its_role_is_welcome(service: Service, keys: Path, key: KeyRole, role: int) -> None:
    with peering(service.address, credentials(keys, key), role=role) as peer:
        until(lambda: peer.up, peer.turn, service.turn)


@pytest.mark.parametrize(
    ("key", "role", "what"),
    [
        (KeyRole.CLIENT, Role.AGENT, "an agent"),
        (KeyRole.CLIENT, Role.OPERATOR, "an operator"),
        (KeyRole.CLIENT, Role.MANAGER, "a worker manager"),
        (KeyRole.WORKER, Role.OPERATOR, "an operator"),
        (KeyRole.OPERATOR, Role.CLIENT, "a client"),
        (KeyRole.OPERATOR, Role.AGENT, "an agent"),
    ],
)
def test_hello_gives_nobody_a_role_that_his_key_has_not(
    service: Service, keys: Path, key: KeyRole, role: int, what: str
) -> None:
    with peering(service.address, credentials(keys, key), role=role) as peer:
        until(lambda: peer.refusals, peer.turn, service.turn)
        assert peer.refusals == [f"the key {key.value} has the role {key.value}, which cannot be {what}"]
        assert not service.joined


def test_a_key_that_is_not_in_the_list_is_told_so_at_once(service: Service, keys: Path, tmp_path: Path) -> None:
    pair = new_pair()
    stranger = Credentials.of(KeyRole.CLIENT, "eve", pair, credentials(keys).server)
    with peering(service.address, stranger) as peer:
        until(lambda: peer.refusals, peer.turn, service.turn)
        assert peer.refusals == [
            f"the service at {service.address} does not accept the key eve (client): "
            "it is not in the service's list, or was revoked"
        ]
        assert peer.uplink.epoch == 1, "it has tried again"
    assert not service.joined


def test_a_monitors_key_opens_no_link(service: Service, keys: Path) -> None:
    with peering(service.address, credentials(keys, KeyRole.MONITOR)) as peer:
        until(lambda: peer.refusals, peer.turn, service.turn)
        assert "does not accept the key monitor (monitor)" in peer.refusals[0]


def test_a_client_without_keys_is_told_that_the_service_demands_them(service: Service) -> None:
    with peering(service.address, None) as peer:
        until(lambda: peer.refusals, peer.turn, service.turn)
        assert peer.refusals == [
            f"the service at {service.address} demands keys: give --keys or SCALER_KEYS, or keys= of a Client"
        ]


def test_a_service_with_another_key_or_without_keys_gets_nothing(keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "others", new_pair)
    for served in (tmp_path / "others", None):
        service = Service(served)
        try:
            with peering(service.address, credentials(keys)) as peer:
                until(lambda peer=peer: peer.refusals, peer.turn, service.turn)  # type: ignore[misc]
                assert peer.refusals == [
                    f"if {service.address} is the scheduler's address for monitors, give the scheduler's own, whose "
                    f"port is {service.address.port - 2} by default, or that of object storage, "
                    f"{service.address.port - 1}; otherwise the service at {service.address} has another key than the "
                    "one that the key client was made for, or uses no keys: give its keys (--keys, SCALER_KEYS, keys= "
                    "of a Client), or say --insecure (insecure=True) if it has none"
                ]
            assert not service.events and not service.faults
        finally:
            service.listener.close()


def test_a_service_that_comes_back_with_another_key_is_not_spoken_to(keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "others", new_pair)
    service = Service(keys)
    with peering(service.address, credentials(keys)) as peer:
        until(lambda: peer.up, peer.turn, service.turn)
        service.listener.close()
        until(lambda: not peer.up, peer.turn)
        other = Service(tmp_path / "others", service.address)
        try:
            until(lambda: any("has another key" in reason for reason in peer.downs), peer.turn, other.turn)
            assert not peer.refusals, "the right one may come back"
            assert not other.events
        finally:
            other.listener.close()
        again = Service(keys, service.address)
        until(lambda: peer.up, peer.turn, again.turn)
        again.listener.close()


def test_a_service_that_is_too_busy_to_answer_is_not_taken_for_another_one(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("sockets", "zeromq"):
        monkeypatch.setattr(f"scaler_io.transport.{module}.HANDSHAKE_MS", 600)
    service = Service(keys)
    with peering(service.address, credentials(keys)) as peer:
        until(lambda: len(peer.downs) >= 5, peer.turn)
        assert not peer.refusals
        assert not any("has another key" in reason for reason in peer.downs)
        until(lambda: peer.up, peer.turn, service.turn)
    service.listener.close()


class Door:
    """A port before a service that is not there: it says this much to each connection, and closes it.

    It keeps the second one of those that arrive together for a while.
    """

    def __init__(self, said: bytes, seconds: float) -> None:
        self._said, self._seconds, self._listener = said, seconds, socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._kept: list[tuple[float, socket.socket]] = []
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])

    def turn(self) -> None:
        now, seconds = time.monotonic(), 0.0
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                with contextlib.suppress(ConnectionError):
                    connection.sendall(self._said)
                self._kept.append((now + seconds, connection))
                seconds = self._seconds
        for until_then, connection in self._kept:
            if until_then <= now:
                with connection, contextlib.suppress(ConnectionError):
                    connection.shutdown(socket.SHUT_WR)  # what is unread would have the kernel send a reset
        self._kept = [(until_then, connection) for until_then, connection in self._kept if until_then > now]

    def close(self) -> None:
        self._listener.close()
        for _, connection in self._kept:
            connection.close()


@pytest.mark.parametrize(
    ("said", "seconds"),
    [(b"", 0.0), (GREETING, 0.0), (GREETING, 0.02)],
    ids=["a proxy", "a service that ends", "a service that is full"],
)
def test_whoever_closes_each_connection_is_not_taken_for_a_service_with_another_key(
    keys: Path, said: bytes, seconds: float
) -> None:
    door = Door(said, seconds)
    with peering(door.address, credentials(keys)) as peer:
        until(lambda: len(peer.downs) >= 5 or peer.refusals, peer.turn, door.turn)
        assert any("has another key" in reason for reason in peer.downs)
        assert not peer.refusals
        door.close()
        service = Service(keys, door.address)
        until(lambda: peer.up, peer.turn, service.turn)
        service.listener.close()


def test_unix_sockets_need_no_keys(keys: Path, tmp_path: Path) -> None:
    service = Service(keys, Address(path=str(tmp_path / "service")))
    try:
        with (
            peering(service.address, None, identity=b"a" * 16) as one,
            peering(service.address, credentials(keys), identity=b"b" * 16) as other,
        ):
            until(lambda: one.up and other.up, one.turn, other.turn, service.turn)
    finally:
        service.listener.close()


# --- what a key may do ------------------------------------------------------------------------------------------------


def test_an_identity_belongs_to_its_key(service: Service, keys: Path) -> None:
    handed = add_key(keys, "eve", KeyRole.CLIENT, new_pair)
    with peering(service.address, credentials(keys)) as peer, peering(service.address, credentials(handed)) as eve:
        until(lambda: peer.up, peer.turn, service.turn)
        until(lambda: eve.refusals, eve.turn, peer.turn, service.turn)
        assert eve.refusals == ["another peer has this identity"]
        assert peer.up and not service.lost


def test_a_routing_id_of_another_key_reaches_neither_its_peer_nor_gets_its_messages(
    service: Service, keys: Path
) -> None:
    handed = add_key(keys, "eve", KeyRole.CLIENT, new_pair)
    with peering(service.address, credentials(keys)) as peer:
        until(lambda: peer.up, peer.turn, service.turn)
        stolen = peer.dialer._secret
        route = next(iter(service.hub._routes))
        frames = [HEADER.pack(1, 0), *map(bytes, encode(Goodbye("I am the peer, and leave")))]
        peer.dialer._drop()
        until(lambda: not service.listener.send(route, frames))  # its routing id is free now, and the peer is not lost
        with peering(service.address, credentials(handed)) as eve:
            eve.dialer._secret = stolen
            eve.uplink._epoch = 0
            eve.uplink.opened = lambda now: _begin_epoch_one(eve, now)  # type: ignore[method-assign]
            until(lambda: eve.dialer._connection is not None, eve.turn, service.turn)
            connection = eve.dialer._connection
            assert connection is not None
            until(lambda: connection.send(frames) and service.hub.refused_frames, service.turn)
            assert not service.lost, "the message counted as the peer's"
            assert not service.listener.send(route, frames), "what is for the peer goes to another key"


def _begin_epoch_one(eve: Peer, now: float) -> None:
    eve.uplink._epoch, eve.uplink.state, eve.uplink._silent_since = 1, LinkState.GREETING, now


def test_only_messages_of_a_role_reach_the_core(service: Service, keys: Path) -> None:
    with peering(service.address, credentials(keys)) as peer:
        until(lambda: peer.up, peer.turn, service.turn)
        peer.dialer.send(Shutdown())
        peer.dialer.send(Cancel((1,)))
        until(lambda: (b"i" * 16, Cancel((1,))) in service.events, peer.turn, service.turn)
        assert service.faults == ["a client may not send Shutdown"]
        assert (b"i" * 16, Shutdown()) not in service.events


# --- revocation -------------------------------------------------------------------------------------------------------


def test_a_revoked_key_loses_its_connection_at_once_and_others_stay(service: Service, keys: Path) -> None:
    handed = add_key(keys, "ada", KeyRole.CLIENT, new_pair)
    with (
        peering(service.address, credentials(handed), identity=b"a" * 16) as ada,
        peering(service.address, credentials(keys)) as other,
    ):
        until(lambda: ada.up and other.up, ada.turn, other.turn, service.turn)
        revoke_key(keys, "ada")
        until(lambda: ada.refusals, ada.turn, other.turn, service.turn)
        assert service.lost == ["its key is accepted no longer"]
        assert "does not accept the key ada (client)" in ada.refusals[0]
        other.dialer.send(Cancel((7,)))
        until(lambda: (b"i" * 16, Cancel((7,))) in service.events, other.turn, service.turn)
        assert sum(isinstance(event, LinkUp) for event in other.events) == 1


def test_what_a_revoked_key_had_sent_is_not_read(service: Service, keys: Path) -> None:
    handed = add_key(keys, "ada", KeyRole.CLIENT, new_pair)
    with peering(service.address, credentials(handed)) as ada:
        until(lambda: ada.up, ada.turn, service.turn)
        ada.dialer.send(Cancel((1,)))
        ada.turn()
        assert select.select([service.listener.fileno()], [], [], SECONDS)[0]
        revoke_key(keys, "ada")
        service.listener.revoked()
        until(lambda: ada.refusals, ada.turn, service.turn)
        assert (b"i" * 16, Cancel((1,))) not in service.events


def test_a_key_is_accepted_as_soon_as_it_is_added(service: Service, keys: Path) -> None:
    handed = add_key(keys, "ada", KeyRole.CLIENT, new_pair)
    with peering(service.address, credentials(handed)) as ada:
        until(lambda: ada.up, ada.turn, service.turn)


def test_a_list_that_is_torn_leaves_the_last_one_valid(
    service: Service, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (keys / "authorized.toml").write_text('[[key]]\nrole = "cl')
    with peering(service.address, credentials(keys)) as peer:
        until(lambda: peer.up, peer.turn, service.turn)
    assert "the former one stays valid" in caplog.text
    assert caplog.text.count("authorized.toml: line 2 is neither") == 1


# --- strangers --------------------------------------------------------------------------------------------------------


def test_a_message_beyond_the_limit_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeromq, "MESSAGE_MOST", 4096)
    service = Service(None)
    with peering(service.address, None) as peer, zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        until(lambda: peer.up, peer.turn, service.turn)
        monitor = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        stranger.linger = 0
        stranger.connect(str(service.address))
        stranger.send(bytes(4097))
        until(lambda: monitor.poll(0), peer.turn, service.turn)
        stranger.disable_monitor()
        assert not service.faults, "it was received"
        peer.dialer.send(Cancel((1,)))
        until(lambda: (b"i" * 16, Cancel((1,))) in service.events, peer.turn, service.turn)
        context.destroy(linger=0)
    service.listener.close()


def test_whoever_connects_and_says_nothing_is_cut_off_after_two_seconds(service: Service) -> None:
    import socket

    with socket.create_connection((service.address.host, service.address.port)) as silent:
        silent.setblocking(False)
        began = time.monotonic()
        ended = []

        def look() -> None:
            with contextlib.suppress(BlockingIOError):
                if not silent.recv(4096):
                    ended.append(time.monotonic() - began)

        until(lambda: ended, look, service.turn)
        assert ended[0] > 1.0


# --- monitors ---------------------------------------------------------------------------------------------------------


class Monitored:
    """A publisher at a TCP address and a Unix socket."""

    def __init__(self, keys: Path, tmp_path: Path) -> None:
        self.publisher = Publisher(AuthorizedKeys(keys))
        probe = Listener(LOOPBACK)
        self.address = probe.address
        probe.close()
        self.local = Address(path=str(tmp_path / "monitor"))
        self.publisher.bind(self.address)
        self.publisher.bind(self.local)
        self.joined = 0

    def turn(self) -> None:
        for watched in self.publisher.watched:
            watched.process_events()
        self.joined += self.publisher.joined()
        self.publisher.close_revoked()
        self.publisher.send([bytes(16), b"status"])


@pytest.fixture
def monitored(keys: Path, tmp_path: Path) -> Iterator[Monitored]:
    made = Monitored(keys, tmp_path)
    yield made
    made.publisher.close()


@contextlib.contextmanager
def subscribing(address: Address, credentials: Credentials | None) -> Iterator[Subscriber]:
    made = Subscriber(address, credentials)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("role", [KeyRole.MONITOR, KeyRole.OPERATOR, KeyRole.SERVER])
def test_keys_that_may_monitor_are_sent_what_is_published(monitored: Monitored, keys: Path, role: KeyRole) -> None:
    with subscribing(monitored.address, credentials(keys, role)) as subscriber:
        until(lambda: subscriber.receive(), monitored.turn)
        assert not subscriber.problem


@pytest.mark.parametrize("role", [KeyRole.CLIENT, KeyRole.WORKER])
def test_keys_that_may_not_monitor_are_told_so(monitored: Monitored, keys: Path, role: KeyRole) -> None:
    with subscribing(monitored.address, credentials(keys, role)) as subscriber:
        until(lambda: subscriber.receive() or subscriber.problem, monitored.turn)
        assert f"does not accept the key {role.value}" in subscriber.problem


def test_a_monitor_without_keys_is_told_that_they_are_demanded(monitored: Monitored) -> None:
    with subscribing(monitored.address, None) as subscriber:
        until(lambda: subscriber.receive() or subscriber.problem, monitored.turn)
        assert "demands keys" in subscriber.problem


def test_a_monitor_of_this_user_on_this_host_needs_no_keys(monitored: Monitored) -> None:
    with subscribing(monitored.local, None) as subscriber:
        until(lambda: subscriber.receive(), monitored.turn)


def test_a_monitor_whose_key_is_revoked_is_sent_nothing_more(monitored: Monitored, keys: Path) -> None:
    handed = add_key(keys, "wall", KeyRole.MONITOR, new_pair)
    with (
        subscribing(monitored.address, credentials(handed, KeyRole.MONITOR)) as wall,
        subscribing(monitored.address, credentials(keys, KeyRole.MONITOR)) as other,
    ):
        heard: set[Subscriber] = set()
        both = lambda: heard.update(each for each in (wall, other) if each.receive())  # noqa: E731
        until(lambda: len(heard) == 2, monitored.turn, both)
        revoke_key(keys, "wall")
        until(lambda: wall.problem, monitored.turn, wall.receive)
        heard.clear()
        until(lambda: other in heard, monitored.turn, both)
        assert "does not accept the key wall" in wall.problem
        assert wall not in heard


def test_a_monitor_comes_back_after_a_service_without_keys(monitored: Monitored, keys: Path) -> None:
    """ZeroMQ itself gives up a connection to a service with another mechanism, or one that refuses the key."""
    monitored.publisher.close()
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
    with (
        socket.create_server((monitored.address.host, monitored.address.port)) as stranger,
        subscribing(monitored.address, credentials(keys, KeyRole.MONITOR)) as subscriber,
    ):
        with stranger.accept()[0] as connection:
            connection.sendall(greeting)
            until(lambda: subscriber.problem, subscriber.receive)
        stranger.close()
        monitored.publisher = Publisher(AuthorizedKeys(keys))
        monitored.publisher.bind(monitored.address)
        until(lambda: subscriber.receive(), monitored.turn)
        assert not subscriber.problem


def test_a_monitor_comes_back_when_its_key_is_accepted_again(monitored: Monitored, keys: Path) -> None:
    handed = add_key(keys, "wall", KeyRole.MONITOR, new_pair)
    its, accepted = credentials(handed, KeyRole.MONITOR), (keys / AUTHORIZED).read_text("utf-8")
    revoke_key(keys, "wall")
    with subscribing(monitored.address, its) as wall:
        until(lambda: wall.problem, monitored.turn, wall.receive)
        (keys / AUTHORIZED).write_text(accepted, "utf-8")
        until(lambda: wall.receive(), monitored.turn)
        assert not wall.problem


def test_frames_without_a_key_are_not_read(service: Service) -> None:
    assert service.listener._gate is not None

    class FrameWithout:
        def get(self, name: str) -> str:
            raise zmq.ZMQError(zmq.EINVAL)

    assert not service.listener._gate.key_of(FrameWithout())
