"""EpochDialer: one connection per epoch of an Uplink, over any transport."""

from __future__ import annotations

import errno
import logging
from abc import ABC, abstractmethod
from typing import Final, Generic, Protocol, TypeVar

from scaler_io.links.events import LinkUp, UplinkEvent
from scaler_io.links.streams import Frames
from scaler_io.links.uplink import LinkState, Uplink
from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError, ProtocolError, ScalerError
from scaler_protocol.handshake import Welcome
from scaler_protocol.messages import Message

LOGGER: Final = logging.getLogger("scaler")
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE)
"""Error numbers for want of descriptors."""
LINGER_SECONDS = 0.2
"""How long to go on sending the last messages when a connection is closed."""
TURN_MESSAGES = 256
"""Most messages read in one turn, so that timers run in time however many messages arrive."""


class ListenError(ScalerError, OSError):
    """An address cannot be listened to: another program listens there, or it is not one of this host."""


class EpochConnection(Protocol):
    """The connection of one epoch: it connects once and never reconnects."""

    def receive(self, limit: int) -> list[list[bytes]]:
        """Up to `limit` messages that have arrived."""

    def send(self, frames: Frames) -> bool:
        """Whether the transport took the message."""

    def lost(self) -> str | None:
        """Why the connection is gone; None if it is not."""

    def close(self, linger: float = 0.0) -> None:
        """Close the connection after at most `linger` seconds for sending the last messages."""


ConnectionT = TypeVar("ConnectionT", bound=EpochConnection)


class EpochDialer(ABC, Generic[ConnectionT]):
    """Opens a connection per epoch of its Uplink and moves messages both ways. One thread or loop owns it.

    A shell calls `turn`, lets its core settle, calls `flush`, and then `readable` before it waits. If a service has
    named a fallback, connections are tried there in turns with the address of the last Welcome.
    """

    def __init__(self, uplink: Uplink, address: Address) -> None:
        self.uplink, self.address = uplink, address
        self._fallback: Address | None = None
        self._attempts = 0
        """Connections since the last Welcome."""
        self.malformed = 0
        self._connection: ConnectionT | None = None
        self._logged_shortage = False
        """Whether the lack of descriptors has been logged."""
        self._may_be_readable = True
        """False if the connection is known to have no message, which saves a call to the transport."""

    @abstractmethod
    def _connect(self, epoch: int) -> ConnectionT:
        """Begin a connection; raises OSError if that is known to be impossible."""

    def _refused(self, connection: ConnectionT) -> str:
        """Why a connection that is gone will never be accepted; empty if another one may be."""
        return ""

    @abstractmethod
    def readable(self) -> bool:
        """Whether a turn would find a message or a broken connection; also re-arms an edge-triggered descriptor."""

    def turn(self, now: float) -> list[UplinkEvent]:
        """Receive up to TURN_MESSAGES messages, tick the uplink, and connect if it wants that; returns the events."""
        uplink = self.uplink
        events: list[UplinkEvent] = []
        if (connection := self._connection) is not None and self._may_be_readable:
            events += self._receive(connection, now)
            if not events and (reason := connection.lost()) is not None:
                events += self._receive(connection, now, to_the_end=True)  # the peer's last messages have arrived
                refusal = self._refused(connection)
                events += uplink.refuse(refusal) if refusal else uplink.broken(reason, now)
        self._may_be_readable = True
        for event in events:
            if isinstance(event, LinkUp):
                self._note_welcome(event.welcome)
        if uplink.state is LinkState.UP and now < uplink.due():
            return events
        events += uplink.tick(now)
        if uplink.state in (LinkState.DOWN, LinkState.REFUSED):
            self._drop()
        if uplink.wants_connection(now):
            events += self._open(now)
        return events

    def _open(self, now: float) -> list[UplinkEvent]:
        """Begin a connection."""
        self.uplink.opened(now)
        self._attempts += 1
        if self._fallback is not None and self._attempts > 1:
            self.address, self._fallback = self._fallback, self.address
        try:
            self._connection = self._connect(self.uplink.epoch)
        except OSError as error:
            if error.errno in _SHORTAGES and not self._logged_shortage:
                self._logged_shortage = True
                LOGGER.warning("cannot connect, will try again: %s", error)
            return self.uplink.broken(str(error), now)
        self._logged_shortage = False
        return []

    def _note_welcome(self, welcome: Welcome) -> None:
        self._attempts = 0
        if welcome.fallback_address:
            try:
                self._fallback = Address.parse_peer(welcome.fallback_address)
            except AddressError:
                self.malformed += 1

    def _receive(self, connection: ConnectionT, now: float, *, to_the_end: bool = False) -> list[UplinkEvent]:
        events: list[UplinkEvent] = []
        uplink = self.uplink
        while arrived := connection.receive(TURN_MESSAGES):
            for frames in arrived:
                try:
                    events += uplink.receive(frames, now)
                except ProtocolError as error:
                    self.malformed += 1
                    events += uplink.broken(f"malformed message: {error}", now)
                if uplink.state is LinkState.DOWN:
                    return events
            if not to_the_end:
                break
        return events

    def send(self, message: Message) -> None:
        """Write it with the next `flush`, or in the next epoch."""
        self.uplink.send(message)

    def due(self) -> float:
        """When `turn` must be called even if nothing arrives."""
        return self.uplink.due()

    def flush(self, now: float) -> list[UplinkEvent]:
        """Write the uplink's messages."""
        if self._connection is None:
            return []
        for frames in self.uplink.outgoing():
            if not self._connection.send(frames):
                return self.uplink.broken("connection closed", now)
        return []

    def close(self) -> None:
        """Write the uplink's messages and close the connection."""
        if self._connection is not None:
            for frames in self.uplink.outgoing():
                self._connection.send(frames)
            self._drop(LINGER_SECONDS)

    def _drop(self, linger: float = 0.0) -> None:
        if self._connection is not None:
            self._connection.close(linger)
            self._connection = None
