"""Session tokens: the scheduler vouches to object storage for a peer that it has welcomed. Pure, no IO.

A token is a keyed hash over its purpose, the public key of its holder and a session: it is worth nothing to the holder
of another key, or for another session. It has no end of its own, but is worth nothing once the key is revoked.
Scheduler and object storage derive the same secret from the key of the role server, which both have.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final

from scaler_protocol.light_crypto import blake2b, compare_digest

_CLAIMS: Final = struct.Struct("<Q32sQ")
TOKEN_BYTES: Final = 16


class Purpose(Enum):
    """The purpose of a token."""

    OWN = 1
    """Own the objects of one session, as a client does."""
    WORK = 2
    """Connect as an agent or one of its workers; the token names no session."""


class SessionTokens:
    """Issues and checks tokens."""

    def __init__(self, secret: bytes) -> None:
        """`secret` is the secret key of the role server, 32 bytes."""
        self._key = blake2b(secret, digest_size=32, person=b"scaler tokens").digest()

    def issue(self, purpose: Purpose, holder: bytes, session: int) -> bytes:
        """A token for the holder of a public key (32 bytes)."""
        claims = _CLAIMS.pack(purpose.value, holder, session)
        return blake2b(claims, digest_size=TOKEN_BYTES, key=self._key, person=b"scaler token").digest()

    def is_valid(self, token: bytes, purpose: Purpose, holder: bytes, session: int) -> bool:
        """Whether this scheduler has issued the token for exactly that."""
        return compare_digest(token, self.issue(purpose, holder, session))
