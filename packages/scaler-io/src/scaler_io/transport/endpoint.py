"""Dialing: one connection per epoch of an Uplink, over any transport."""

from __future__ import annotations

import errno
import logging
from abc import ABC, abstractmethod
from typing import Final, Generic, Protocol, TypeVar

from scaler_io.links.events import UplinkEvent
from scaler_io.links.streams import Frames
from scaler_io.links.uplink import LinkState, Uplink
from scaler_protocol.errors import ProtocolError

LOGGER: Final = logging.getLogger("scaler")
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE)
"""What says that no descriptor is left."""
TURN_MESSAGES = 256
"""Messages read in one turn, so that a flood never keeps a loop from its timers."""


class EpochConnection(Protocol):
    """One epoch: connects once, and never again."""

    def receive(self, limit: int) -> list[list[bytes]]:
        """Up to `limit` messages that have arrived."""

    def send(self, frames: Frames) -> bool:
        """Whether the transport took the message."""

    def lost(self) -> str | None:
        """Why the connection is gone, if it is."""

    def close(self, linger: float = 0.0) -> None:
        """Leave; what was sent may take `linger` seconds to go."""


ConnectionT = TypeVar("ConnectionT", bound=EpochConnection)


class EpochDialer(ABC, Generic[ConnectionT]):
    """Opens a connection per epoch of its Uplink and moves messages both ways. One thread or loop owns it.

    A shell calls `turn`, lets its core decide, calls `flush`, and then asks `readable` before it waits.
    """

    def __init__(self, uplink: Uplink) -> None:
        self.uplink = uplink
        self.malformed = 0
        self._connection: ConnectionT | None = None
        self._told = False
        """Whether it was said that there are no descriptors."""
        self._may_have = True
        """Whether the connection may have something: to ask it takes longer than to know."""

    @abstractmethod
    def _connect(self, epoch: int) -> ConnectionT:
        """Begin a connection; raises OSError where that is known to be impossible."""

    @abstractmethod
    def readable(self) -> bool:
        """Whether a turn would find something; also re-arms the descriptor's edge, where there is one."""

    def turn(self, now: float) -> list[UplinkEvent]:
        """Take in what has arrived, at most TURN_MESSAGES. Then `flush` what the core says, then ask `readable`."""
        uplink, events = self.uplink, list[UplinkEvent]()
        if (connection := self._connection) is not None and self._may_have:
            events += self._receive(connection, now)
            if not events and (reason := connection.lost()) is not None:
                events += self._receive(connection, now, to_the_end=True)  # what the peer said last has arrived by now
                events += uplink.broken(reason, now)
        self._may_have = True
        events += uplink.tick(now)
        if uplink.state in (LinkState.DOWN, LinkState.REFUSED):
            self._drop()
        if uplink.wants_connection(now):
            uplink.opened(now)
            try:
                self._connection = self._connect(uplink.epoch)
                self._told = False
            except OSError as error:
                if error.errno in _SHORTAGES and not self._told:
                    self._told = True
                    LOGGER.warning("no connection can be made, which is tried again: %s", error)
                events += uplink.broken(str(error), now)
        return events

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

    def flush(self, now: float) -> list[UplinkEvent]:
        """Write what the Uplink has to say."""
        if self._connection is None:
            return []
        for frames in self.uplink.outgoing():
            if not self._connection.send(frames):
                return self.uplink.broken("connection closed", now)
        return []

    def close(self) -> None:
        """Write what is left, and leave."""
        if self._connection is not None:
            for frames in self.uplink.outgoing():
                self._connection.send(frames)
            self._drop(LINGER_SECONDS)

    def _drop(self, linger: float = 0.0) -> None:
        if self._connection is not None:
            self._connection.close(linger)
            self._connection = None


LINGER_SECONDS = 0.2
"""How long what was written last may take to go."""
