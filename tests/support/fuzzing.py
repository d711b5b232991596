"""Recorded messages of clients, agents and workers to both services, and what becomes of them on a bad day."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from scaler_io.links.events import HubEvent, PeerLost
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.links.streams import HEADER, cut, join
from scaler_protocol.codec import encode
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Hello, Refused, Role, ServiceKind, Welcome
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.core import SchedulerCore
from scaler_scheduler.core.permissions import PERMITTED as SCHEDULER_PERMITTED
from scaler_storage.engine.engine import PERMITTED as STORAGE_PERMITTED
from scaler_storage.engine.engine import StorageEngine
from scaler_storage.engine.segments import MemorySegments
from support.intruders import hello
from world.cluster import World
from world.objects import ObjectWorld
from world.plans import Plan

_EXTREMES = (0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
_NUMBER = struct.Struct("<Q")
_TURN_MESSAGES = 64
_CHECK_TURNS = 16
_LONGEST = 50_000
"""Longer recorded messages differ from shorter ones in nothing that a mutation meets."""


@contextmanager
def recording() -> Iterator[list[bytes]]:
    """Collects what hubs receive, as it travels."""
    recorded: list[bytes] = []
    receive = Hub.receive

    def record(self: Hub, route: bytes, frames: list[bytes], now: float) -> tuple[bytes, HubEvent] | None:
        recorded.append(join(frames))
        return receive(self, route, frames, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hub, "receive", record)
        yield recorded


def scheduler_traffic() -> list[bytes]:
    """What clients and agents tell a scheduler: calls, nested ones, graphs, failures, a restart."""
    with recording() as recorded:
        world = World(1, hosts=[2, 1], clients=2)
        client = world.clients[0]
        futures = client.submit(*[Plan(0.001)] * 20, Plan(0.001, raises=1), Plan(0.01, kills_worker=1))
        futures += client.submit(Plan(0.001, children=(Plan(0.001), Plan(0.001)), waits=True))
        futures += client.graph([Plan(0.001)] * 6, [(), (), (0, 1), (2,), (2, 3), (4,)], [5])
        futures += world.clients[1].map(*[Plan(0.001)] * 10)
        world.run(0.02)
        world.clients[1].cancel(*futures[-3:])
        world.finish(60.0)
    return [written for written in recorded if len(written) < _LONGEST]


def storage_traffic(folder: Path) -> list[bytes]:
    """What workers, here and elsewhere, tell object storage: writes, reads, mappings."""
    with recording() as recorded:
        world = ObjectWorld(folder)
        for number, writer in enumerate(world.processes):
            put = writer.put(bytes([number]) * 16, bytes(20_000))
            world.run(1.0)
            for reader in world.processes:
                reader.get(put.reference)
        world.run(5.0)
        world.close()
    return [written for written in recorded if len(written) < _LONGEST]


class Mutations:
    """Makes messages that nobody sends out of those that somebody sent."""

    def __init__(self, recorded: Sequence[bytes], seed: int) -> None:
        self._recorded, self._random = recorded, random.Random(seed)
        self._ways = (
            self._flip,
            self._flip,
            self._overwrite,
            self._overwrite,
            self._truncate,
            self._repeat,
            self._join,
        )

    def next(self) -> bytes:
        """One more, sometimes unchanged."""
        chosen = bytearray(self._random.choice(self._recorded))
        for _ in range(self._random.choice((0, 1, 1, 1, 2, 5))):
            self._random.choice(self._ways)(chosen)
        return bytes(chosen)

    def _place(self, message: bytearray) -> int:
        return self._random.randrange(max(1, len(message)))

    def _flip(self, message: bytearray) -> None:
        if message:
            message[self._place(message)] ^= 1 << self._random.randrange(8)

    def _overwrite(self, message: bytearray) -> None:
        at = self._place(message) // 8 * 8
        if at + 8 <= len(message):
            _NUMBER.pack_into(message, at, self._random.choice((*_EXTREMES, self._random.getrandbits(64))))

    def _truncate(self, message: bytearray) -> None:
        del message[self._place(message) :]

    def _repeat(self, message: bytearray) -> None:
        at = self._place(message)
        message[at:at] = message[at : at + self._random.randrange(1, 200)]

    def _join(self, message: bytearray) -> None:
        message[self._place(message) :] = self._random.choice(self._recorded)[self._random.randrange(200) :]


class CheckedCore(Protocol):
    """The core or engine of a service, which knows its invariants."""

    def admit(self, hello: Hello) -> Welcome | Refused:
        """Decide whether a peer may connect."""

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Handle one event."""

    def settle(self, now: float) -> Sequence[object]:
        """Make all pending decisions."""

    def check(self) -> None:
        """Assert the invariants."""


class Port:
    """A service without its socket, with a client and an agent that send anything."""

    def __init__(self, service: int) -> None:
        self.refused = self.taken = 0
        self._service, self._now = service, 0.0
        self._core: CheckedCore
        if service == ServiceKind.SCHEDULER:
            self._core = SchedulerCore(7, SchedulerConfig(max_session_bytes=2**26))
            permitted = SCHEDULER_PERMITTED
        else:
            self._core = StorageEngine(7, MemorySegments(directory="/segments"), 2**26)
            permitted = STORAGE_PERMITTED
        timeouts = PeerTimeouts(0.5, 60.0)
        self._hub = Hub(7, admit=self._core.admit, timeouts=lambda hello: timeouts, permitted=permitted)
        self._received: dict[bytes, int] = {}
        """The last sequence of each route."""

    def send(self, messages: Callable[[], bytes], count: int, seed: int) -> None:
        """Receive so many messages. Whatever is not a ProtocolError is a fault of the service."""
        moments = random.Random(seed)
        routes = [b"client", b"agent", b"stranger"]
        for number in range(count):
            route = moments.choice(routes)
            if route != b"stranger" and not self._hub.has_peer(route):
                self._greet(route)
            self._receive(route, self._numbered(route, messages(), moments))
            if number % _TURN_MESSAGES == 0:
                self._turn(check=number % (_TURN_MESSAGES * _CHECK_TURNS) == 0)
        self._turn(check=True)

    def _greet(self, route: bytes) -> None:
        greeting = hello(Role.AGENT if route == b"agent" else Role.CLIENT, self._service)
        self._received[route] = 0
        self._receive(route, join([HEADER.pack(0, 0), *encode(greeting)]))

    def _numbered(self, route: bytes, written: bytes, moments: random.Random) -> bytes:
        """Most messages have the number that is due, since others are not even read."""
        if moments.random() < 0.05 or len(written) < 24 or route not in self._received:
            return written
        return written[:8] + HEADER.pack(self._received[route] + 1, 0) + written[24:]

    def _receive(self, route: bytes, written: bytes) -> None:
        frames = cut(written)
        number = self._received.get(route, 0) + 1
        if frames and frames[0][:8] == _NUMBER.pack(number):
            self._received[route] = number
        try:
            received = self._hub.receive(route, frames, self._now)
            if received is not None:
                self._core.handle(*received, self._now)
                self.taken += 1
        except ProtocolError:
            self.refused += 1

    def _turn(self, *, check: bool) -> None:
        self._now += 0.05
        for peer, event in self._hub.tick(self._now):
            assert isinstance(event, PeerLost)
            self._core.handle(peer, event, self._now)
        self._core.settle(self._now)
        self._hub.outgoing()
        self._hub.cuts()
        if check:
            self._core.check()
