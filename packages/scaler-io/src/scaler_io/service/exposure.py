"""Where a service may listen: reaching a port must not be enough."""

from __future__ import annotations

from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError


def refuse_exposed(address: Address, insecure: bool) -> None:
    """Raise AddressError for a bind that other hosts could reach, unless that is wanted: tasks are code."""
    if not insecure and not address.is_local:
        raise AddressError(
            f"{address} can be reached from other hosts, and whoever reaches it can run code: "
            "listen on 127.0.0.1, or add --insecure in a network you trust"
        )
