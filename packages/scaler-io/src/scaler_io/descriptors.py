"""Descriptors: how many files and connections a server may have open, and what it does when few are left.

A server takes what the system lets it have (`raise_limit`). It keeps RESERVED descriptors for its own files: the kernel
gives the lowest number that is free, so a connection whose number is `connection_limit` or more was accepted when all
below were in use, and is closed at once.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
import time
from typing import Final

if sys.platform != "win32":
    import resource

LOGGER: Final = logging.getLogger("scaler")
RESERVED: Final = 64
"""Descriptors that no connection gets."""
_MOST: Final = 1 << 20
"""Beyond this a higher limit is of no use, and some libraries walk through all numbers."""
_TELL_SECONDS: Final = 60.0
TOPICS: Final = 16
"""That a peer may subscribe to over one connection: who listens needs one, the empty one."""
TOPIC_BYTES: Final = 256
"""Of each of them: ZeroMQ keeps subscriptions in a tree with a node per byte."""
_SUBSCRIBED: Final = b"\x01"
_UNSUBSCRIBED: Final = b"\x00"
"""These and the topic, of which everything is the empty one."""


def limit() -> int:
    """How many descriptors this process may have now."""
    if sys.platform != "win32":
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return _MOST if soft == resource.RLIM_INFINITY else soft
    return _MOST


def raise_limit() -> None:
    """Take as many descriptors as the system lets us have."""
    if sys.platform != "win32":
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
        if limit() < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def log_limit(name: str) -> None:
    """Log what we have got."""
    LOGGER.info("%s: may have %d files and connections open", name, limit())


def restore_limit(soft: int) -> None:
    """Have the soft limit again that this process's user has set."""
    if sys.platform != "win32":
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connection_limit() -> int:
    """The descriptors that connections may have: those below this number."""
    return max(limit() - RESERVED, limit() // 2)


def require(count: int) -> None:
    """Raises OSError (EMFILE) unless so many descriptors are left."""
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
    """Closes connections: those that have taken a descriptor from the reserve, which it says at most once a minute."""

    def __init__(self, address: str) -> None:
        self.descriptors: dict[bytes, int] = {}
        """Of the connections of routes that a message has come by."""
        self._routes: dict[int, bytes] = {}
        self._address = address
        self._refused = 0
        self._told_at = -_TELL_SECONDS

    def accepted(self, descriptor: int) -> None:
        """A connection was accepted."""
        self.gone(descriptor)
        if descriptor >= connection_limit():
            self._tell()
            _shut_down(descriptor)

    def gone(self, descriptor: int) -> None:
        """A connection is no more."""
        if (route := self._routes.pop(descriptor, None)) is not None:
            del self.descriptors[route]

    def heard(self, descriptor: int, route: bytes) -> None:
        """The first message has come by a route."""
        self.gone(descriptor)
        self.descriptors[route], self._routes[descriptor] = descriptor, route

    def cut(self, route: bytes) -> None:
        """Close the connection of a route, if there is one."""
        if (descriptor := self.descriptors.get(route)) is not None:
            _shut_down(descriptor)

    def _tell(self) -> None:
        self._refused += 1
        now = time.monotonic()
        if now >= self._told_at + _TELL_SECONDS:
            self._told_at = now
            LOGGER.warning(
                "%s: %d connections refused: this process may have %d files open, and all but a reserve are in use; "
                "raise the limit with ulimit -n, or LimitNOFILE= of systemd",
                self._address, self._refused, limit(),
            )  # fmt: skip


class SubscriptionLimiter(ConnectionLimiter):
    """Who listens. Closes also connections whose peers subscribe to too much, and says so, at most once a minute.

    ZeroMQ has no option for this, and would keep for ever what a connection subscribes to that lasts.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.listening: set[int] = set()
        """Connections whose peers have subscribed to everything; of some that are gone, too, until all are."""
        self._topics: dict[int, set[bytes]] = {}
        self._greedy = 0
        self._greedy_told_at = -_TELL_SECONDS

    def accepted(self, descriptor: int) -> None:
        self._topics.pop(descriptor, None)
        super().accepted(descriptor)

    def told(self, descriptor: int | None, change: bytes) -> bool:
        """What ZeroMQ tells a publisher; whether somebody begins to listen to everything, perhaps once more.

        It tells of an unsubscription if nobody is subscribed any more, and where somebody had not been: he silences
        nobody else. It names no connection if the last one that was subscribed is gone.
        """
        if descriptor is None:
            if change == _UNSUBSCRIBED:
                self.listening.clear()
            return False
        if change.startswith(_SUBSCRIBED):
            self._subscribed(descriptor, change)
        if change == _SUBSCRIBED:
            self.listening.add(descriptor)
        elif change == _UNSUBSCRIBED:
            self.listening.discard(descriptor)
        return change == _SUBSCRIBED

    def _subscribed(self, descriptor: int, topic: bytes) -> None:
        topics = self._topics.setdefault(descriptor, set())
        if len(topics) > TOPICS:
            return  # what it had said before its connection was closed
        topics.add(topic)
        if len(topics) <= TOPICS:
            return
        _shut_down(descriptor)
        self._greedy += 1
        now = time.monotonic()
        if now >= self._greedy_told_at + _TELL_SECONDS:
            self._greedy_told_at = now
            LOGGER.warning(
                "%s: %d connections closed whose peers subscribed to more than %d topics; monitors need the empty one",
                self._address, self._greedy, TOPICS,
            )  # fmt: skip


def _shut_down(descriptor: int) -> None:
    """End a connection whose descriptor its owner closes then; nothing where it is no connection any more."""
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
