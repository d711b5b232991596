"""The ports of a scheduler: its own, object storage's behind it, and the monitors' behind that."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Final

from scaler_io.zeromq import Listener
from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError

_PORTS: Final = 3
_PRIVATE_PORTS: Final = range(20_000, 32_000)
_TRIES: Final = 20


def with_port(address: Address) -> Address:
    """The address; where its port is 0, the same with a port that is free, as are those behind it.

    Not one that the system gives to connections: those behind it might be such a one's in the next moment. Raises
    AddressError.
    """
    if address.path or address.port:
        return address
    trouble = ""
    for _ in range(_TRIES):
        found = replace(address, port=secrets.choice(_PRIVATE_PORTS))
        try:
            for offset in range(_PORTS):
                Listener(found.beside(offset)).close()
        except AddressError as error:
            trouble = str(error)
        else:
            return found
    raise AddressError(f"no {_PORTS} free ports in a row were found for {address}; the last try: {trouble}")
