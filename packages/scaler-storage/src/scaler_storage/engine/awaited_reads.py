"""AwaitedReads: how many reads of each peer wait for objects that are not in memory. Pure, no IO.

The objects may be on disk, or on a host that does not bring them for as long as it likes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from scaler_protocol.errors import ProtocolError
from scaler_storage.engine.readers import READS_MOST
from scaler_storage.engine.records import ObjectRecord, Read


class AwaitedReads:
    """The peers that wait, and for which objects."""

    def __init__(self) -> None:
        self._peers: dict[bytes, Counter[ObjectRecord]] = {}
        """Numbers of reads; no empty ones and no zeros."""
        self._totals: Counter[bytes] = Counter()

    def require(self, peer: bytes) -> None:
        """Raise ProtocolError if the peer may not request more."""
        if self._totals[peer] >= READS_MOST:
            raise ProtocolError(f"{READS_MOST:,} reads of this peer wait for objects already")

    def add(self, record: ObjectRecord, peer: bytes, event: Read) -> None:
        """A read waits for an object."""
        record.waiting.append((peer, event))
        self._peers.setdefault(peer, Counter())[record] += 1
        self._totals[peer] += 1

    def take(self, record: ObjectRecord) -> list[tuple[bytes, Read]]:
        """Remove and return the reads that wait for an object."""
        waiting, record.waiting = record.waiting, []
        for peer, _ in waiting:
            self._totals[peer] -= 1
            self._peers[peer][record] -= 1
            if not self._peers[peer][record]:
                del self._peers[peer][record]
            if not self._totals[peer]:
                del self._totals[peer], self._peers[peer]
        return waiting

    def leave(self, peer: bytes) -> list[ObjectRecord]:
        """Forget the reads of a lost peer; returns the objects for which no other read waits."""
        records = self._peers.pop(peer, Counter())
        self._totals.pop(peer, None)
        for record in records:
            record.waiting = [entry for entry in record.waiting if entry[0] != peer]
        return [record for record in records if not record.waiting]

    def check(self, records: Iterable[ObjectRecord]) -> None:
        """Assert the invariants; `records` are all objects."""
        waiting = Counter((peer, record) for record in records for peer, _ in record.waiting)
        assert waiting == Counter(
            {(peer, record): count for peer, counts in self._peers.items() for record, count in counts.items()}
        )
        assert self._totals == Counter({peer: counts.total() for peer, counts in self._peers.items()})
