"""Whom object storage admits, by the token that the scheduler gave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaler_io.security.keyring import ANYONE, KeyRole, Principal
from scaler_io.service import session_tokens
from scaler_io.service.session_tokens import TokenDesk
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import is_nested, new_identity, new_session

DESK = TokenDesk(b"s" * 32)
ADA, BOB = Principal(b"a" * 32, KeyRole.CLIENT, "ada"), Principal(b"b" * 32, KeyRole.CLIENT, "bob")
WORKER = Principal(b"w" * 32, KeyRole.WORKER, "worker")
SESSION, NESTED = 5, 2**32 - 5


def hello(role: int, session: int = 0, token: bytes = b"") -> Hello:
    return Hello(role, new_identity(), 1, session=session, session_token=token)


def test_numbers_tell_whose_sessions_they_are() -> None:
    assert {is_nested(new_session()) for _ in range(100)} == {is_nested(SESSION)} == {False}
    assert {is_nested(new_session(nested=True)) for _ in range(100)} == {is_nested(NESTED)} == {True}


def test_a_client_owns_its_session() -> None:
    token = DESK.token(hello(Role.CLIENT, SESSION), ADA)
    assert DESK.refusal(hello(Role.CLIENT, SESSION, token), ADA) is None


def test_a_worker_works_for_all_and_owns_what_its_tasks_submit() -> None:
    token = DESK.token(hello(Role.AGENT), WORKER)
    assert DESK.refusal(hello(Role.AGENT, token=token), WORKER) is None
    assert DESK.refusal(hello(Role.AGENT, NESTED, token), WORKER) is None


@pytest.mark.parametrize(
    ("role", "session", "holder"),
    [
        (Role.CLIENT, SESSION, BOB),
        (Role.CLIENT, SESSION + 1, ADA),
        (Role.AGENT, 0, WORKER),
        (Role.AGENT, SESSION, WORKER),
    ],
)
def test_the_token_of_another_is_refused(role: int, session: int, holder: Principal) -> None:
    stolen = hello(role, session, DESK.token(hello(Role.CLIENT, SESSION), ADA))
    for each in (stolen, replace(stolen, session_token=b"")):
        refused = DESK.refusal(each, holder)
        assert refused is not None
        [reason] = refused.reasons
        assert reason.startswith(f"the scheduler has not given the key {holder.name} a token for ")


def test_a_worker_owns_no_session_of_a_client_and_no_client_that_of_a_worker() -> None:
    work = DESK.token(hello(Role.AGENT), WORKER)
    assert DESK.refusal(hello(Role.AGENT, SESSION, work), WORKER) is not None
    assert DESK.token(hello(Role.CLIENT, NESTED), ADA) == b""
    assert DESK.refusal(hello(Role.CLIENT, NESTED), ADA) is not None


def test_what_tasks_submit_belongs_to_the_agent_that_names_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_tokens, "OWNERS_MOST", 3)
    desk, other = TokenDesk(b"s" * 32), Principal(b"x" * 32, KeyRole.WORKER, "other")
    first, second = desk.token(hello(Role.AGENT), WORKER), desk.token(hello(Role.AGENT), other)
    assert desk.refusal(hello(Role.AGENT, NESTED, first), WORKER) is None
    refused = desk.refusal(hello(Role.AGENT, NESTED, second), other)
    assert refused is not None and refused.reasons == [f"session {NESTED} is that of tasks of another agent"]
    assert desk.refusal(hello(Role.AGENT, NESTED, first), WORKER) is None, "its further connections"
    assert desk.refusal(hello(Role.AGENT, 0, second), other) is None
    for number in range(3):
        assert desk.refusal(hello(Role.AGENT, NESTED + 1 + number, second), other) is None
    assert desk.refusal(hello(Role.AGENT, NESTED, second), other) is None, "only the latest are remembered"


def test_operators_and_services_need_no_token() -> None:
    operator = Principal(b"o" * 32, KeyRole.OPERATOR, "operator")
    assert DESK.token(hello(Role.OPERATOR), operator) == b""
    assert DESK.refusal(hello(Role.OPERATOR), operator) is None
    assert DESK.refusal(hello(Role.AGENT), ANYONE) is None


def test_a_token_that_was_given_over_a_unix_socket_is_for_any_key_of_this_user() -> None:
    unproved = Principal(b"", KeyRole.SERVER, "")
    token = DESK.token(hello(Role.CLIENT, SESSION), unproved)
    assert DESK.refusal(hello(Role.CLIENT, SESSION, token), ADA) is None
    assert DESK.refusal(hello(Role.CLIENT, SESSION + 1, token), ADA) is not None
