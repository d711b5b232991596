"""What every service requires of a peer's Hello."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaler_io.links.admission import admit, admit_principal
from scaler_io.security.keyring import ANYONE, KeyRole, Principal
from scaler_protocol.handshake import PROTOCOL_VERSION, Hello, Refused, Role, ServiceKind, Welcome

HELLO = Hello(Role.CLIENT, b"c" * 16, 1, session=3)
WELCOME = Welcome(7)
ROLES = (Role.CLIENT, Role.AGENT, Role.OPERATOR)


@pytest.mark.parametrize("role", [Role.CLIENT, Role.AGENT, Role.OPERATOR])
def test_a_valid_hello_is_welcome(role: int) -> None:
    assert admit(replace(HELLO, role=role), WELCOME, service=ServiceKind.SCHEDULER, roles=ROLES, refusals=()) is WELCOME


def test_an_agent_or_operator_needs_no_session() -> None:
    for role in (Role.AGENT, Role.OPERATOR):
        assert (
            admit(
                replace(HELLO, role=role, session=0), WELCOME, service=ServiceKind.SCHEDULER, roles=ROLES, refusals=()
            )
            is WELCOME
        )


def test_a_refusal_lists_every_common_reason() -> None:
    hello = Hello(Role.CLIENT, b"short", 1, protocol=PROTOCOL_VERSION + 1)
    refused = admit(hello, WELCOME, service=ServiceKind.SCHEDULER, roles=ROLES, refusals=())
    assert refused == Refused(
        [
            f"protocol version {PROTOCOL_VERSION + 1}, the scheduler speaks {PROTOCOL_VERSION}",
            "an identity has 16 bytes, not 5",
            "a client has a session number other than 0",
        ]
    )


def test_an_unknown_role_is_refused() -> None:
    assert admit(replace(HELLO, role=9), WELCOME, service=ServiceKind.SCHEDULER, roles=ROLES, refusals=()) == Refused(
        ["unknown role 9"]
    )


def test_the_reasons_of_a_service_follow_the_common_ones() -> None:
    refused = admit(
        replace(HELLO, role=9),
        WELCOME,
        service=ServiceKind.SCHEDULER,
        roles=ROLES,
        refusals=["session 3 is taken"],
    )
    assert refused == Refused(["unknown role 9", "session 3 is taken"])


@pytest.mark.parametrize(
    ("service", "wanted", "reason"),
    [
        (
            ServiceKind.STORAGE,
            ServiceKind.SCHEDULER,
            "this is the address of the object storage server: "
            "give that of the scheduler, whose port is one less by default",
        ),
        (
            ServiceKind.SCHEDULER,
            ServiceKind.STORAGE,
            "this is the address of the scheduler: "
            "give that of the object storage server, whose port is one more by default",
        ),
        (ServiceKind.SCHEDULER, 9, "this is the address of the scheduler: give that of the service 9"),
    ],
)
def test_a_peer_that_wants_another_service_is_told_whose_address_it_has(service: int, wanted: int, reason: str) -> None:
    hello, other = replace(HELLO, role=9, service=wanted), ["session 3 is taken"]
    refused = admit(hello, WELCOME, service=service, roles=ROLES, refusals=other)
    assert refused == Refused([reason])


def test_a_service_that_knows_where_the_other_one_is_says_so() -> None:
    hello, other = replace(HELLO, service=ServiceKind.STORAGE), "tcp://127.0.0.1:9"
    refused = admit(hello, WELCOME, service=ServiceKind.SCHEDULER, roles=ROLES, refusals=(), other=other)
    assert refused == Refused(
        ["this is the address of the scheduler: give that of the object storage server, tcp://127.0.0.1:9"]
    )


@pytest.mark.parametrize("role", KeyRole)
def test_only_the_servers_key_is_that_of_a_relay(role: KeyRole) -> None:
    holder = Principal(b"k" * 32, role, "mallory")
    relay = replace(HELLO, role=Role.AGENT, relay=True)
    refused = admit_principal(relay, holder, holder, 0, 10)
    assert (refused is None) == (role is KeyRole.SERVER)
    if role is KeyRole.WORKER:
        assert refused == Refused(
            ["the key mallory has the role worker, which cannot be a relay: that needs the server's key"]
        )
    assert admit_principal(relay, ANYONE, ANYONE, 0, 10) is None
