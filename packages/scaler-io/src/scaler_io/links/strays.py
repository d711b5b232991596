"""Strays: counts the messages from routes without a peer that are no Hello. Pure, no IO.

A peer that was given up may have sent some before it was asked for a Hello; who goes on is cut off.
"""

from __future__ import annotations

from typing import Final

STRAYS_LIMIT: Final = 100
"""Such messages from one route before its connection is closed."""
_ROUTES_LIMIT: Final = 65_536
"""For how many routes messages are counted; a service has no more connections."""


class Strays:
    """The numbers of stray messages by route."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        """In the order of the last message."""

    def add(self, route: bytes) -> bool:
        """Count a message; whether these are too many."""
        count = self._counts[route] = self._counts.pop(route, 0) + 1
        if len(self._counts) > _ROUTES_LIMIT:
            del self._counts[next(iter(self._counts))]
        return count > STRAYS_LIMIT

    def forget(self, route: bytes) -> None:
        """A peer has left this route: what it has sent meanwhile may follow."""
        self._counts.pop(route, None)
