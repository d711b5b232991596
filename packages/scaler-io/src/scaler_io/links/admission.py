"""Admission: what every service requires of a peer's Hello. Pure, no IO."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from scaler_protocol.handshake import PROTOCOL_VERSION, Hello, RefusalCode, Refused, Role, ServiceKind, Welcome
from scaler_protocol.ids import IDENTITY_BYTES

_NAMES: Final = {ServiceKind.SCHEDULER: "scheduler", ServiceKind.STORAGE: "object storage server"}


def admit(
    hello: Hello, welcome: Welcome, *, service: int, roles: Collection[int], refusals: Mapping[int, str]
) -> Welcome | Refused:
    """Return `welcome`, or a Refused with every reason why the peer may not connect.

    `roles` are those that the service accepts. `refusals` are its own reasons by RefusalCode. A peer that wants
    another service than this one has the wrong address, which is the only reason then.
    """
    name = _NAMES[service]
    if hello.protocol == PROTOCOL_VERSION and hello.service != service:
        wanted = _NAMES.get(hello.service, f"service {hello.service}")
        return Refused([f"this is the address of the {name}: give that of the {wanted}"], [RefusalCode.SERVICE])
    reasons: dict[int, str] = {}
    if hello.protocol != PROTOCOL_VERSION:
        reasons[RefusalCode.PROTOCOL] = f"protocol version {hello.protocol}, the {name} speaks {PROTOCOL_VERSION}"
    if hello.role not in roles:
        reasons[RefusalCode.ROLE] = f"unknown role {hello.role}"
    if len(hello.identity) != IDENTITY_BYTES:
        reasons[RefusalCode.IDENTITY] = f"an identity has {IDENTITY_BYTES} bytes, not {len(hello.identity)}"
    if hello.role == Role.CLIENT and not hello.session:
        reasons[RefusalCode.SESSION] = "a client has a session number other than 0"
    reasons.update(refusals)
    return Refused(list(reasons.values()), list(reasons)) if reasons else welcome
