"""ReadOrder: results in object storage that have come and that nobody has read, in the order in which they came.

Mostly they are read in about that order, so whoever reads one is likely to ask for those behind it next.
"""

from __future__ import annotations

from typing import Final

from scaler_protocol.objects import Reference

FOLLOWING_COUNT: Final = 16
"""How many behind a result are looked at."""


class ReadOrder:
    """References of results, each of them once. Not thread-safe. Pure, no IO."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._references: dict[int, Reference] = {}
        self._count = 0

    def add(self, reference: Reference) -> None:
        """One more has come."""
        if reference.object not in self._numbers:
            self._numbers[reference.object] = self._count
            self._references[self._count] = reference
            self._count += 1

    def take(self, reference: Reference) -> list[Reference]:
        """One is read, or will not be; which came right behind it and are unread."""
        number = self._numbers.pop(reference.object, None)
        if number is None:
            return []
        del self._references[number]
        behind = map(self._references.get, range(number + 1, number + 1 + FOLLOWING_COUNT))
        return [each for each in behind if each is not None]
