"""Listings: the ids of the objects of a session, sent in pieces. Pure, no IO.

A session may have millions of objects, so one turn sends at most one piece, to one of the peers that wait. The ids of
a session are copied when its listing begins; other peers of the session wait until it has ended.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from scaler_protocol.errors import ProtocolError
from scaler_protocol.objects import OBJECT_ID_BYTES
from scaler_protocol.storage import ListObjects, ObjectList
from scaler_storage.engine.readers import READS_MOST, Readers
from scaler_storage.engine.state import StorageState

PIECE_IDS: Final = 4096
"""Ids in a piece; to encode them takes 5 ms."""


@dataclass(slots=True)
class _Listing:
    """A listing that has begun."""

    peer: bytes
    ids: list[bytes]
    """Those that were not sent yet."""


class Listings:
    """The peers that wait for the ids of their sessions."""

    def __init__(self, state: StorageState, readers: Readers) -> None:
        self._state, self._readers = state, readers
        self._requests: dict[bytes, deque[ListObjects]] = {}
        """The requests of each peer; no empty ones. The peer that was answered last comes last."""
        self._begun: dict[int, _Listing] = {}
        """By session."""
        self._sent = False
        """Whether this turn has sent a piece."""

    def add(self, peer: bytes, event: ListObjects) -> None:
        """Answer a request in later turns; raises ProtocolError if too many of this peer wait."""
        waiting = self._requests.setdefault(peer, deque())
        if len(waiting) >= READS_MOST:
            raise ProtocolError(f"{READS_MOST:,} requests of this peer for lists wait already")
        waiting.append(event)

    def leave(self, peer: bytes) -> None:
        """Forget the requests of a lost peer."""
        self._requests.pop(peer, None)
        for session in [session for session, each in self._begun.items() if each.peer == peer]:
            del self._begun[session]

    def settle(self) -> None:
        """Send a piece to the first peer that may have one."""
        self._sent = False
        for peer in list(self._requests):
            if self._send_piece(peer):
                self._sent = True
                return

    def due(self) -> float | None:
        """When `settle` has something to do, or None."""
        return self._state.now if self._sent and self._requests else None

    def _send_piece(self, peer: bytes) -> bool:
        """Send a piece to a peer; returns whether that was possible."""
        session = self._state.peers[peer].session
        entry = self._state.sessions.get(session)
        objects = entry.objects if entry is not None else set[bytes]()
        listing = self._begun.get(session)
        if listing is None:
            listing = self._begun[session] = _Listing(peer, list(objects))
        elif listing.peer != peer:
            return False
        piece = listing.ids[-PIECE_IDS:]
        if not self._readers.take(peer, len(piece) * OBJECT_ID_BYTES):
            return False
        del listing.ids[-PIECE_IDS:]
        requests = self._requests.pop(peer)
        ids = [each for each in piece if each in objects and each not in self._state.deleted]
        self._state.send(peer, ObjectList(ids, requests[0].request, len(listing.ids)))
        if not listing.ids:
            del self._begun[session]
            requests.popleft()
        if requests:
            self._requests[peer] = requests
        return True
