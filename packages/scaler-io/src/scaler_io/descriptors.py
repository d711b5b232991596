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
import struct
import sys
from typing import Final

if sys.platform != "win32":
    import resource

LOGGER: Final = logging.getLogger("scaler")
RESERVED: Final = 64
"""Descriptors that are never given to connections."""
_MOST: Final = 1 << 20
"""The highest limit that is asked for: more is of no use, and some libraries iterate over all numbers."""

_DISCARD: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: what has not been sent when a connection is closed is discarded."""


def limit() -> int:
    """The number of descriptors that this process may have now."""
    if sys.platform != "win32":
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return _MOST if soft == resource.RLIM_INFINITY else soft
    return _MOST


def highest_limit() -> int:
    """The number of descriptors that this process may have after `raise_limit`."""
    if sys.platform != "win32":
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        return _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    return _MOST


def raise_limit() -> None:
    """Raise the soft limit as far as the system permits."""
    if sys.platform != "win32" and limit() < (wanted := highest_limit()):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


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


def worker_connections() -> int:
    """Connections that the holders of one worker's key may have: clients, operators and monitors have the others."""
    return connection_limit() * 3 // 4


def monitor_connections() -> int:
    """Connections that all monitors together may have."""
    return connection_limit() // 8


def require(count: int) -> None:
    """Raise OSError (EMFILE) unless `count` descriptors are left."""
    taken: list[int] = []
    try:
        for _ in range(count):
            taken.append(os.dup(taken[0]) if taken else os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise _shortage(error.errno or errno.EMFILE, f"{count} more are needed", limit()) from None
    finally:
        for descriptor in taken:
            os.close(descriptor)


def require_limit(who: str, count: int, most: int) -> None:
    """Raise OSError (EMFILE) if `who` needs more than the limit `most`."""
    if most < count:
        raise _shortage(errno.EMFILE, f"{who} needs {count}", most)


def _shortage(number: int, need: str, most: int) -> OSError:
    remedy = "which ulimit -n raises, or LimitNOFILE= of systemd"
    return OSError(number, f"{os.strerror(number)}: {need}, and {most} is the limit, {remedy}")


def shut_down(descriptor: int, *, reset: bool = False) -> None:
    """Shut down a connection, so that its owner closes the descriptor; does nothing if it is no connection any more.

    `reset`: what has not been sent is discarded, and the peer's writes fail. Otherwise a peer that waits for the window
    of the connection to open may wait for a minute.
    """
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:
        return
    try:
        connection.getpeername()
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD)
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
    finally:
        connection.detach()
