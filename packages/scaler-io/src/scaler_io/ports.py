"""Free addresses. A scheduler uses three ports in a row: its own, then object storage's, then the monitors'.

This module imports little because every local cluster imports it at its start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import sys
from typing import Final

from scaler_protocol.light_crypto import random_below

_PORTS: Final = 3
_PRIVATE_PORTS: Final = range(20_000, 32_000)
_TRIES: Final = 100
_PROBE_SECONDS: Final = 1.0


def free_port(host: str = "127.0.0.1") -> int:
    """A free port of a local host, of which the next two are free as well; raises OSError with the reason if none is.

    It is below the range that the system assigns to connections, which could take the next two at any moment.
    """
    problem = ""
    for _ in range(_TRIES):
        port = _PRIVATE_PORTS[random_below(len(_PRIVATE_PORTS))]
        try:
            for offset in range(_PORTS):
                _try(host, port + offset)
        except OSError as error:
            problem = error.strerror or str(error)
        else:
            return port
    raise OSError(f"no {_PORTS} free ports in a row: {problem}")


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether nothing listens to this port."""
    try:
        _try(host, port)
    except (OSError, OverflowError):
        return False
    return True


def listen_problem(number: int | None, reason: str = "") -> str:
    """Why an address cannot be listened to, by the error's number, and what helps if another program has it."""
    reason = reason or os.strerror(number or 0)
    return f"{reason}; choose another address, or end what listens there" if number == errno.EADDRINUSE else reason


def path_problem(path: str) -> str:
    """Why no service can listen at an existing path: it is no socket, or a service answers there; "" if one can."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return "the path exists and is not a socket"
    if sys.platform == "win32":
        return ""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.settimeout(_PROBE_SECONDS)
        problem = probe.connect_ex(path)
    # Only a refusal proves that no service listens: one that is too busy to accept is alive.
    if problem in (errno.ECONNREFUSED, errno.ENOENT):
        return ""
    return listen_problem(problem if problem == errno.EACCES else errno.EADDRINUSE)


def _try(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, port))
