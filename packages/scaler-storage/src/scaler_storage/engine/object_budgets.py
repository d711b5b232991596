"""ObjectBudgets: how many objects there may be. Pure, no IO.

An object whose bytes are on disk, or on another host, takes none of the memory that is limited, but its record takes up
to RECORD_BYTES. All records may take a share of the memory limit. When they do, those sessions are refused further
objects of which the key (without keys: the session) has more than an equal part of it: the others go on. Sessions that
no client has owned yet count together.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from scaler_protocol.errors import StorageFullError

RECORD_BYTES: Final = 1024
"""What a record takes, at most."""
LEAST_OBJECTS: Final = 16_384
_SHARE: Final = 4
"""Records may take the memory limit divided by this."""


class ObjectBudgets:
    """Counts the objects of each account: the sessions of one key, or a session without keys."""

    def __init__(self, memory_limit: int) -> None:
        self._memory_limit = memory_limit
        self._most = max(LEAST_OBJECTS, memory_limit // _SHARE // RECORD_BYTES)
        self._counts: Counter[bytes] = Counter()
        """By account; no zeros."""
        self._total = 0

    def add(self, account: bytes, count: int) -> None:
        """An account has so many more objects; fewer, if it is negative."""
        self._total += count
        self._counts[account] += count
        if not self._counts[account]:
            del self._counts[account]

    def is_full(self, account: bytes) -> bool:
        """Whether an account may have no further object."""
        return self._total >= self._most and self._counts[account] >= self._most // max(1, len(self._counts))

    def require(self, account: bytes) -> None:
        """Raise StorageFullError if an account may have no further object."""
        if self.is_full(account):
            raise StorageFullError(
                f"there are {self._total:,} objects, here, on disk and on other hosts, of which this client has "
                f"{self._counts[account]:,}; a memory limit of {self._memory_limit:,} bytes allows {self._most:,}, "
                "and an equal part of them for each client's key"
            )

    def check(self, counts: Counter[bytes]) -> None:
        """Assert the invariants; `counts` are the objects by account."""
        assert self._counts == +counts and self._total == counts.total()
