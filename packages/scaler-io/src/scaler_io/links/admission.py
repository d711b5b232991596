"""Admission: what every service requires of a peer's Hello. Pure, no IO."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from scaler_io.security.keyring import PEER_ROLES, KeyRole, Principal
from scaler_protocol.handshake import PROTOCOL_VERSION, Hello, Refused, Role, ServiceKind, Welcome
from scaler_protocol.ids import IDENTITY_BYTES
from scaler_protocol.messages import Message

_NAMES: Final = {ServiceKind.SCHEDULER: "scheduler", ServiceKind.STORAGE: "object storage server"}
_BESIDE: Final = {ServiceKind.SCHEDULER: "one less", ServiceKind.STORAGE: "one more"}
_ROLES: Final = {
    Role.CLIENT: "a client",
    Role.AGENT: "an agent",
    Role.OPERATOR: "an operator",
    Role.MANAGER: "a worker manager",
}
CLIENT_LINKS: Final = 1024
"""Connections of one client's key to one service."""
Permissions = Mapping[int, frozenset[type[Message]]]
"""The types of numbered messages that a service takes from peers of each role."""


def role_name(role: int) -> str:
    """The name of this role in error texts."""
    return _ROLES.get(role, f"a peer with the unknown role {role}")


def admit_principal(
    hello: Hello, principal: Principal, known: Principal, links: int, worker_links: int
) -> Refused | None:
    """Why the holder of a key may not send this Hello.

    Its role, an identity that is bound to the key of `known`, or too many `links` that the holder of the key has; that
    of a worker's key may have `worker_links`.
    """
    if principal.key != known.key:
        return Refused(["another peer has this identity"])
    if hello.role in _ROLES and hello.role not in PEER_ROLES[principal.role]:
        reason = (
            f"the key {principal.name} has the role {principal.role.value}, which cannot be {role_name(hello.role)}"
        )
        return Refused([reason])
    if hello.relay and principal.role is not KeyRole.SERVER:
        name, role = principal.name, principal.role.value
        return Refused([f"the key {name} has the role {role}, which cannot be a relay: that needs the server's key"])
    if principal.role is KeyRole.CLIENT and links >= CLIENT_LINKS:
        return Refused([f"the key {principal.name} has {links:,} connections, as many as a client's key may have"])
    if principal.role is KeyRole.WORKER and links >= worker_links:
        return Refused(
            [
                f"the key {principal.name} has {links:,} connections, as many as a worker's key may have of those "
                "that the service can open: raise its limit with ulimit -n, or LimitNOFILE= of systemd"
            ]
        )
    return None


def admit(
    hello: Hello, welcome: Welcome, *, service: int, roles: Collection[int], refusals: Sequence[str], other: str = ""
) -> Welcome | Refused:
    """Return `welcome`, or a Refused with every reason why the peer may not connect.

    `roles` are those that the service accepts. `refusals` are its own reasons. A peer that wants
    another service than this one has the wrong address, which is the only reason then; `other` is the address or the
    port of that service, if this one knows it.
    """
    name = _NAMES[service]
    if hello.protocol == PROTOCOL_VERSION and hello.service != service:
        wanted = f"service {hello.service}"
        if hello.service in _NAMES:
            wanted = f"{_NAMES[hello.service]}, {other or f'whose port is {_BESIDE[hello.service]} by default'}"
        return Refused([f"this is the address of the {name}: give that of the {wanted}"])
    reasons: list[str] = []
    if hello.protocol != PROTOCOL_VERSION:
        reasons.append(f"protocol version {hello.protocol}, the {name} speaks {PROTOCOL_VERSION}")
    if hello.role not in roles:
        reasons.append(f"unknown role {hello.role}")
    if len(hello.identity) != IDENTITY_BYTES:
        reasons.append(f"an identity has {IDENTITY_BYTES} bytes, not {len(hello.identity)}")
    if hello.role == Role.CLIENT and not hello.session:
        reasons.append("a client has a session number other than 0")
    reasons += refusals
    return Refused(reasons) if reasons else welcome
