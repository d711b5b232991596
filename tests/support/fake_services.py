"""A service without a core: the test writes the answers."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from scaler_io.links.events import HubEvent
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.transport.zeromq import Listener
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import Hello, Refused, Welcome
from scaler_protocol.messages import Message

ANY_PORT = Address("127.0.0.1", 0)
PATIENT = PeerTimeouts(grace=30.0, silence=60.0)
Heard = tuple[bytes, HubEvent]


class FakeService:
    """A hub behind a listener. Everything happens in the thread that calls it."""

    def __init__(
        self,
        address: Address,
        admit: Callable[[Hello], Welcome | Refused],
        *,
        incarnation: int = 1,
        timeouts: PeerTimeouts = PATIENT,
    ) -> None:
        self.listener = Listener(address)
        self.address = self.listener.address
        self._admit, self._timeouts = admit, timeouts
        self.start(incarnation)

    def start(self, incarnation: int) -> None:
        """Start as a new incarnation, which knows no peers."""
        self.hub = Hub(incarnation, admit=self._admit, timeouts=lambda hello: self._timeouts)

    def wait(self, seconds: float, *wakers: int) -> None:
        """Wait at most `seconds` for a message, or until one of these descriptors is readable."""
        if not self.listener.readable():
            select.select([self.listener.fileno(), *wakers], [], [], seconds)

    def receive(self) -> list[Heard]:
        """The events of the hub: messages, peers that join and peers that are lost."""
        now = time.monotonic()
        heard = [self.hub.receive(route, frames, now) for route, frames in self.listener.receive()]
        return [each for each in heard if each is not None] + list(self.hub.tick(now))

    def flush(self) -> None:
        """Write the messages that were sent."""
        for route, frames in self.hub.outgoing():
            if not self.listener.send(route, frames):
                self.hub.unreachable(route, time.monotonic())

    def send(self, peer: bytes, message: Message) -> None:
        """Send a message at once."""
        self.hub.send(peer, message)
        self.flush()

    def close(self) -> None:
        """Free the address."""
        self.listener.close()
