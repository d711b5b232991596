"""Two rigs for tests of links, in memory and over ZeroMQ through faulty relays; and servers of objects."""

from __future__ import annotations

import math
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scaler_io.links.effects import Effect, Send
from scaler_io.links.events import HubEvent, LinkUp, PeerJoined, PeerLost, UplinkEvent
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.links.streams import HEADER, Frames
from scaler_io.links.uplink import Uplink
from scaler_io.objects import connection_thread
from scaler_io.objects.connection import ObjectConnection
from scaler_io.service.server_loop import ServiceTurn
from scaler_io.simulation.network import MemoryConnection, MemoryDialer, MemoryListener, MemoryNetwork, MemoryShell
from scaler_io.transport.endpoint import EpochConnection, EpochDialer
from scaler_io.transport.zeromq import Dialer, Listener
from scaler_protocol.addresses import Address
from scaler_protocol.codec import decode, encode
from scaler_protocol.handshake import Heartbeat, Hello, Refused, Role, Welcome
from scaler_protocol.messages import Cancel, Message
from support.relays import Relay
from support.storage_processes import ANY_PORT, StorageProcess

HEARTBEAT = 0.1
GRACE = 0.5
SILENCE = 1.0
TIMEOUT = 3.0
PATIENCE_OF_TESTS = 20.0


class RecordingCore:
    """A core that remembers what it was told, and says what tests put into its outbox."""

    def __init__(self) -> None:
        self.events: list[tuple[bytes, HubEvent]] = []
        self.outbox: list[tuple[bytes, Message]] = []
        self.fails_at: set[int] = set()

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        if isinstance(event, Cancel) and self.fails_at.intersection(event.tasks):
            raise ZeroDivisionError("a core has a bug")
        self.events.append((peer, event))

    def settle(self, now: float) -> list[Effect]:
        said, self.outbox = self.outbox, []
        return [Send(to, message) for to, message in said]

    def due(self) -> float | None:
        return None

    def joins(self, peer: bytes) -> list[bool]:
        """For every epoch of the peer, whether it resumed."""
        return [event.resumed for who, event in self.events if who == peer and isinstance(event, PeerJoined)]

    def losses(self, peer: bytes) -> list[str]:
        return [event.reason for who, event in self.events if who == peer and isinstance(event, PeerLost)]

    @property
    def objects_left(self) -> list[int]:
        """What each peer that is gone has left behind."""
        return [event.objects_left for _, event in self.events if isinstance(event, PeerLost)]

    def numbers(self, peer: bytes) -> list[int]:
        """What the peer said, of `numbered` messages."""
        return [n for who, event in self.events if who == peer and isinstance(event, Cancel) for n in event.tasks]


class RecordingService:
    """A Hub and its core behind a listener, until it is killed."""

    def __init__(self, listener: Listener | MemoryListener, incarnation: int, clock: Callable[[], float]) -> None:
        self.incarnation = incarnation
        self.listener = listener
        self.core = RecordingCore()
        self.refusals: list[str] = []
        self.timeouts = PeerTimeouts(GRACE, SILENCE)
        self.hub = Hub(incarnation, admit=self.admit, timeouts=lambda hello: self.timeouts, heartbeat_seconds=HEARTBEAT)
        self.service = ServiceTurn("Test", listener, self.hub, self.core, lambda: None, clock)
        self.shell: MemoryShell | None = None

    def admit(self, hello: Hello) -> Welcome | Refused:
        return Refused(self.refusals) if self.refusals else Welcome(self.incarnation)

    def say(self, to: bytes, *numbers: int) -> None:
        """Numbered messages, at the next turn."""
        self.core.outbox += [(to, Cancel((number,))) for number in numbers]
        if self.shell is not None:
            self.shell.wake()


class RecordingClient:
    """An Uplink that remembers what it was told."""

    def __init__(self, dialer: MemoryDialer | Dialer, identity: bytes) -> None:
        self.identity = identity
        self.dialer = dialer
        self.uplink = dialer.uplink
        self.events: list[UplinkEvent] = []
        self.paused = False
        self.shell: MemoryShell | None = None

    def turn(self, now: float) -> float:
        if self.paused:
            return math.inf
        self.events += self.dialer.turn(now)
        self.events += self.dialer.flush(now)
        return self.uplink.due()

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True
        if self.shell is not None:
            self.shell.stop()

    def resume(self) -> None:
        """SIGCONT."""
        self.paused = False
        if self.shell is not None:
            self.shell.resume()

    def say(self, *numbers: int) -> None:
        """Numbered messages, at the next turn."""
        for number in numbers:
            self.uplink.send(Cancel((number,)))
        if self.shell is not None:
            self.shell.wake()

    @property
    def ups(self) -> list[bool]:
        """For every Welcome, whether the link resumed."""
        return [event.resumed for event in self.events if isinstance(event, LinkUp)]

    @property
    def numbers(self) -> list[int]:
        return [number for event in self.events if isinstance(event, Cancel) for number in event.tasks]

    @property
    def connection(self) -> EpochConnection:
        """The current one."""
        dialer: EpochDialer[EpochConnection] = self.dialer  # type: ignore[assignment]
        assert dialer._connection is not None
        return dialer._connection


class RawPeer:
    """Somebody on the wire who keeps no rules."""

    def __init__(self, connection: EpochConnection, service: RecordingService, rig: Rig) -> None:
        self.heard: list[Message] = []
        self._connection = connection
        self._rig = rig

    def throw(self, *messages: Frames) -> None:
        """Send frames as they are."""
        for frames in messages:
            assert self._connection.send(frames)

    def tell(self, message: Message, sequence: int = 0, acknowledged: int = 0) -> None:
        """Send a message under a header of one's own."""
        self.throw([HEADER.pack(sequence, acknowledged), *encode(message)])

    def answer(self) -> Message:
        """The next message that is no heartbeat: these come at any time."""
        self._rig.until(lambda: any(not isinstance(each, Heartbeat) for each in self.listen().heard))
        while isinstance(answer := self.heard.pop(0), Heartbeat):
            pass
        return answer

    def listen(self) -> RawPeer:
        self.heard += [decode(frames[1:]) for frames in self._connection.receive(1000)]
        return self


class Rig(ABC):
    """A service, its clients, and what happens between them."""

    def __init__(self) -> None:
        self.clients: list[RecordingClient] = []
        self.service = self.serve(1)

    @abstractmethod
    def serve(self, incarnation: int) -> RecordingService:
        """A service at the address of the rig."""

    @abstractmethod
    def dial(self, uplink: Uplink, identity: bytes) -> RecordingClient:
        """A client."""

    @abstractmethod
    def until(self, done: Callable[[], bool]) -> None:
        """Run until this holds; it has to."""

    @abstractmethod
    def run(self, seconds: float) -> None:
        """Let time pass."""

    @property
    @abstractmethod
    def now(self) -> float:
        """The time."""

    @abstractmethod
    def cut(self, client: RecordingClient) -> None:
        """Break its connection, and lose what is under way."""

    @abstractmethod
    def half_open(self, client: RecordingClient) -> None:
        """Break its connection so that the service does not notice."""

    @abstractmethod
    def swallow(self, client: RecordingClient) -> None:
        """From now on nothing of this connection arrives, and nobody notices."""

    @abstractmethod
    def hold(self, client: RecordingClient) -> None:
        """From now on everything of this connection is held on its way."""

    @abstractmethod
    def kill(self, client: RecordingClient) -> None:
        """SIGKILL."""

    @abstractmethod
    def kill_service(self) -> None:
        """SIGKILL."""

    @abstractmethod
    def raw(self) -> RawPeer:
        """Somebody who keeps no rules."""

    @abstractmethod
    def close(self) -> None:
        """Free everything."""

    def client(
        self, identity: bytes = b"i" * 16, incarnation: int = 5, *, timeout: float = TIMEOUT, up: bool = True
    ) -> RecordingClient:
        """A client, by default connected."""
        hello = Hello(Role.CLIENT, identity, incarnation, session=1)
        made = self.dial(Uplink(hello, self.now, timeout_seconds=timeout), identity)
        self.clients.append(made)
        if up:
            self.until(lambda: made.ups == [False])
        return made

    def restart(self, incarnation: int) -> None:
        """SIGKILL the service, and start another one at its address."""
        self.kill_service()
        self.service = self.serve(incarnation)

    def heard(self, client: RecordingClient) -> list[int]:
        """The numbers that the service has of the client."""
        return self.service.core.numbers(client.identity)

    def hello(self, client: RecordingClient, epoch: int, peer_incarnation: int) -> Hello:
        """A Hello as the client might say it."""
        return replace(client.uplink._hello, epoch=epoch, peer_incarnation=peer_incarnation)


class MemoryRig(Rig):
    """Over a MemoryNetwork, on its clock."""

    ADDRESS = Address("service", 1)

    def __init__(self) -> None:
        self.network = MemoryNetwork(seed=3)
        super().__init__()

    @property
    def now(self) -> float:
        return self.network.now

    def serve(self, incarnation: int) -> RecordingService:
        listener = MemoryListener(self.network, self.ADDRESS)
        service = RecordingService(listener, incarnation, self.network.clock)
        service.shell = self.network.attach(service.service.turn, listener)
        return service

    def dial(self, uplink: Uplink, identity: bytes) -> RecordingClient:
        dialer = MemoryDialer(self.network, self.ADDRESS, uplink)
        client = RecordingClient(dialer, identity)
        client.shell = self.network.attach(client.turn, dialer)
        return client

    def until(self, done: Callable[[], bool]) -> None:
        assert self.network.run_until(done, PATIENCE_OF_TESTS)

    def run(self, seconds: float) -> None:
        self.network.run(seconds)

    def _connection(self, client: RecordingClient) -> MemoryConnection:
        connection = client.connection
        assert isinstance(connection, MemoryConnection)
        return connection

    def cut(self, client: RecordingClient) -> None:
        self._connection(client).cut()

    def half_open(self, client: RecordingClient) -> None:
        self._connection(client).cut(listener_notices=False)

    def swallow(self, client: RecordingClient) -> None:
        self._connection(client).cut(listener_notices=False, dialer_notices=False)

    def hold(self, client: RecordingClient) -> None:
        self._connection(client).stall(1000)

    def kill(self, client: RecordingClient) -> None:
        assert client.shell is not None
        client.shell.kill()
        self.clients.remove(client)

    def kill_service(self) -> None:
        assert self.service.shell is not None
        self.service.shell.kill()

    def raw(self) -> RawPeer:
        dialer = MemoryDialer(self.network, self.ADDRESS, Uplink(Hello(0, b"", 0), 0, timeout_seconds=1))
        return RawPeer(dialer._connect(1), self.service, self)

    def close(self) -> None:
        pass


class ZeroMQRig(Rig):
    """Over ZeroMQ, on the clock of the wall; every client comes through a relay of its own."""

    def __init__(self) -> None:
        self._address = Address("127.0.0.1", 0)
        self._relays: dict[int, Relay] = {}
        self._closing: list[Callable[[], None]] = []
        super().__init__()

    @property
    def now(self) -> float:
        return time.monotonic()

    def serve(self, incarnation: int) -> RecordingService:
        listener = Listener(self._address)
        self._address = listener.address
        return RecordingService(listener, incarnation, time.monotonic)

    def dial(self, uplink: Uplink, identity: bytes) -> RecordingClient:
        relay = Relay(self._address)
        client = RecordingClient(Dialer(relay.address, uplink), identity)
        self._relays[id(client)] = relay
        return client

    def until(self, done: Callable[[], bool]) -> None:
        self._turns(done, PATIENCE_OF_TESTS)
        assert done()

    def run(self, seconds: float) -> None:
        self._turns(lambda: False, seconds)

    def _turns(self, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done() and time.monotonic() < deadline:
            now = time.monotonic()
            due = min([self.service.service.turn(now), *(client.turn(now) for client in self.clients)])
            ends: Sequence[Listener | Dialer | MemoryListener | MemoryDialer]
            ends = [self.service.listener, *(client.dialer for client in self.clients if not client.paused)]
            if not any(end.readable() for end in ends) and not done():
                watched = [self.service.listener.fileno()]  # type: ignore[union-attr]
                for client in self.clients:
                    watched += client.dialer.filenos()  # type: ignore[union-attr]
                select.select(watched, (), (), min(0.005, max(0.0, min(due, deadline) - time.monotonic())))

    def cut(self, client: RecordingClient) -> None:
        self._relays[id(client)].cut()

    def half_open(self, client: RecordingClient) -> None:
        self._relays[id(client)].half_open()

    def swallow(self, client: RecordingClient) -> None:
        self._relays[id(client)].swallow()

    def hold(self, client: RecordingClient) -> None:
        self._relays[id(client)].hold()

    def kill(self, client: RecordingClient) -> None:
        client.dialer._drop()
        self.clients.remove(client)
        self._closing.append(client.dialer.close)

    def kill_service(self) -> None:
        self.service.listener.close()

    def raw(self) -> RawPeer:
        dialer = Dialer(self._address, Uplink(Hello(0, b"", 0), 0, timeout_seconds=1))
        connection = dialer._connect(1)
        self._closing += [connection.close, dialer.close]
        return RawPeer(connection, self.service, self)

    def close(self) -> None:
        for client in self.clients:
            client.dialer.close()
        for close in self._closing:
            close()
        self.service.listener.close()
        for relay in self._relays.values():
            relay.close()


@pytest.fixture(params=[MemoryRig, ZeroMQRig], ids=["memory", "zeromq"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """The same wire twice."""
    made: Rig = request.param()
    yield made
    made.close()


@pytest.fixture
def memory_rig() -> MemoryRig:
    """Only the one in memory, which can do more."""
    return MemoryRig()


# --- object storage -------------------------------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., StorageProcess]]:
    """Starts object storage servers, whose segments tests can see."""
    servers: list[StorageProcess] = []

    def started(*words: str, address: str = ANY_PORT) -> StorageProcess:
        servers.append(StorageProcess(*words, address=address, segments=tmp_path / "segments"))
        return servers[-1]

    yield started
    for server in servers:
        server.end()


@pytest.fixture
def server(start: Callable[..., StorageProcess]) -> StorageProcess:
    """An object storage server."""
    return start()


@pytest.fixture
def connect() -> Iterator[Callable[..., ObjectConnection]]:
    """Connects a client of session 1, unless it is told otherwise, and closes the connection after the test."""
    connections: list[ObjectConnection] = []

    def connected(
        address: Address, session: int = 1, role: int = Role.CLIENT, timeout_seconds: float = 60, **others: Any
    ) -> ObjectConnection:
        connections.append(
            ObjectConnection(address, session=session, role=role, timeout_seconds=timeout_seconds, **others)
        )
        return connections[-1]

    yield connected
    for connection in connections:
        connection.close()


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if object storage were on another host."""
    monkeypatch.setattr(connection_thread, "read_token", lambda directory: b"")
