"""What pages, logs and events call a client: by default who runs what, where."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from typing import Final

from scaler_client.parameters import check_name
from scaler_protocol.limits import shortened
from scaler_protocol.ranges import Text

CLIENT_NAME: Final = Text(256)
"""The limit of a client's name."""


def client_name(given: object) -> str:
    """The name that a user gives, else user, host, script and process; raises ValueError for what is no name."""
    if given is not None:
        check_name("name", given, CLIENT_NAME)
        return str(given)
    return shortened(f"{_user()}@{socket.gethostname()} {_script()} {os.getpid()}", CLIENT_NAME)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user has no entry, as in some containers
        return str(os.getuid()) if hasattr(os, "getuid") else "user"


def _script() -> str:
    """The program; `notebook` or `python` where code is typed."""
    if "ipykernel" in sys.modules:
        return "notebook"
    path = sys.argv[0] if sys.argv else ""
    if os.path.basename(path) == "__main__.py":
        path = os.path.dirname(path)
    name = os.path.basename(path)
    return name if name not in ("", "-c", "-m") else "python"
