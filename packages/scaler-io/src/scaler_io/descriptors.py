"""Descriptors: how many files and connections a server may have open, and what it does when few are left.

A server raises its soft limit to the hard one (`raise_limit`). It reserves RESERVED descriptors for its own files: the
kernel assigns the lowest free number, so if a connection gets `connection_limit` or more, all lower numbers are in use,
and the connection is closed at once.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
import time
from typing import Final

from scaler_protocol.plurals import counted

if sys.platform != "win32":
    import resource

LOGGER: Final = logging.getLogger("scaler")
RESERVED: Final = 64
"""Descriptors that are never given to connections."""
_MOST: Final = 1 << 20
"""The highest limit that is asked for: more is of no use, and some libraries iterate over all numbers."""
_LOG_SECONDS: Final = 60.0
TOPICS: Final = 16
"""Topics that a peer may subscribe to over one connection; a monitor needs only the empty one, which is everything."""
TOPIC_BYTES: Final = 256
"""Longest topic: ZeroMQ keeps subscriptions in a tree with a node per byte."""
_SUBSCRIBED: Final = b"\x01"
_UNSUBSCRIBED: Final = b"\x00"
"""First byte of what ZeroMQ reports to a publisher; the topic follows."""


def limit() -> int:
    """The number of descriptors that this process may have now."""
    if sys.platform != "win32":
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return _MOST if soft == resource.RLIM_INFINITY else soft
    return _MOST


def raise_limit() -> None:
    """Raise the soft limit as far as the system permits."""
    if sys.platform != "win32":
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
        if limit() < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def log_limit(name: str) -> None:
    """Log the limit of this process."""
    LOGGER.info("%s: may have %d files and connections open", name, limit())


def restore_limit(soft: int) -> None:
    """Set the soft limit back to the user's."""
    if sys.platform != "win32":
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connection_limit() -> int:
    """Connections may have the descriptors below this number."""
    return max(limit() - RESERVED, limit() // 2)


def require(count: int) -> None:
    """Raise OSError (EMFILE) unless `count` descriptors are left."""
    taken: list[int] = []
    try:
        for _ in range(count):
            taken.append(os.dup(taken[0]) if taken else os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise OSError(
            error.errno,
            f"{os.strerror(error.errno or errno.EMFILE)}: {count} more are needed, and {limit()} is the limit, which "
            "ulimit -n raises, or LimitNOFILE= of systemd",
        ) from None
    finally:
        for descriptor in taken:
            os.close(descriptor)


class ConnectionLimiter:
    """Closes connections that take a descriptor from the reserve, and logs this at most once a minute."""

    def __init__(self, address: str) -> None:
        self.descriptors: dict[bytes, int] = {}
        """The descriptor of each route on which a message has arrived."""
        self._routes: dict[int, bytes] = {}
        self._address = address
        self._refused = 0
        self._logged_at = -_LOG_SECONDS

    def accepted(self, descriptor: int) -> None:
        """A connection was accepted: close it if it is one too many."""
        self.disconnected(descriptor)
        if descriptor >= connection_limit():
            self._log_refused()
            shut_down(descriptor)

    def disconnected(self, descriptor: int) -> None:
        """A connection has ended."""
        if (route := self._routes.pop(descriptor, None)) is not None:
            del self.descriptors[route]

    def first_message(self, descriptor: int, route: bytes) -> None:
        """The first message has arrived on a route."""
        self.disconnected(descriptor)
        self.descriptors[route], self._routes[descriptor] = descriptor, route

    def cut(self, route: bytes) -> None:
        """Close the connection of a route, if it has one."""
        if (descriptor := self.descriptors.get(route)) is not None:
            shut_down(descriptor)

    def _log_refused(self) -> None:
        self._refused += 1
        now = time.monotonic()
        if now >= self._logged_at + _LOG_SECONDS:
            self._logged_at = now
            LOGGER.warning(
                "%s: %s refused: this process may have %d files open, and all but a reserve are in use; "
                "raise the limit with ulimit -n, or LimitNOFILE= of systemd",
                self._address, counted(self._refused, "connection"), limit(),
            )  # fmt: skip


class SubscriptionLimiter(ConnectionLimiter):
    """Knows a publisher's subscribers. It also closes connections with more than TOPICS subscriptions, and logs this.

    ZeroMQ has no option for this, and keeps the subscriptions of a connection as long as it lasts.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.subscribers: set[int] = set()
        """Descriptors of the peers that have subscribed to everything; it may hold ended ones until all have ended."""
        self._topics: dict[int, set[bytes]] = {}
        self._greedy = 0
        self._greedy_logged_at = -_LOG_SECONDS

    def accepted(self, descriptor: int) -> None:
        self._topics.pop(descriptor, None)
        super().accepted(descriptor)

    def subscription_changed(self, descriptor: int | None, change: bytes) -> bool:
        """Process a change that ZeroMQ reports; returns whether a peer has subscribed to everything, perhaps again.

        ZeroMQ reports an unsubscription when no subscriber is left, and from peers that were not subscribed: these must
        not end the subscriptions of others. If the last subscriber has disconnected, it reports no descriptor.
        """
        if descriptor is None:
            if change == _UNSUBSCRIBED:
                self.subscribers.clear()
            return False
        if change.startswith(_SUBSCRIBED):
            self._subscribed(descriptor, change)
        if change == _SUBSCRIBED:
            self.subscribers.add(descriptor)
        elif change == _UNSUBSCRIBED:
            self.subscribers.discard(descriptor)
        return change == _SUBSCRIBED

    def _subscribed(self, descriptor: int, topic: bytes) -> None:
        topics = self._topics.setdefault(descriptor, set())
        if len(topics) > TOPICS:
            return  # sent before its connection was closed
        topics.add(topic)
        if len(topics) <= TOPICS:
            return
        shut_down(descriptor)
        self._greedy += 1
        now = time.monotonic()
        if now >= self._greedy_logged_at + _LOG_SECONDS:
            self._greedy_logged_at = now
            LOGGER.warning(
                "%s: closed %s, whose peers subscribed to more than %d topics; monitors need the empty one",
                self._address, counted(self._greedy, "connection"), TOPICS,
            )  # fmt: skip


def shut_down(descriptor: int) -> None:
    """Shut down a connection, so that its owner closes the descriptor; does nothing if it is no connection any more."""
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:
        return
    try:
        connection.getpeername()
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
    finally:
        connection.detach()
