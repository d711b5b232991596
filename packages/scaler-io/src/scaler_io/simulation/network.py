"""A network in memory with its own clock: the links of a cluster with their faults, without sockets or time. Pure.

Messages are encoded and decoded as on a real network. One connection is one epoch, and fails as real ones do. If it
breaks, the messages in flight are lost from some message on, separately in each direction. One side may not notice
(half-open). Messages that are not lost may arrive after the next epoch has begun (stale), and through a proxy even at
the next incarnation of the service. Messages may be delayed (stall). Processes are killed, stopped, or vanish with
their host. Equal seeds give equal histories.

    network = MemoryNetwork(seed=1)
    listener = MemoryListener(network, address)
    dialer = MemoryDialer(network, address, uplink)
    network.attach(ServiceTurn(name, listener, hub, core, stop, network.clock).turn, listener)
    network.attach(turn_of_the_client, dialer)
    dialer.connection.cut(up_lost=2)
    network.run(60)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from random import Random

from scaler_io.links.streams import Frames, cut, join
from scaler_io.links.uplink import Uplink
from scaler_io.simulation.processes import MemoryEndpoint, MemoryShell
from scaler_io.simulation.virtual_time import VirtualTime
from scaler_io.transport.endpoint import TURN_MESSAGES, EpochDialer, ListenError
from scaler_protocol.addresses import Address

__all__ = ["MemoryConnection", "MemoryDialer", "MemoryListener", "MemoryNetwork", "MemoryPipe", "MemoryShell"]

LATENCY_SECONDS = 0.0002
_ROUTE_BYTES = 20


class MemoryPipe:
    """One direction of a connection: messages arrive in order, each `latency` seconds after it was sent."""

    def __init__(self, network: MemoryNetwork, deliver: Callable[[list[bytes]], None]) -> None:
        self._network = network
        self._deliver = deliver
        self._in_flight: deque[tuple[float, list[bytes]]] = deque()
        self._stalled_until = -math.inf
        self.closed = False

    def __len__(self) -> int:
        """The number of messages in flight."""
        return len(self._in_flight)

    def send(self, frames: Frames) -> None:
        """Send a message; it is lost if the pipe is closed."""
        if not self.closed:
            at = max(self._network.now + self._network.latency, self._stalled_until)
            self._in_flight.append((at, cut(join(frames))))
            self._network.at(at, self._arrive)

    def lose(self, messages: int | None) -> None:
        """Lose the last messages in flight; None leaves their number to the network's seed."""
        lost = self._network.random.randint(0, len(self._in_flight)) if messages is None else messages
        for _ in range(min(lost, len(self._in_flight))):
            self._in_flight.pop()

    def stall(self, seconds: float) -> None:
        """Deliver no message for this time."""
        until = self._stalled_until = max(self._stalled_until, self._network.now + seconds)
        self._in_flight = deque((max(at, until), frames) for at, frames in self._in_flight)
        for at, _ in self._in_flight:
            self._network.at(at, self._arrive)

    def _arrive(self) -> None:
        while self._in_flight and self._in_flight[0][0] <= self._network.now:
            self._deliver(self._in_flight.popleft()[1])


class MemoryConnection:
    """The connection of one epoch between a dialer and the listener at its address."""

    def __init__(self, dialer: MemoryDialer, route: bytes) -> None:
        self.network = dialer.network
        self.route = route
        self.inbox: deque[list[bytes]] = deque()
        self._dialer, self._address = dialer, dialer.address
        self._reason: str | None = None
        self._known_to_listener = True
        """Whether the connection exists for the listener."""
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
        """Break the connection: the last messages in flight are lost, and no others follow.

        `up_lost` and `down_lost` are their numbers; None leaves them to the network's seed. For a side that does not
        notice the connection still exists, and its messages are lost.
        """
        for pipe, lost in ((self.up, up_lost), (self.down, down_lost)):
            if not pipe.closed:
                pipe.lose(lost)
                pipe.closed = True
        if dialer_notices:
            self.network.after(lambda: self._notify_dialer("connection closed"))
        if listener_notices:
            self.network.after(self._forget_at_listener)

    def stall(self, seconds: float, *, up: bool = True, down: bool = True) -> None:
        """Delay the messages in flight, and those that follow, for this time."""
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
        """Why the connection is gone; None while the dialer does not know that it is."""
        return self._reason

    def close(self, linger: float = 0.0) -> None:
        """Close the connection; without `linger` the last messages may be lost."""
        self._reason = self._reason or "closed"
        if not self.up.closed:
            self.cut(up_lost=0 if linger else None, dialer_notices=False)
        self.inbox.clear()
        self.down.lose(len(self.down))

    # --- the listener's side ----------------------------------------------------------------------------------------

    def answer(self, frames: Frames) -> bool:
        """Send a message to the dialer; False if the connection is gone for the listener."""
        if self._known_to_listener:
            self.down.send(frames)
        return self._known_to_listener

    def refuse(self) -> None:
        """End the connection: there is no listener."""
        self.up.closed = self.down.closed = True
        self._known_to_listener = False
        self._notify_dialer("cannot connect")

    def _notify_dialer(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._dialer.wake()

    def _forget_at_listener(self) -> None:
        self._known_to_listener = False

    def _deliver_up(self, frames: list[bytes]) -> None:
        listener = self.network.listener(self._address)
        if listener is not None:
            listener.deliver(self, frames)

    def _deliver_down(self, frames: list[bytes]) -> None:
        if self._reason is None:
            self.inbox.append(frames)
            self._dialer.wake()


class MemoryListener(MemoryEndpoint):
    """The accepting socket of a service; raises ListenError if another one has the address."""

    def __init__(self, network: MemoryNetwork, address: Address) -> None:
        self.address = address
        self._network = network
        self._inbox: deque[tuple[bytes, list[bytes]]] = deque()
        self._connections: dict[bytes, MemoryConnection] = {}
        network.bind(self)

    def deliver(self, connection: MemoryConnection, frames: list[bytes]) -> None:
        """Receive a message."""
        self._connections[connection.route] = connection
        self._inbox.append((connection.route, frames))
        self.wake()

    def receive(self, limit: int = TURN_MESSAGES) -> list[tuple[bytes, list[bytes]]]:
        """Up to `limit` messages, each as route and frames."""
        return [self._inbox.popleft() for _ in range(min(limit, len(self._inbox)))]

    def send(self, route: bytes, frames: Frames) -> bool:
        """Whether the message was accepted; False if the route is gone."""
        connection = self._connections.get(route)
        if connection is None:
            return False
        if not connection.answer(frames):
            del self._connections[route]
            return False
        return True

    def cut(self, route: bytes) -> None:
        """Close a connection, even if messages are in flight."""
        if connection := self._connections.pop(route, None):
            connection.cut()

    def readable(self) -> bool:
        """Whether a message is there."""
        return bool(self._inbox)

    @property
    def connections(self) -> list[MemoryConnection]:
        """The connections that exist for the listener, of those by which a message has arrived."""
        return list(self._connections.values())

    def close(self) -> None:
        """Free the address; the last messages arrive."""
        self._leave()
        for connection in self._connections.values():
            connection.cut(down_lost=0, dialer_notices=False)
            self._network.after(lambda connection=connection: connection.cut())  # type: ignore[misc]

    def kill(self) -> None:
        """End with its process: dialers notice."""
        self._leave()
        for connection in self._connections.values():
            connection.cut(up_lost=len(connection.up))

    def vanish(self) -> None:
        """End with its host: dialers do not notice."""
        self._leave()
        for connection in self._connections.values():
            connection.cut(up_lost=len(connection.up), dialer_notices=False)

    def replace(self) -> None:
        """End behind a proxy that keeps its connections: their messages go to the next listener at this address."""
        self._leave()

    def _leave(self) -> None:
        self._network.unbind(self)
        self._inbox.clear()


class MemoryDialer(EpochDialer[MemoryConnection], MemoryEndpoint):
    """Connects an Uplink over a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, address: Address, uplink: Uplink) -> None:
        super().__init__(uplink, address)
        self.network = network
        self.connections: list[MemoryConnection] = []
        """The connections of all epochs, the current one last."""
        self._secret = network.random.randbytes(_ROUTE_BYTES)

    def _connect(self, epoch: int) -> MemoryConnection:
        connection = MemoryConnection(self, self._secret + epoch.to_bytes(4, "big"))
        self.connections.append(connection)
        if self.network.listener(self.address) is None:
            self.network.after(connection.refuse)
        return connection

    @property
    def connection(self) -> MemoryConnection:
        """The connection of the newest epoch."""
        return self.connections[-1]

    def readable(self) -> bool:
        """Whether a message is there."""
        return self._connection is not None and bool(self._connection.inbox)

    def kill(self) -> None:
        """End with its process: the listener notices."""
        if self._connection is not None:
            self._connection.close()

    def vanish(self) -> None:
        """End with its host: the listener does not notice."""
        if self._connection is not None:
            self._connection.cut(listener_notices=False)


class MemoryNetwork(VirtualTime):
    """Connects dialers to listeners."""

    def __init__(self, seed: int = 0, *, now: float = 1000.0, latency: float = LATENCY_SECONDS) -> None:
        super().__init__(now)
        self.latency = latency
        self.random = Random(seed)
        self._listeners: dict[Address, MemoryListener] = {}

    def attach(self, turn: Callable[[float], float], *endpoints: MemoryEndpoint) -> MemoryShell:
        """Add a process with these endpoints; `turn(now)` returns when the next turn is due if nothing arrives."""
        shell = MemoryShell(self, turn, endpoints)
        shell.wake()
        return shell

    def after(self, act: Callable[[], None]) -> None:
        """Call `act` after the network's latency."""
        self.at(self.now + self.latency, act)

    def listener(self, address: Address) -> MemoryListener | None:
        """The listener at this address, if there is one."""
        return self._listeners.get(address)

    def bind(self, listener: MemoryListener) -> None:
        """Give a listener its address; raises ListenError if another one has it."""
        if listener.address in self._listeners:
            raise ListenError(f"cannot listen to {listener.address}: Address already in use")
        self._listeners[listener.address] = listener

    def unbind(self, listener: MemoryListener) -> None:
        """Free a listener's address."""
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]
