"""Session tokens: the scheduler vouches to object storage for a peer that it has welcomed. Pure, no IO.

A token is a keyed hash over its purpose, the public key of its holder, a session and its end: it is worth nothing to
the holder of another key, or for another session. Scheduler and object storage derive the same secret from the key of
the role server, which both have.
"""

from __future__ import annotations

import hmac
import struct
from enum import Enum
from hashlib import blake2b
from typing import Final

TOKEN_LIFE_SECONDS: Final = 366 * 24 * 3600
"""Longer than programs run: the holder gets a new token with each connection to the scheduler."""
_END: Final = struct.Struct("<Q")
_CLAIMS: Final = struct.Struct("<Q32sQQ")
_HASH_BYTES: Final = 16
TOKEN_BYTES: Final = _END.size + _HASH_BYTES


class Purpose(Enum):
    """What the holder of a token may do."""

    OWN = 1
    """Own the objects of one session, as a client does."""
    WORK = 2
    """Connect as an agent or one of its workers; the token names no session."""


class SessionTokens:
    """Issues and checks tokens."""

    def __init__(self, secret: bytes) -> None:
        """`secret` is the secret key of the role server, 32 bytes."""
        self._key = blake2b(secret, digest_size=32, person=b"scaler tokens").digest()

    def issue(self, purpose: Purpose, holder: bytes, session: int, now: float) -> bytes:
        """A token for the holder of a public key (32 bytes), to be used from `now` on, a Unix time in seconds."""
        end = int(now) + TOKEN_LIFE_SECONDS
        return _END.pack(end) + self._hash(purpose, holder, session, end)

    def is_valid(self, token: bytes, purpose: Purpose, holder: bytes, session: int, now: float) -> bool:
        """Whether this scheduler has issued the token for exactly that, and it has not ended."""
        if len(token) != TOKEN_BYTES:
            return False
        (end,) = _END.unpack_from(token)
        return now < end and hmac.compare_digest(token[_END.size :], self._hash(purpose, holder, session, end))

    def _hash(self, purpose: Purpose, holder: bytes, session: int, end: int) -> bytes:
        claims = _CLAIMS.pack(purpose.value, holder, session, end)
        return blake2b(claims, digest_size=_HASH_BYTES, key=self._key, person=b"scaler token").digest()
