"""The order in which stored results have arrived, to prefetch those that will be read next.

Results are mostly read in the order of their arrival: after one is read, the next ones are likely to follow.
"""

from __future__ import annotations

from typing import Final

from scaler_protocol.objects import Reference

FOLLOWING_COUNT: Final = 16
"""How many results after the one that is read are prefetched at most."""


class ReadOrder:
    """Unread results by arrival, each once. Not thread-safe. Pure, no IO."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._references: dict[int, Reference] = {}
        self._count = 0

    def add(self, reference: Reference) -> None:
        """A result has arrived."""
        if reference.object not in self._numbers:
            self._numbers[reference.object] = self._count
            self._references[self._count] = reference
            self._count += 1

    def take(self, reference: Reference) -> list[Reference]:
        """Remove a result that is read or dropped; returns the unread ones of the FOLLOWING_COUNT after it."""
        number = self._numbers.pop(reference.object, None)
        if number is None:
            return []
        del self._references[number]
        following = map(self._references.get, range(number + 1, number + 1 + FOLLOWING_COUNT))
        return [each for each in following if each is not None]
