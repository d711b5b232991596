"""Liveness of local processes by file locks, independent of their connections. No IO but through Segments.

A process keeps a file in the segment directory locked while it lives (scaler_io.objects.file_locks), and names this
`lock_file` on each of its connections. The process is dead if the lock is free at two checks in a row: by the second
check its last messages have arrived.

    alive ──the lock is free──▶ dead: its uploads and pins end ──GRACE_SECONDS──▶ its session ends
      ▲                              └──a message arrives──▶ from then on only its connection counts
      └── its connection is lost: the file is kept until the process is dead, then removed
"""

from __future__ import annotations

from collections.abc import Collection

from scaler_storage.engine.segments import Segments

LOOK_SECONDS = 1.0
"""Seconds between two checks of the locks."""
GRACE_SECONDS = 5.0
"""How long, in seconds, the session of a dead process is kept: its results cannot be recomputed."""


class ProcessLiveness:
    """Tracks the lock files of local peers."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._lock_files: dict[bytes, str] = {}
        """The lock file of each peer's process."""
        self._departed: set[str] = set()
        """Lock files whose peers are gone."""
        self._unlocked: set[str] = set()
        """Lock files that were free at the last check."""
        self._dead: dict[bytes, float] = {}
        """When the sessions of dead peers end, the earliest first."""
        self._look_at = 0.0

    def add(self, peer: bytes, lock_file: str) -> None:
        """Track the lock file of a peer's process."""
        self._lock_files[peer] = lock_file
        self._departed.discard(lock_file)

    def remove(self, peer: bytes) -> None:
        """Forget a peer that was lost or replaced; its process may continue to run."""
        self._dead.pop(peer, None)
        if (lock_file := self._lock_files.pop(peer, None)) is not None:
            self._departed.add(lock_file)
            self._departed.difference_update(self._lock_files.values())

    def heard(self, peer: bytes) -> None:
        """Record a message of a peer: it is alive."""
        self._dead.pop(peer, None)

    def forget_all(self) -> None:
        """Forget all lock files: their directory was removed."""
        self._lock_files.clear()
        self._departed.clear()
        self._unlocked.clear()

    def look(self, now: float) -> list[bytes]:
        """Check the locks if due; returns the peers whose processes are dead."""
        known = self._departed.union(self._lock_files.values())
        if not known or now < self._look_at:
            return []
        self._look_at = now + LOOK_SECONDS
        unlocked = self._segments.unlocked(known)
        over = unlocked & self._unlocked
        self._unlocked = unlocked - over
        dead = [peer for peer, lock_file in self._lock_files.items() if lock_file in over]
        for peer in dead:
            del self._lock_files[peer]
            self._dead[peer] = now + GRACE_SECONDS
        self._departed -= over
        for lock_file in over:
            self._segments.forget_lock_file(lock_file)
        return dead

    def expired(self, now: float) -> list[bytes]:
        """Remove and return the dead peers whose sessions end now."""
        peers = [peer for peer, at in self._dead.items() if at <= now]
        for peer in peers:
            del self._dead[peer]
        return peers

    def due(self) -> float | None:
        """When `look` or `expired` has something to do, or None."""
        look = self._look_at if self._lock_files or self._departed else None
        times = (look, next(iter(self._dead.values()), None))
        return min((at for at in times if at is not None), default=None)

    def check(self, peers: Collection[bytes]) -> None:
        """Assert the invariants; `peers` are the connected ones."""
        assert all(peer in peers for peer in (*self._lock_files, *self._dead))
        assert not self._lock_files.keys() & self._dead.keys()
        assert self._departed.isdisjoint(self._lock_files.values())
        assert list(self._dead.values()) == sorted(self._dead.values())
