"""Commits: the messages of a turn leave the scheduler when the records of the turn are on disk. Pure.

Output commit: the next scheduler knows all that any peer was told, acknowledgements included. Turns go on during a
commit; their messages leave in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from scaler_io.links.streams import Frames
from scaler_scheduler.journal.ledger import Ledger
from scaler_scheduler.journal.records import Batch

Outgoing = list[tuple[bytes, Frames]]
BEHIND_BYTES: Final = 256 * 1024 * 1024
"""The disk is behind from so many waiting bytes on, until only half as many wait."""


class Commits:
    """Hands batches of the ledger to `put`, with ascending tickets, and holds outputs until these are committed."""

    def __init__(self, ledger: Ledger, put: Callable[[int, Batch], None]) -> None:
        self._ledger = ledger
        self._put = put
        self._ticket = 0
        self._committed = 0
        self._held: deque[tuple[int, Outgoing, list[bytes]]] = deque()
        self._sizes: deque[tuple[int, int]] = deque()
        """Tickets that are not committed, and the bytes of their rows."""
        self.waiting_bytes = 0
        """Bytes of rows that are not on disk yet."""
        self.is_behind = False
        """Whether so much waits for the disk that no new work should be taken."""

    @property
    def is_waiting(self) -> bool:
        """Whether outputs are held."""
        return bool(self._held)

    def committed(self, ticket: int) -> None:
        """All batches up to this one are on disk."""
        self._committed = ticket
        while self._sizes and self._sizes[0][0] <= ticket:
            self._count(-self._sizes.popleft()[1])

    def all_committed(self) -> None:
        """All batches that were handed over are on disk."""
        self.committed(self._ticket)

    def put(self) -> None:
        """Hand over what the ledger has."""
        batch = self._ledger.take()
        if batch is not None:
            self._ticket += 1
            size = sum(len(row.body) for row in batch.rows)
            self._sizes.append((self._ticket, size))
            self._count(size)
            self._put(self._ticket, batch)

    def _count(self, size: int) -> None:
        self.waiting_bytes += size
        self.is_behind = self.waiting_bytes >= (BEHIND_BYTES // 2 if self.is_behind else BEHIND_BYTES)

    def hold(self, outgoing: Outgoing, cuts: list[bytes]) -> tuple[Outgoing, list[bytes]]:
        """Take the output of a turn; returns what may leave now: messages to write, routes to close after that."""
        self.put()
        if self._committed >= self._ticket and not self._held:
            return outgoing, cuts
        if outgoing or cuts:
            self._held.append((self._ticket, outgoing, cuts))
        ready: Outgoing = []
        ready_cuts: list[bytes] = []
        while self._held and self._held[0][0] <= self._committed:
            _, messages, routes = self._held.popleft()
            ready += messages
            ready_cuts += routes
        return ready, ready_cuts
