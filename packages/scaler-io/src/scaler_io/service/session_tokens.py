"""Session tokens in services: the scheduler issues them to its peers, and object storage demands them of its own."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from scaler_io.security.keyring import KeyRole, Principal
from scaler_io.security.tokens import Purpose, SessionTokens
from scaler_protocol.handshake import Hello, Refused, Role
from scaler_protocol.ids import is_nested

OWNERS_MOST: Final = 65_536
"""Nested sessions whose owners are remembered."""


class TokenDesk:
    """Issues tokens to a scheduler's peers, and checks those of an object storage server's peers.

    A token is for the key of its holder. Peers at a Unix socket have proved none: theirs are for whoever has them. The
    token of an agent is for all nested sessions; each belongs to the key whose holder names it first.
    """

    def __init__(self, secret: bytes) -> None:
        """`secret` is the secret key of the role server, 32 bytes."""
        self._tokens = SessionTokens(secret)
        self._owners: OrderedDict[int, bytes] = OrderedDict()
        """The keys of the holders that have named nested sessions, the earliest first."""

    def token(self, hello: Hello, principal: Principal) -> bytes:
        """The token for a peer that the scheduler welcomes; empty for one that has nothing in object storage."""
        if hello.role == Role.AGENT:
            return self._tokens.issue(Purpose.WORK, principal.key, 0)
        if hello.role == Role.CLIENT and not is_nested(hello.session):
            return self._tokens.issue(Purpose.OWN, principal.key, hello.session)
        return b""

    def refusal(self, hello: Hello, principal: Principal) -> Refused | None:
        """Why object storage does not admit a peer: the scheduler has not vouched for it, or for another session."""
        if principal.role is KeyRole.SERVER or hello.role == Role.OPERATOR:
            return None
        is_client = hello.role == Role.CLIENT
        # A worker owns the session of its tasks' tasks, never that of a client.
        may_own = not hello.session or is_nested(hello.session) != is_client
        purpose, session = (Purpose.OWN, hello.session) if is_client else (Purpose.WORK, 0)
        tokens, token = self._tokens, hello.session_token
        if not may_own or not any(tokens.is_valid(token, purpose, key, session) for key in (principal.key, b"")):
            what = f"session {hello.session}" if hello.session else "an agent"
            return Refused([f"the scheduler has not given the key {principal.name} a token for {what}"])
        if not is_client and hello.session and self._owner(hello.session, principal.key) != principal.key:
            return Refused([f"session {hello.session} is that of tasks of another agent"])
        return None

    def _owner(self, session: int, key: bytes) -> bytes:
        """The key of the owner of a nested session: this one, if nobody has named it before."""
        owner = self._owners.setdefault(session, key)
        if len(self._owners) > OWNERS_MOST:
            self._owners.popitem(last=False)
        return owner
