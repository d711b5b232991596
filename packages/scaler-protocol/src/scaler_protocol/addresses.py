"""Addresses of services."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import replace

from scaler_protocol.errors import AddressError
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.ranges import Text

_TCP = re.compile(r"tcp://(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\[\]/]+)):(?P<port>[0-9]{1,9})")
_LAST_PORT = 65535
_ADDRESS = Text(4096)
_SOCKET_PATH_BYTES = 107
"""The longest path of a socket."""


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Address:
    """`tcp://host:port` (an IPv6 host in brackets) or `ipc://path`."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address; raises AddressError that names the address and the accepted forms."""
        if fault := _ADDRESS.fault(text):
            raise AddressError(f"the address {fault}: write tcp://host:port, tcp://[::1]:port or ipc:///path")
        if text.startswith("ipc://") and len(text) > len("ipc://"):
            return cls(path=text.removeprefix("ipc://"))
        match = _TCP.fullmatch(text)
        last = f"the last port is {_LAST_PORT:,}; " if match is not None and int(match["port"]) > _LAST_PORT else ""
        if match is None or last or _ip(match["six"] or "::") is None:
            raise AddressError(f"address {text!r}: {last}write tcp://host:port, tcp://[::1]:port or ipc:///path")
        return cls(host=match["six"] or match["host"], port=int(match["port"]))

    @classmethod
    def parse_peer(cls, text: str) -> Address:
        """As `parse`, for an address to connect to.

        Port 0 (a free port) and host * (all interfaces), which are for listeners, and a path that is too long for a
        socket, are errors.
        """
        address = cls.parse(text)
        if not (address.path or address.port):
            raise AddressError(f"address {text!r}: cannot connect to port 0; name the port of the service")
        if address.host == "*":
            raise AddressError(f"address {text!r}: cannot connect to *, which listens everywhere; name the host")
        if (size := len(os.fsencode(address.path))) > _SOCKET_PATH_BYTES:
            raise AddressError(
                f"address {text!r}: its path has {size:,} bytes, and that of a socket has at most {_SOCKET_PATH_BYTES}"
            )
        return address

    def __str__(self) -> str:
        if self.path:
            return f"ipc://{self.path}"
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"

    def beside(self, offset: int) -> Address:
        """The address `offset` ports above this one (`path.offset` for ipc); raises AddressError beyond port 65,535."""
        if self.path:
            return replace(self, path=f"{self.path}.{offset}")
        if self.port + offset > _LAST_PORT:
            raise AddressError(f"address {self}: there is no port {self.port + offset}, choose a smaller one")
        return replace(self, port=self.port + offset)

    @property
    def is_numeric(self) -> bool:
        """Whether the host is an IP address or a path, which needs no name resolution."""
        return bool(self.path) or _ip(self.host) is not None

    @property
    def is_local(self) -> bool:
        """Whether only processes of this host can reach it."""
        if self.path or self.host.lower() == "localhost":
            return True
        address = _ip(self.host)
        return address is not None and address.is_loopback
