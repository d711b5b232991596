"""The tokens of sessions: what the scheduler tells its peers, and what object storage demands of its own."""

from __future__ import annotations

import time

from scaler_io.security.keyring import KeyRole, Principal
from scaler_io.security.tokens import Purpose, SessionTokens
from scaler_protocol.handshake import Hello, Refused, Role
from scaler_protocol.ids import is_nested


class TokenDesk:
    """Issues tokens to a scheduler's peers, and checks those of an object storage server's peers.

    A token is for the key of its holder. Peers at a Unix socket have proved none: theirs are for whoever has them.
    """

    def __init__(self, secret: bytes) -> None:
        """`secret` is the secret key of the role server, 32 bytes."""
        self._tokens = SessionTokens(secret)

    def token(self, hello: Hello, principal: Principal) -> bytes:
        """The token for a peer that the scheduler welcomes; empty for one that has nothing in object storage."""
        if hello.role == Role.AGENT:
            return self._tokens.issue(Purpose.WORK, principal.key, 0, time.time())
        if hello.role == Role.CLIENT and not is_nested(hello.session):
            return self._tokens.issue(Purpose.OWN, principal.key, hello.session, time.time())
        return b""

    def refusal(self, hello: Hello, principal: Principal) -> Refused | None:
        """Why object storage does not admit a peer: the scheduler has not vouched for it, or for another session."""
        if principal.role is KeyRole.SERVER or hello.role == Role.OPERATOR:
            return None
        is_client = hello.role == Role.CLIENT
        # A worker owns the session of its tasks' tasks, never that of a client.
        may_own = not hello.session or is_nested(hello.session) != is_client
        purpose, session = (Purpose.OWN, hello.session) if is_client else (Purpose.WORK, 0)
        now = time.time()
        holders = (principal.key, b"")
        if may_own and any(
            self._tokens.is_valid(hello.session_token, purpose, holder, session, now) for holder in holders
        ):
            return None
        what = f"session {hello.session}" if hello.session else "an agent"
        return Refused([f"the scheduler has not given the key {principal.name} a token for {what}"])
