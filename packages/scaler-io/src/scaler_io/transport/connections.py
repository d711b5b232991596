"""Connections of an accepting socket: a connection is closed if it exceeds its limit of bytes or descriptors.

ZeroMQ hands over whole messages only. It keeps the frames of an unfinished message, without a limit, and does not
report them. But the kernel counts the bytes that a connection has received; those not handed over are *unread*.
The protocol bounds what a peer sends ahead (windows, credit); only one that ignores it has PEER_BYTES unread. Nothing
stops such a peer earlier, for example TCP: scaler_io.transport.sockets says why there is no high-water mark.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from scaler_io.descriptors import connection_limit, limit, monitor_connections, shut_down
from scaler_protocol.plurals import counted

LOGGER: Final = logging.getLogger("scaler")
PEER_BYTES: Final = 128 * 1024 * 1024
"""Unread bytes that a peer's connection may have."""
STRANGER_BYTES: Final = 1024 * 1024
"""Unread bytes of a connection without a peer, which has nothing to send but a Hello."""
STRANGERS_BYTES: Final = 64 * 1024 * 1024
"""Unread bytes of all connections without a peer."""
TOTAL_BYTES: Final = 512 * 1024 * 1024
"""Unread bytes of all connections of a socket."""
HELLO_SECONDS: Final = 10.0
"""How long a connection may be open without a peer."""
SWEEP_SECONDS: Final = 0.05
"""How often a service looks at connections that receive something, which takes about 3 us for each."""
ALL_SECONDS: Final = 1.0
"""How often it looks at all of them, also while nothing arrives."""
HURRIED_SWEEP_SECONDS: Final = 0.005
"""The same while a connection has more than 1/_HURRY of the unread bytes that it may have: a gigabyte comes in 1 s."""
FRAME_BYTES: Final = 9
"""Bytes of ZeroMQ's frame header."""
TOPICS: Final = 16
"""Topics that a peer may subscribe to over one connection; a monitor needs only the empty one, which is everything."""
CHANGES: Final = 1000
"""Changes of subscriptions over one connection; a monitor subscribes again when it has missed something."""
TOPIC_BYTES: Final = 256
"""Longest topic: ZeroMQ keeps subscriptions in a tree with a node per byte."""
_HURRY: Final = 4
_FORGIVEN_BYTES: Final = 64
"""Bytes per second that do not count as unread: heartbeats of ZeroMQ, which are never handed over."""
_LOG_SECONDS: Final = 60.0
_SUBSCRIBED: Final = b"\x01"
_UNSUBSCRIBED: Final = b"\x00"
"""First byte of what ZeroMQ reports to a publisher; the topic follows."""
_TCP_INFO_BYTES: Final = 136
_RECEIVED: Final = struct.Struct("=Q")
_RECEIVED_AT: Final = 128
"""tcpi_bytes_received of linux/tcp.h."""


def _file_number(descriptor: int) -> int:
    """The number of the open file behind a descriptor, which is never reused; 0 if there is none."""
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return 0


def received_bytes(descriptor: int) -> int | None:
    """Bytes that the kernel has received on a TCP connection; None if the system does not tell."""
    if sys.platform != "linux":
        return None
    try:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
    except OSError:
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    finally:
        connection.detach()
    return _RECEIVED.unpack_from(info, _RECEIVED_AT)[0] if len(info) == _TCP_INFO_BYTES else None


class _Arrivals:
    """Tells which connections have received something, at no cost for the others; on Linux only."""

    def __init__(self) -> None:
        if sys.platform == "linux":
            self._poll = select.epoll()

    def add(self, descriptor: int) -> None:
        """Watch a connection; closing it ends that. Does nothing if it is no connection any more."""
        if sys.platform == "linux":
            with suppress(OSError):
                # ZeroMQ may have read everything before we look. A connection that is only writable is reported too,
                # at the edge, that is, if something has arrived.
                self._poll.register(descriptor, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)

    def fileno(self) -> int | None:
        """A descriptor that is readable while `take` would return something; None where the system has none."""
        if sys.platform == "linux":
            return self._poll.fileno()
        return None

    def take(self, most: int) -> list[int]:
        """Up to `most` descriptors of connections that have received something since they were last told."""
        if sys.platform == "linux":
            return [descriptor for descriptor, _ in self._poll.poll(0, most)]
        return []

    def close(self) -> None:
        if sys.platform == "linux":
            self._poll.close()


class Connection:
    """One accepted connection."""

    __slots__ = (
        "_file",
        "base",
        "closed",
        "descriptor",
        "examined_at",
        "read",
        "read_before",
        "route",
        "strange_seconds",
    )

    def __init__(self, descriptor: int, route: bytes = b"") -> None:
        self.descriptor, self.route = descriptor, route
        self._file = _file_number(descriptor)
        self.read = self.read_before = 0
        """Bytes of the messages that were handed over: now, and when all sent ones had been handed over."""
        self.base = 0
        """Received bytes that are no part of messages."""
        self.strange_seconds = 0.0
        """How long it has been open without a peer."""
        self.examined_at = 0.0
        """When its unread bytes were computed, by the limiter's clock."""
        self.closed = False

    def is_over(self) -> bool:
        """Whether it has ended, which ZeroMQ does not always tell; the descriptor may be another file's."""
        return _file_number(self.descriptor) != self._file

    def unread(self, seconds: float, *, drained: bool) -> int:
        """Bytes that were received and not handed over; `seconds` after the last call.

        `drained`: no message of any connection waits to be handed over.
        """
        received = received_bytes(self.descriptor)
        if received is None:
            return 0
        unread = received - self.read - self.base
        if drained and self.read != self.read_before:
            self.read_before = self.read
            self.base, unread = self.base + unread, 0
        forgiven = min(unread, int(_FORGIVEN_BYTES * seconds) + 1)
        self.base += forgiven
        return unread - forgiven


class _RareLog:
    """Logs that connections were closed for a reason, at most once a minute, with their number."""

    def __init__(self, text: str) -> None:
        """The text has places for the address and for the number of connections."""
        self._text = text
        self._count, self._logged_at = 0, -_LOG_SECONDS

    def add(self, address: str, *values: object) -> None:
        """Count one more; `values` fill the other places of the text."""
        self._count += 1
        now = time.monotonic()
        if now >= self._logged_at + _LOG_SECONDS:
            self._logged_at = now
            LOGGER.warning(self._text, address, counted(self._count, "connection"), *values)


def refused_log() -> _RareLog:
    """For connections that would take the reserve of descriptors."""
    return _RareLog(
        "%s: %s refused: this process may have %d files open, and all but a reserve are in use; "
        "raise the limit with ulimit -n, or LimitNOFILE= of systemd"
    )


class ConnectionLimiter:
    """Closes connections that take too much: descriptors of the reserve, or memory for messages that do not end."""

    def __init__(self, address: str) -> None:
        self.routes: dict[bytes, Connection] = {}
        """The connection of each route on which a message has arrived."""
        self._connections: dict[int, Connection] = {}
        """By descriptor."""
        self._arrivals = _Arrivals()
        self.arrivals = self._arrivals.fileno()
        """A descriptor that is readable once a connection has received something; None if the system has none."""
        self._ended: set[bytes] = set()
        """Routes of ended connections from which messages may still be handed over; their descriptors may be reused."""
        self._holders: dict[int, Connection] = {}
        """Those that had unread bytes when they were examined."""
        self._clock = self._all_at = 0.0
        """The seconds of all looks, and when all connections are due."""
        self._address = address
        self._refused = refused_log()
        self._greedy = _RareLog("%s: closed %s: %s")

    def accepted(self, descriptor: int) -> None:
        """A connection was accepted: close it if it is one too many."""
        self.disconnected(descriptor)
        if descriptor >= connection_limit():
            self._refused.add(self._address, limit())
            shut_down(descriptor)
        else:
            self._add(descriptor)

    def _add(self, descriptor: int) -> Connection:
        added = self._connections[descriptor] = Connection(descriptor)
        added.examined_at = self._clock
        self._arrivals.add(descriptor)
        return added

    def disconnected(self, descriptor: int) -> None:
        """A connection has ended."""
        self._holders.pop(descriptor, None)
        ended = self._connections.pop(descriptor, None)
        if ended is not None and ended.route:
            self.routes.pop(ended.route, None)
            self._ended.add(ended.route)

    def first_message(self, descriptor: int, route: bytes) -> Connection:
        """The first message has arrived on a route; returns its connection.

        It may also be a late one of a connection that has ended: no other one has the same route.
        """
        if route in self._ended:
            return Connection(-1)
        known = self._connections.get(descriptor)
        if known is None or known.route:
            self.disconnected(descriptor)
            known = self._add(descriptor)
        known.route = route
        self.routes[route] = known
        return known

    def of(self, descriptor: int) -> Connection:
        """The connection with this descriptor."""
        return self._connections.get(descriptor) or Connection(descriptor)

    def cut(self, route: bytes) -> None:
        """Close the connection of a route, if it has one."""
        if (connection := self.routes.get(route)) is not None:
            shut_down(connection.descriptor)

    def close_greedy(self, seconds: float, has_peer: Callable[[bytes], bool] | None, *, drained: bool) -> float:
        """Close connections with too many unread bytes, and those that have been without a peer for long.

        Returns after how many seconds it must be called again; if more than SWEEP_SECONDS, then SWEEP_SECONDS after
        `arrivals` has become readable. `seconds` is the time since the last call. `has_peer` tells whether a route has
        a peer; None if no connection has one, and all may stay. `drained`: no message waits to be handed over.
        """
        self._clock += seconds
        if drained:
            self._ended.clear()
        peers, strangers = list[tuple[int, Connection]](), list[tuple[int, Connection]]()
        for connection in self._due():
            if connection.is_over():
                self.disconnected(connection.descriptor)
                continue
            if connection.closed:
                continue
            elapsed, connection.examined_at = self._clock - connection.examined_at, self._clock
            unread = connection.unread(elapsed, drained=drained)
            if unread:
                self._holders[connection.descriptor] = connection
            if has_peer is not None and has_peer(connection.route):
                connection.strange_seconds = 0.0
                peers.append((unread, connection))
                continue
            connection.strange_seconds += elapsed if has_peer is not None else 0.0
            if connection.strange_seconds > HELLO_SECONDS:
                self._close(connection, f"without a Hello for {HELLO_SECONDS:g} s")
            else:
                strangers.append((unread, connection))
        hurried = self._bound(strangers, STRANGER_BYTES, STRANGERS_BYTES)
        hurried |= self._bound([*peers, *strangers], PEER_BYTES, TOTAL_BYTES)
        if hurried:
            return HURRIED_SWEEP_SECONDS
        return SWEEP_SECONDS if self._holders else ALL_SECONDS

    def _due(self) -> list[Connection]:
        """The connections that may have unread bytes: who has received something, or had some; at times all."""
        arrived, holders = self._arrivals.take(len(self._connections) + 1), self._holders
        self._holders = {}
        if self._clock < self._all_at:
            holders |= {number: self._connections[number] for number in arrived if number in self._connections}
            return list(holders.values())
        self._all_at = self._clock + ALL_SECONDS
        return list(self._connections.values())

    def close(self) -> None:
        """Free what it needs to watch connections."""
        self._arrivals.close()

    def _bound(self, holders: Sequence[tuple[int, Connection]], each: int, together: int) -> bool:
        """Close connections with more than `each` unread bytes, and the greatest ones until `together` is kept.

        Returns whether one may soon have too many.
        """
        total, greatest = sum(unread for unread, _ in holders), max((unread for unread, _ in holders), default=0)
        if total > together or greatest > each:
            self._close_greatest(holders, each, total - together)
        return total > together // _HURRY or greatest > each // _HURRY

    def _close_greatest(self, holders: Sequence[tuple[int, Connection]], each: int, excess: int) -> None:
        """Close connections with more than `each` unread bytes, and the greatest ones until `excess` are closed."""
        for unread, connection in sorted(holders, key=lambda holder: holder[0], reverse=True):
            if unread <= each and excess <= 0:
                return
            excess -= unread
            if not connection.closed:
                self._close(connection, f"{unread:,} bytes came of messages that do not end or are not read in time")

    def _close(self, connection: Connection, why: str) -> None:
        connection.closed = True
        self._greedy.add(self._address, why)
        shut_down(connection.descriptor, reset=True)


class SubscriptionLimiter(ConnectionLimiter):
    """Knows a publisher's subscribers. It also closes connections beyond the share of monitors, and those with more
    than TOPICS subscriptions or CHANGES changes of them, and logs this.

    ZeroMQ has no option for this, and keeps the subscriptions of a connection as long as it lasts.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.subscribers: set[int] = set()
        """Descriptors of the peers that have subscribed to everything; it may hold ended ones until all have ended."""
        self._topics: dict[int, set[bytes]] = {}
        self._changes: Counter[int] = Counter()
        """How often the peer of each descriptor has changed its subscriptions."""
        self._many = _RareLog(
            "%s: %s refused: monitors may have %d, so that enough files of this process are left to others; raise its "
            "limit with ulimit -n, or LimitNOFILE= of systemd"
        )
        self._changeable = _RareLog(
            f"%s: closed %s, whose peers changed their subscriptions {CHANGES:,} times; they may connect again"
        )
        self._curious = _RareLog(
            f"%s: closed %s, whose peers subscribed to more than {TOPICS} topics; monitors need the empty one"
        )

    def accepted(self, descriptor: int) -> None:
        self._topics.pop(descriptor, None)
        self._changes.pop(descriptor, None)
        super().accepted(descriptor)
        if len(self._connections) > (most := monitor_connections()):
            self._many.add(self._address, most)
            shut_down(descriptor)

    def subscription_changed(self, descriptor: int | None, change: bytes) -> bool:
        """Process a change that ZeroMQ reports; returns whether a peer has subscribed to everything, perhaps again.

        ZeroMQ reports an unsubscription when no subscriber is left, and from peers that were not subscribed: these must
        not end the subscriptions of others. If the last subscriber has disconnected, it reports no descriptor.
        """
        if descriptor is None:
            if change == _UNSUBSCRIBED:
                self.subscribers.clear()
            return False
        self.of(descriptor).read += len(change) + FRAME_BYTES
        self._changes[descriptor] += 1
        if self.is_restless(descriptor):
            self.subscribers.discard(descriptor)
            shut_down(descriptor)
            self._changeable.add(self._address)
            return False
        if change.startswith(_SUBSCRIBED):
            self._subscribed(descriptor, change)
        if change == _SUBSCRIBED:
            self.subscribers.add(descriptor)
        elif change == _UNSUBSCRIBED:
            self.subscribers.discard(descriptor)
        return change == _SUBSCRIBED

    def is_restless(self, descriptor: int | None) -> bool:
        """Whether a connection was closed for too many changes: further ones, sent before that, need not be handled."""
        return descriptor is not None and self._changes[descriptor] > CHANGES

    def _subscribed(self, descriptor: int, topic: bytes) -> None:
        topics = self._topics.setdefault(descriptor, set())
        if len(topics) > TOPICS:
            return  # sent before its connection was closed
        topics.add(topic)
        if len(topics) > TOPICS:
            shut_down(descriptor)
            self._curious.add(self._address)
