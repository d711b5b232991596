"""DroppedCopies: copies of objects that are not needed any more, kept for hosts that are out of reach. Pure, no IO."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final

DROPPED_LIMIT: Final = 100_000
"""Copies that are remembered for all sessions of a key together; each takes about 200 bytes."""
ANY_VERSION: Final = 0
"""Instead of a version: no version of the object is needed."""


class DroppedCopies:
    """By session: ids and versions of copies that are not needed any more, the oldest first.

    When the sessions of a key have too many, the one that adds another forgets its own oldest one.
    """

    def __init__(self) -> None:
        self._sessions: dict[int, tuple[bytes, OrderedDict[tuple[bytes, int], None]]] = {}
        """By session: its key, and its copies; sessions without copies are not listed."""
        self._counts: Counter[bytes] = Counter()

    def remember(self, session: int, key: bytes, name: bytes, version: int) -> None:
        """A copy of an object, or ANY_VERSION of it, is not needed any more. A known session keeps its key."""
        key, copies = self._sessions.setdefault(session, (key, OrderedDict()))
        self._counts[key] += (name, version) not in copies
        copies[name, version] = None
        if self._counts[key] > DROPPED_LIMIT:
            self._remove(session, *next(iter(copies)))

    def needed_again(self, session: int, name: bytes) -> None:
        """An object is written again: new copies of it are needed."""
        self._remove(session, name, ANY_VERSION)

    def has(self, session: int, name: bytes, version: int) -> bool:
        """Whether a copy is not needed any more."""
        _, copies = self._sessions.get(session, (b"", ()))
        return (name, version) in copies or (name, ANY_VERSION) in copies

    def forget(self, session: int) -> None:
        """A session is over."""
        key, copies = self._sessions.pop(session, (b"", ()))
        self._count(key, -len(copies))

    def _remove(self, session: int, name: bytes, version: int) -> None:
        if session not in self._sessions:
            return
        key, copies = self._sessions[session]
        if (name, version) in copies:
            del copies[name, version]
            self._count(key, -1)
        if not copies:
            del self._sessions[session]

    def _count(self, key: bytes, change: int) -> None:
        self._counts[key] += change
        if not self._counts[key]:
            del self._counts[key]

    def check(self) -> None:
        """Assert the invariants."""
        counts: Counter[bytes] = Counter()
        for key, copies in self._sessions.values():
            assert copies
            counts[key] += len(copies)
        assert counts == self._counts and all(count <= DROPPED_LIMIT for count in counts.values())
