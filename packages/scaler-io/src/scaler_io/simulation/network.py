"""A network in memory, on a clock of its own: what the links of a cluster go through, without sockets or time. Pure.

Frames are really made and read, so what works here works on a wire. One connection is one epoch, and fails as real
ones do: what is under way when it breaks is lost from some message on, in each direction by itself; either side may go
on believing in it (half-open); what was not lost may arrive after the next epoch began (stale), and through a proxy
even at the next incarnation of the service; messages may stand still for a while (stall); processes are killed,
stopped, or vanish with their host. Equal seeds give equal histories.

    network = MemoryNetwork(seed=1)
    listener = MemoryListener(network, address)
    dialer = MemoryDialer(network, address, uplink)
    network.attach(ServiceTurn(name, listener, hub, core, stop, network.clock).turn, listener)
    network.attach(turn_of_the_client, dialer)
    dialer.connection.cut(up_lost=2)
    network.run(60)
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from itertools import count
from random import Random

from scaler_io.links.streams import Frames, cut, join
from scaler_io.links.uplink import Uplink
from scaler_io.simulation.processes import MemoryEndpoint, MemoryShell
from scaler_io.transport.endpoint import TURN_MESSAGES, EpochDialer
from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError

__all__ = ["MemoryConnection", "MemoryDialer", "MemoryListener", "MemoryNetwork", "MemoryPipe", "MemoryShell"]

LATENCY_SECONDS = 0.0002
_ROUTE_BYTES = 20


class MemoryPipe:
    """One direction of a connection: in order, each message `latency` after it was sent."""

    def __init__(self, network: MemoryNetwork, deliver: Callable[[list[bytes]], None]) -> None:
        self._network = network
        self._deliver = deliver
        self._flying: deque[tuple[float, list[bytes]]] = deque()
        self._stalled_until = -math.inf
        self.closed = False

    def __len__(self) -> int:
        """Messages under way."""
        return len(self._flying)

    def send(self, frames: Frames) -> None:
        """Put a message on the wire; into a closed one it falls unnoticed."""
        if not self.closed:
            at = max(self._network.now + self._network.latency, self._stalled_until)
            self._flying.append((at, cut(join(frames))))
            self._network.at(at, self._arrive)

    def lose(self, messages: int | None) -> None:
        """The last `messages` of what is under way are lost; None leaves it to the network's seed."""
        lost = self._network.random.randint(0, len(self._flying)) if messages is None else messages
        for _ in range(min(lost, len(self._flying))):
            self._flying.pop()

    def stall(self, seconds: float) -> None:
        """Nothing arrives before so much time has passed."""
        until = self._stalled_until = max(self._stalled_until, self._network.now + seconds)
        self._flying = deque((max(at, until), frames) for at, frames in self._flying)
        for at, _ in self._flying:
            self._network.at(at, self._arrive)

    def _arrive(self) -> None:
        while self._flying and self._flying[0][0] <= self._network.now:
            self._deliver(self._flying.popleft()[1])


class MemoryConnection:
    """One epoch between a dialer and whoever listens at its address."""

    def __init__(self, dialer: MemoryDialer, route: bytes) -> None:
        self.network = dialer.network
        self.route = route
        self.inbox: deque[list[bytes]] = deque()
        self._dialer = dialer
        self._reason: str | None = None
        self._known_to_listener = True
        """Whether the listening side believes in it."""
        self.up = MemoryPipe(self.network, self._deliver_up)
        self.down = MemoryPipe(self.network, self._deliver_down)

    # --- faults -----------------------------------------------------------------------------------------------------

    def cut(
        self,
        *,
        up_lost: int | None = None,
        down_lost: int | None = None,
        dialer_notices: bool = True,
        listener_notices: bool = True,
    ) -> None:
        """Break it: of what is under way the last messages are lost, and nothing follows.

        A side that does not notice goes on believing in it, and what it sends is lost. None leaves the number to the
        network's seed.
        """
        for pipe, lost in ((self.up, up_lost), (self.down, down_lost)):
            if not pipe.closed:
                pipe.lose(lost)
                pipe.closed = True
        if dialer_notices:
            self.network.after(lambda: self._tell_dialer("connection closed"))
        if listener_notices:
            self.network.after(self._unknown_to_listener)

    def stall(self, seconds: float, *, up: bool = True, down: bool = True) -> None:
        """Hold what is under way, and what follows, for a while."""
        for pipe in (self.up,) * up + (self.down,) * down:
            pipe.stall(seconds)

    # --- the dialer's side (an EpochConnection) ---------------------------------------------------------------------

    def receive(self, limit: int) -> list[list[bytes]]:
        """Up to `limit` messages that have arrived."""
        return [self.inbox.popleft() for _ in range(min(limit, len(self.inbox)))]

    def send(self, frames: Frames) -> bool:
        """Whether the transport took the message."""
        if self._reason is not None:
            return False
        self.up.send(frames)
        return True

    def lost(self) -> str | None:
        """Why the connection is gone, if it is known to be."""
        return self._reason

    def close(self, linger: float = 0.0) -> None:
        """Leave: of what was sent a part may never go, unless there is time for it."""
        self._reason = self._reason or "closed"
        if not self.up.closed:
            self.cut(up_lost=0 if linger else None, dialer_notices=False)
        self.inbox.clear()
        self.down.lose(len(self.down))

    # --- the listener's side ----------------------------------------------------------------------------------------

    def answer(self, frames: Frames) -> bool:
        """Whether the listening side's transport took a message for the dialer."""
        if self._known_to_listener:
            self.down.send(frames)
        return self._known_to_listener

    def refuse(self) -> None:
        """Nobody listens."""
        self.up.closed = self.down.closed = True
        self._known_to_listener = False
        self._tell_dialer("cannot connect")

    def _tell_dialer(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._dialer.wake()

    def _unknown_to_listener(self) -> None:
        self._known_to_listener = False

    def _deliver_up(self, frames: list[bytes]) -> None:
        listener = self.network.listener(self._dialer.address)
        if listener is not None:
            listener.take(self, frames)

    def _deliver_down(self, frames: list[bytes]) -> None:
        if self._reason is None:
            self.inbox.append(frames)
            self._dialer.wake()


class MemoryListener(MemoryEndpoint):
    """The accepting socket of a service; raises AddressError where another one has the address."""

    def __init__(self, network: MemoryNetwork, address: Address) -> None:
        self.address = address
        self._network = network
        self._inbox: deque[tuple[bytes, list[bytes]]] = deque()
        self._connections: dict[bytes, MemoryConnection] = {}
        network.bind(self)

    def take(self, connection: MemoryConnection, frames: list[bytes]) -> None:
        """A message has arrived."""
        self._connections[connection.route] = connection
        self._inbox.append((connection.route, frames))
        self.wake()

    def receive(self, limit: int = TURN_MESSAGES) -> list[tuple[bytes, list[bytes]]]:
        """Up to `limit` messages: the route each came by, and its frames."""
        return [self._inbox.popleft() for _ in range(min(limit, len(self._inbox)))]

    def send(self, route: bytes, frames: Frames) -> bool:
        """Whether the message was taken; False means there is no such route any more."""
        connection = self._connections.get(route)
        if connection is None:
            return False
        if not connection.answer(frames):
            del self._connections[route]
            return False
        return True

    def cut(self, route: bytes) -> None:
        """Close a connection, whatever is on its way."""
        if connection := self._connections.pop(route, None):
            connection.cut()

    def readable(self) -> bool:
        """Whether a message is there."""
        return bool(self._inbox)

    @property
    def connections(self) -> list[MemoryConnection]:
        """Those that something has come by and that it believes in."""
        return list(self._connections.values())

    def close(self) -> None:
        """Free the address; what was written last arrives."""
        self._leave()
        for connection in self._connections.values():
            connection.cut(down_lost=0, dialer_notices=False)
            self._network.after(lambda connection=connection: connection.cut())  # type: ignore[misc]

    def kill(self) -> None:
        """Its process is killed: dialers notice."""
        self._leave()
        for connection in self._connections.values():
            connection.cut(up_lost=len(connection.up))

    def vanish(self) -> None:
        """Its host is gone: dialers notice nothing."""
        self._leave()
        for connection in self._connections.values():
            connection.cut(up_lost=len(connection.up), dialer_notices=False)

    def replace(self) -> None:
        """It is gone, but a proxy keeps its connections: what comes by them goes to whoever listens here next."""
        self._leave()

    def _leave(self) -> None:
        self._network.unbind(self)
        self._inbox.clear()


class MemoryDialer(EpochDialer[MemoryConnection], MemoryEndpoint):
    """An Uplink over a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, address: Address, uplink: Uplink) -> None:
        super().__init__(uplink)
        self.network = network
        self.address = address
        self.connections: list[MemoryConnection] = []
        """Of every epoch, the current one last."""
        self._secret = network.random.randbytes(_ROUTE_BYTES)

    def _connect(self, epoch: int) -> MemoryConnection:
        connection = MemoryConnection(self, self._secret + epoch.to_bytes(4, "big"))
        self.connections.append(connection)
        if self.network.listener(self.address) is None:
            self.network.after(connection.refuse)
        return connection

    @property
    def connection(self) -> MemoryConnection:
        """That of the newest epoch."""
        return self.connections[-1]

    def readable(self) -> bool:
        """Whether a message is there."""
        return self._connection is not None and bool(self._connection.inbox)

    def kill(self) -> None:
        """Its process is killed: the listener notices."""
        if self._connection is not None:
            self._connection.close()

    def vanish(self) -> None:
        """Its host is gone: the listener notices nothing."""
        if self._connection is not None:
            self._connection.cut(listener_notices=False)


class MemoryNetwork:
    """Where listeners and dialers meet, and time passes."""

    def __init__(self, seed: int = 0, *, now: float = 1000.0, latency: float = LATENCY_SECONDS) -> None:
        self.now = now
        self.latency = latency
        self.random = Random(seed)
        self._listeners: dict[Address, MemoryListener] = {}
        self._plans: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def clock(self) -> float:
        """The time, for whoever wants a function."""
        return self.now

    def attach(self, turn: Callable[[float], float], *endpoints: MemoryEndpoint) -> MemoryShell:
        """A process with these endpoints; `turn(now)` returns when it wants to be called if nothing arrives."""
        shell = MemoryShell(self, turn, endpoints)
        shell.wake()
        return shell

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        self.run_until(lambda: False, seconds)

    def run_until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Let time pass until `done`, at most so much; returns whether it is."""
        until = self.now + seconds
        while not done():
            if not self._plans or self._plans[0][0] > until:
                self.now = until
                return done()
            at, _, act = heapq.heappop(self._plans)
            self.now = max(self.now, at)
            act()
        return True

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Do something then; never, at infinity."""
        if time < math.inf:
            heapq.heappush(self._plans, (time, next(self._numbers), act))

    def after(self, act: Callable[[], None]) -> None:
        """Do something when news of now has travelled."""
        self.at(self.now + self.latency, act)

    def listener(self, address: Address) -> MemoryListener | None:
        """Who listens there."""
        return self._listeners.get(address)

    def bind(self, listener: MemoryListener) -> None:
        """Give a listener its address."""
        if listener.address in self._listeners:
            raise AddressError(f"cannot listen to {listener.address}: Address already in use")
        self._listeners[listener.address] = listener

    def unbind(self, listener: MemoryListener) -> None:
        """Take it back."""
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]
