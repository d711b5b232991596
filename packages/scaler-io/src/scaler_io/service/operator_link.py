"""The link of an operator: of a program that asks a service for figures, or orders something, now and then."""

from __future__ import annotations

import os
import socket
import time

from scaler_io.links.events import LinkDown, LinkLost, LinkRefused, LinkUp
from scaler_io.links.uplink import Uplink
from scaler_io.transport.zeromq import Context, Dialer
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import Goodbye, Hello, Role
from scaler_protocol.ids import new_identity, new_incarnation
from scaler_protocol.messages import Message

TIMEOUT_SECONDS = 10.0


class OperatorLink:
    """Connects, and comes back, by itself as long as somebody calls `turn` often. Never waits; one loop owns it."""

    def __init__(self, address: Address, name: str, context: Context | None = None) -> None:
        hello = Hello(
            Role.OPERATOR, new_identity(), new_incarnation(), name=name, host=socket.gethostname(), pid=os.getpid()
        )
        self.is_up = False
        self.beginnings = 0
        """How often the service has begun to know us: what it was told before is forgotten."""
        self.trouble = ""
        """Why there is no link, where that is known."""
        self._dialer = Dialer(address, Uplink(hello, time.monotonic(), timeout_seconds=TIMEOUT_SECONDS), context)
        self._unsent: list[Message] = []

    def send(self, message: Message) -> None:
        """Say something with the next turn in which the link is up."""
        self._unsent.append(message)

    def turn(self) -> list[Message]:
        """What has arrived; writes what there is to say."""
        now, arrived = time.monotonic(), list[Message]()
        for event in self._dialer.turn(now):
            if isinstance(event, LinkUp):
                self.is_up, self.trouble = True, ""
                self.beginnings += not event.resumed
            elif isinstance(event, LinkRefused):
                self.trouble = "; ".join(event.reasons)
            elif isinstance(event, LinkLost):
                self.is_up, self.trouble = False, event.reason
            elif not isinstance(event, LinkDown):
                arrived.append(event)
        if self.is_up:
            for message in self._unsent:
                self._dialer.uplink.send(message)
            self._unsent.clear()
        self._dialer.flush(now)
        return arrived

    def close(self) -> None:
        """Leave."""
        self._dialer.uplink.send(Goodbye("the operator leaves"))
        self._dialer.close()
