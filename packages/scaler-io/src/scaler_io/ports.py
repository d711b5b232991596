"""Addresses that are free. A scheduler takes its own port, the one behind it for object storage, the next for monitors.

Imports little, as a local cluster starts with it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import stat
import sys
from typing import Final

_PORTS: Final = 3
_PRIVATE_PORTS: Final = range(20_000, 32_000)
_TRIES: Final = 100
_PROBE_SECONDS: Final = 1.0


def free_port(host: str = "127.0.0.1") -> int:
    """A port of a host of ours that is free, as are the next two; raises OSError with why there is none.

    Not one that the system gives to connections: the next two might be such a one's in the next moment.
    """
    trouble = ""
    for _ in range(_TRIES):
        port = secrets.choice(_PRIVATE_PORTS)
        try:
            for offset in range(_PORTS):
                _try(host, port + offset)
        except OSError as error:
            trouble = error.strerror or str(error)
        else:
            return port
    raise OSError(f"no {_PORTS} free ports in a row: {trouble}")


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody may listen to this port."""
    try:
        _try(host, port)
    except (OSError, OverflowError):
        return False
    return True


def path_trouble(path: str) -> str:
    """Why nobody may listen at a path that exists, as it is no socket or a living service answers there; "": may."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return "the path exists and is no socket"
    if sys.platform == "win32":
        return ""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.settimeout(_PROBE_SECONDS)
        problem = probe.connect_ex(path)
    # Only a refusal proves that nobody is there: a service too busy to accept is alive.
    if problem in (errno.ECONNREFUSED, errno.ENOENT):
        return ""
    return os.strerror(problem if problem == errno.EACCES else errno.EADDRINUSE)


def _try(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, port))
