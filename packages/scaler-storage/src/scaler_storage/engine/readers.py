"""Readers: how many bytes of answers are under way to peers, and the reads that wait for that. Pure, no IO.

A peer may request more than it reads. So it has at most PEER_BYTES of answers under way, and the peers of one key have
KEY_BYTES together; answers are under way until the peer has acknowledged them. A peer without any may always have one
part, so that peers of its key that do not read cannot stop it. All further reads wait, in order, as events without
their bytes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

from scaler_protocol.errors import ObjectRefusedError, ProtocolError
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.objects import PART_BYTES
from scaler_protocol.storage import GetObject

PEER_BYTES: Final = 16 * 1024 * 1024
"""Bytes of answers under way to one peer; our own request 8 MiB at a time."""
KEY_BYTES: Final = 64 * 1024 * 1024
"""Bytes of answers under way to all peers of a key."""
READS_MOST: Final = 16_384
"""Reads of one peer that may wait; our own request at most half as many."""
_SMALL_BYTES: Final = 64 * 1024
"""With so few bytes unacknowledged, a peer has no answers with bytes under way."""


@dataclass(frozen=True, slots=True)
class WaitingRead:
    """A waiting read; `why` the object cannot be loaded into memory, and must be read from disk."""

    event: GetObject
    why: ObjectRefusedError | None = None


class Readers:
    """The peers that read, the bytes under way to them, and their waiting reads."""

    def __init__(self, key_of: Callable[[bytes], bytes], unacknowledged: Callable[[bytes], int]) -> None:
        """`key_of` tells the key that a peer has proved, `unacknowledged` the bytes sent that it has not acknowledged.

        The latter does not count the messages of this turn.
        """
        self._key_of, self._unacknowledged = key_of, unacknowledged
        self._waiting: dict[bytes, deque[WaitingRead]] = {}
        """No empty ones."""
        self._given: Counter[bytes] = Counter()
        """Bytes of answers to each peer in this turn."""
        self._under_way: dict[bytes, set[bytes]] = {}
        """By key: the peers that may have answers under way."""
        self._totals: Counter[bytes] = Counter()
        """By key: the bytes under way, or more."""
        self._counted: set[bytes] = set()
        """Keys whose bytes were counted in this turn."""

    def has_waiting(self, peer: bytes) -> bool:
        """Whether reads of this peer wait; later ones must not overtake them."""
        return peer in self._waiting

    def peers(self) -> list[bytes]:
        """The peers with waiting reads."""
        return list(self._waiting)

    def add(self, peer: bytes, read: WaitingRead) -> None:
        """Let a read wait behind the others of its peer; raises ProtocolError if these are too many."""
        waiting = self._waiting.setdefault(peer, deque())
        if len(waiting) >= READS_MOST:
            raise ProtocolError(f"{READS_MOST:,} reads of this peer wait already")
        waiting.append(read)

    def put_first(self, peer: bytes, reads: Sequence[WaitingRead]) -> None:
        """Let reads wait that came before the other waiting ones of their peer."""
        self._waiting.setdefault(peer, deque()).extendleft(reversed(reads))

    def next(self, peer: bytes) -> WaitingRead | None:
        """Remove the first waiting read of a peer; None if there is none."""
        waiting = self._waiting.get(peer)
        if waiting is None:
            return None
        read = waiting.popleft()
        if not waiting:
            del self._waiting[peer]
        return read

    def leave(self, peer: bytes) -> None:
        """Forget the waiting reads of a lost peer."""
        self._waiting.pop(peer, None)

    def take(self, peer: bytes, size: int) -> bool:
        """Whether an answer with `size` bytes may be sent to a peer now; its bytes are under way then."""
        own, key = self._unacknowledged(peer) + self._given[peer], self._key_of(peer)
        is_idle = own <= _SMALL_BYTES
        if not is_idle and own + size > PEER_BYTES:
            return False
        if not (is_idle and size <= PART_BYTES) and not self._has_room(key, size):
            return False
        self._given[peer] += size
        self._totals[key] += size
        self._under_way.setdefault(key, set()).add(peer)
        return True

    def _has_room(self, key: bytes, size: int) -> bool:
        """Whether `size` more bytes may be under way to the peers of a key; if there are none, any size may."""
        if self._totals[key] + size > KEY_BYTES and key not in self._counted:
            self._count(key)
        return self._totals[key] + size <= KEY_BYTES or self._totals[key] <= _SMALL_BYTES

    def _count(self, key: bytes) -> None:
        self._counted.add(key)
        peers = self._under_way.pop(key, set())
        under_way = {peer: self._unacknowledged(peer) + self._given[peer] for peer in peers}
        self._totals[key] = sum(under_way.values())
        if self._totals[key]:
            self._under_way[key] = {peer for peer, size in under_way.items() if size}
        else:
            del self._totals[key]

    def end_turn(self) -> None:
        """From now on `unacknowledged` counts what was sent in this turn."""
        self._given.clear()
        self._counted.clear()
