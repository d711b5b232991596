"""Processes: which peers on the server's host are dead, whatever their connections say. Pure, no IO.

A process keeps a file of the segment directory locked as long as it lives (scaler_io.objects.file_locks), and names it
in each of its connections. Once the lock is free, at two looks in a row, as what the process said last has come by the
second one:

    alive ──the lock is free──▶ dead: what it was doing ends ──GRACE_SECONDS──▶ its session ends
      ▲                              └──it says something──▶ its connection alone counts
      └── its connection is gone: the name is kept until the process is dead, for the file to be removed
"""

from __future__ import annotations

from collections.abc import Collection

from scaler_storage.engine.segments import Segments

LOOK_SECONDS = 1.0
"""How often it is looked which processes live."""
GRACE_SECONDS = 5.0
"""How long the session of a dead process is kept: its results can not be made again, so one proof is not enough."""


class Processes:
    """The lives of the processes behind local peers."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._lives: dict[bytes, str] = {}
        """What each peer's process has locked."""
        self._departed: set[str] = set()
        """Lives whose peers are gone."""
        self._unlocked: set[str] = set()
        """Lives whose locks were free at the last look."""
        self._dead: dict[bytes, float] = {}
        """When the sessions of dead peers end, the earliest first."""
        self._look_at = 0.0

    def add(self, peer: bytes, life: str) -> None:
        """A peer has named its life."""
        self._lives[peer] = life
        self._departed.discard(life)

    def remove(self, peer: bytes) -> None:
        """A peer is gone, or begins anew; its process may go on."""
        self._dead.pop(peer, None)
        if (life := self._lives.pop(peer, None)) is not None:
            self._departed.add(life)
            self._departed.difference_update(self._lives.values())

    def heard(self, peer: bytes) -> None:
        """A peer has said something, so it lives."""
        self._dead.pop(peer, None)

    def forget_all(self) -> None:
        """The files of all lives are gone: nothing is known by them any more."""
        self._lives.clear()
        self._departed.clear()
        self._unlocked.clear()

    def look(self, now: float) -> list[bytes]:
        """The peers whose processes have turned out to be dead."""
        known = self._departed.union(self._lives.values())
        if not known or now < self._look_at:
            return []
        self._look_at = now + LOOK_SECONDS
        unlocked = self._segments.unlocked(known)
        over = unlocked & self._unlocked
        self._unlocked = unlocked - over
        dead = [peer for peer, life in self._lives.items() if life in over]
        for peer in dead:
            del self._lives[peer]
            self._dead[peer] = now + GRACE_SECONDS
        self._departed -= over
        for life in over:
            self._segments.forget_life(life)
        return dead

    def expired(self, now: float) -> list[bytes]:
        """The dead peers whose sessions end now."""
        peers = [peer for peer, at in self._dead.items() if at <= now]
        for peer in peers:
            del self._dead[peer]
        return peers

    def due(self) -> float | None:
        """When to look again."""
        look = self._look_at if self._lives or self._departed else None
        times = (look, next(iter(self._dead.values()), None))
        return min((at for at in times if at is not None), default=None)

    def check(self, peers: Collection[bytes]) -> None:
        """Assert the invariants; `peers` are those that are there."""
        assert all(peer in peers for peer in (*self._lives, *self._dead))
        assert not self._lives.keys() & self._dead.keys()
        assert self._departed.isdisjoint(self._lives.values())
        assert list(self._dead.values()) == sorted(self._dead.values())
