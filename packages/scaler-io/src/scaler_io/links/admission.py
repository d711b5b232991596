"""Admission: what every service requires of a peer's Hello. Pure, no IO."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from scaler_protocol.handshake import PROTOCOL_VERSION, Hello, RefusalCode, Refused, Role, Welcome
from scaler_protocol.ids import IDENTITY_BYTES


def admit(
    hello: Hello, welcome: Welcome, *, service: str, roles: Collection[int], refusals: Mapping[int, str]
) -> Welcome | Refused:
    """Return `welcome`, or a Refused with every reason why the peer may not connect.

    `roles` are those that the service accepts. `refusals` are its own reasons by RefusalCode, `service` is its name in
    the common ones.
    """
    reasons: dict[int, str] = {}
    if hello.protocol != PROTOCOL_VERSION:
        reasons[RefusalCode.PROTOCOL] = f"protocol version {hello.protocol}, the {service} speaks {PROTOCOL_VERSION}"
    if hello.role not in roles:
        reasons[RefusalCode.ROLE] = f"unknown role {hello.role}"
    if len(hello.identity) != IDENTITY_BYTES:
        reasons[RefusalCode.IDENTITY] = f"an identity has {IDENTITY_BYTES} bytes, not {len(hello.identity)}"
    if hello.role == Role.CLIENT and not hello.session:
        reasons[RefusalCode.SESSION] = "a client has a session number other than 0"
    reasons.update(refusals)
    return Refused(list(reasons.values()), list(reasons)) if reasons else welcome
