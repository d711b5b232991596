"""CopyOrders: orders copies of results that are on other hosts, one at a time while nothing else is under way. Pure."""

from __future__ import annotations

from collections.abc import Callable

from scaler_protocol.storage import CopyReplicas, FetchReplica
from scaler_storage.engine.remote_objects import FETCH_START_SECONDS
from scaler_storage.engine.state import StorageState

LOOK_SECONDS = 0.25
"""How often to look whether nothing else is under way, in seconds."""


class CopyOrders:
    """Takes the scheduler's word for which results somebody has requested. `is_idle`: no read or fetch is under way."""

    def __init__(self, state: StorageState, is_idle: Callable[[], bool]) -> None:
        self._state, self._is_idle = state, is_idle
        self._ordered: tuple[bytes, bytes, float] | None = None
        """The object, the replica server and the time of the last order, until its copy is there or given up."""
        self._look_at = 0.0

    def want(self, peer: bytes, event: CopyReplicas) -> None:
        """Copies are wanted of those of these objects that are on other hosts."""
        for name in event.objects:
            record = self._state.find(name)
            if record is not None and record.host:
                self._state.copies.want(name)

    def settle(self) -> None:
        """Order the next copy if nothing else is under way."""
        state, wanted = self._state, self._state.copies.wanted
        state.copies.retry(state.now)
        if self._ordered is not None and not self._is_pending(*self._ordered):
            self._ordered = None
        if self._ordered is not None or not wanted or state.now < self._look_at:
            return
        if state.uploads or state.queue or not self._is_idle():
            self._look_at = state.now + LOOK_SECONDS
            return
        while wanted and self._ordered is None:
            self._try(next(iter(wanted)))

    def _try(self, name: bytes) -> None:
        """Order a copy if there is room and its host can be reached; if it does not come it is wanted again later."""
        state = self._state
        record = state.objects[name]
        state.copies.want_later(name, state.now)
        server = next(iter(state.replica_servers.get(record.host, ())), None)
        holder = state.sessions[record.session].holder
        if server is not None and state.copies.has_room(holder, record.size):
            self._ordered = name, server, state.now
            state.send(server, FetchReplica(name, record.size, record.session, record.version, keep=True))

    def _is_pending(self, name: bytes, server: bytes, at: float) -> bool:
        """Whether an ordered copy may still come."""
        if name not in self._state.copies.wanted_later or server not in self._state.peers:
            return False
        return (server, name) in self._state.uploads or self._state.now < at + FETCH_START_SECONDS

    def due(self) -> float | None:
        """When `settle` has something to do, or None."""
        if self._ordered is not None:
            name, server, at = self._ordered
            return None if (server, name) in self._state.uploads else at + FETCH_START_SECONDS
        copies = self._state.copies
        return self._look_at if copies.wanted else next(iter(copies.wanted_later.values()), None)

    def check(self) -> None:
        """Assert the invariants."""
        state = self._state
        state.copies.check()
        for name in (*state.copies.names(), *state.copies.wanted, *state.copies.wanted_later):
            assert state.objects[name].host
        for name, record in zip(state.copies.names(), state.copies.records(), strict=True):
            of = state.objects[name]
            assert (of.session, of.size, of.version) == (record.session, record.size, record.version)
            assert of.host in state.replica_servers
