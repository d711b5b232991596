"""Suspensions: clients' keys whose new connections wait because a peer with the key broke the protocol. Pure, no IO."""

from __future__ import annotations

from typing import Final, NamedTuple

from scaler_io.security.keyring import KeyRole, Principal

FIRST_SECONDS: Final = 16.0
"""What a peer costs until it is cut off is about 0.5 s of work: a small part of that."""
LONGEST_SECONDS: Final = 64.0
FORGET_SECONDS: Final = 300.0
"""So long after the end of a suspension the next one is the first again."""


class _Suspension(NamedTuple):
    until: float
    seconds: float


class Suspensions:
    """Without a pause, who is cut off would connect again, and cost the service as much as before.

    Only keys of the role client are suspended: without keys, and with the key of all worker hosts, one peer could keep
    all others out.
    """

    def __init__(self) -> None:
        self._suspensions: dict[bytes, _Suspension] = {}
        """By key; only keys that the service accepts are here."""

    def suspend(self, principal: Principal, now: float) -> float:
        """Suspend the key of a peer that broke the protocol, each time twice as long; returns the seconds, or 0."""
        if principal.role is not KeyRole.CLIENT:
            return 0.0
        last = self._suspensions.get(principal.key)
        seconds = FIRST_SECONDS
        if last is not None and now < last.until + FORGET_SECONDS:
            seconds = min(2 * last.seconds, LONGEST_SECONDS)
        self._suspensions[principal.key] = _Suspension(now + seconds, seconds)
        return seconds

    def is_suspended(self, principal: Principal, now: float) -> bool:
        """Whether new connections of this key must wait."""
        suspension = self._suspensions.get(principal.key)
        return suspension is not None and now < suspension.until
