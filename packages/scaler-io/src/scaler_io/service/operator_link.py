"""OperatorLink: the link of an operator, a program that asks a service for its status or gives it orders."""

from __future__ import annotations

import socket
import time

from scaler_io.links.events import LinkDown, LinkLost, LinkRefused, LinkUp
from scaler_io.links.uplink import Uplink
from scaler_io.security.keyring import Credentials, KeyRole
from scaler_io.transport.sockets import Context
from scaler_io.transport.zeromq import Dialer
from scaler_protocol.addresses import Address
from scaler_protocol.codec import encode
from scaler_protocol.handshake import Goodbye, Hello, Role
from scaler_protocol.ids import new_identity, new_incarnation, new_session
from scaler_protocol.messages import Message

TIMEOUT_SECONDS = 10.0


class OperatorLink:
    """Connects and reconnects as long as `turn` is called often. It never blocks; one loop owns it.

    With the key of a client it is one, and may do only what clients may.
    """

    def __init__(
        self,
        address: Address,
        name: str,
        service: int,
        context: Context | None = None,
        *,
        credentials: Credentials | None = None,
    ) -> None:
        is_client = credentials is not None and credentials.holder.role is KeyRole.CLIENT
        hello = Hello(
            Role.CLIENT if is_client else Role.OPERATOR,
            new_identity(),
            new_incarnation(),
            session=new_session() if is_client else 0,
            name=name,
            host=socket.gethostname(),
            service=service,
        )
        self.is_up = False
        self.joins = 0
        """How often the service has welcomed this operator as a new one: it has lost all earlier messages."""
        self.problem = ""
        """Why there is no link, behind the name of the service, which is `it`; empty if that is not known."""
        self._address = address
        uplink = Uplink(hello, time.monotonic(), timeout_seconds=TIMEOUT_SECONDS)
        self._dialer = Dialer(address, uplink, context, credentials=credentials)
        self._unsent: list[Message] = []
        self._down_reason = ""

    def send(self, message: Message) -> None:
        """Send a message in the next turn in which the link is up.

        Raises InvalidFieldError for one that cannot be written: in a turn it would hold up all later ones.
        """
        encode(message)
        self._unsent.append(message)

    def turn(self) -> list[Message]:
        """Send the pending messages; returns those that have arrived."""
        now, arrived = time.monotonic(), list[Message]()
        for event in self._dialer.turn(now):
            if isinstance(event, LinkUp):
                self.is_up, self.problem = True, ""
                self.joins += not event.resumed
            elif isinstance(event, LinkRefused):
                self.problem = event.reason(self._address)
            elif isinstance(event, LinkLost):
                self.is_up = False
                self.problem = f"{event.reason}: {self._down_reason}" if self._down_reason else event.reason
            elif isinstance(event, LinkDown):
                self._down_reason = event.reason
            else:
                arrived.append(event)
        if self.is_up:
            for message in self._unsent:
                self._dialer.uplink.send(message)
            self._unsent.clear()
        self._dialer.flush(now)
        return arrived

    def close(self) -> None:
        """Send Goodbye and close the connection."""
        self._dialer.uplink.send(Goodbye("the operator leaves"))
        self._dialer.close()
