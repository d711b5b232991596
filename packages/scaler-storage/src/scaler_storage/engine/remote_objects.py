"""Remote objects: those whose only copy is on the host that made them. Pure, no IO.

    RegisterReplica ──▶ REMOTE ──a read──▶ FetchReplica to a replica server of the host ──PutObject──▶ in memory
                    │      └──────────── the host needs room: PutObject ────────────────────────▶
                    └──the host has no replica server──▶ out of reach: not found, until one registers

A remote object has a session and a version like any other, but takes no memory here. When it is deleted, or put here by
another writer, its host is told to delete its copy. A host that was out of reach then, or that the message did not
reach, is told when it announces the object again: the copies that a session does not need any more are remembered.
"""

from __future__ import annotations

import logging

from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Role
from scaler_protocol.messages import pieces_of
from scaler_protocol.storage import DropReplicas, FetchReplica, RegisterReplicaServer
from scaler_storage.engine.records import ObjectRecord, PeerRecord
from scaler_storage.engine.state import StorageState

FETCH_START_SECONDS = 2.0
"""How long, in seconds, a replica server has to begin with the PutObject it was asked for."""
_HOST_BYTES = 16
"""The least size of a host's id, so that it is as hard to guess as an object's id."""


class RemoteObjects:
    """Registers the replica servers of remote hosts, and fetches objects from them."""

    def __init__(self, state: StorageState) -> None:
        self._state = state
        self._requested: dict[bytes, float] = {}
        """When each object was requested, the earliest first: all that are awaited, and some that have come."""

    def register(self, peer: bytes, event: RegisterReplicaServer) -> None:
        """Register a replica server; raises ProtocolError if the peer cannot be one."""
        record = self._state.peers[peer]
        if record.role != Role.AGENT or len(event.host) < _HOST_BYTES or record.host not in (b"", event.host):
            raise ProtocolError(f"role {record.role} cannot serve a host whose id has {len(event.host)} bytes")
        record.host = event.host
        self._state.replica_servers.setdefault(event.host, {})[peer] = None

    def fetch(self, name: bytes, record: ObjectRecord) -> None:
        """Request an object, from another replica server than last time; without one, readers get "not found"."""
        servers = self._state.replica_servers.get(record.host, {})
        server = next((each for each in servers if each != record.fetching_from), record.fetching_from)
        record.fetching_from = server
        if server:
            servers[server] = servers.pop(server)  # round robin
            self._requested.pop(name, None)
            self._requested[name] = self._state.now
            self._state.send(server, FetchReplica(name, record.size, record.session, record.version))
        else:
            self._state.refuse_readers(record)

    def retry_late(self) -> None:
        """Serve late objects from their copy, or request them from another replica server.

        The first may be dead long before its link is lost.
        """
        state = self._state
        while (due := self.due()) is not None and due <= state.now:
            name = next(iter(self._requested))
            del self._requested[name]
            record = state.objects.get(name)
            if record is not None and record.fetching_from:
                if (record.fetching_from, name) in state.uploads:
                    self._requested[name] = state.now
                elif state.use_copy(name, record) is not None:
                    continue
                elif len(state.replica_servers[record.host]) == 1:
                    self._requested[name] = state.now
                else:
                    self.fetch(name, record)

    def due(self) -> float | None:
        """When `retry_late` has something to do, or None."""
        return next(iter(self._requested.values())) + FETCH_START_SECONDS if self._requested else None

    def leave(self, peer: bytes, record: PeerRecord) -> None:
        """Unregister a replica server, and request its objects from another one."""
        host, record.host = record.host, b""
        if not host:
            return
        del self._state.replica_servers[host][peer]
        if not self._state.replica_servers[host]:
            del self._state.replica_servers[host]
            self._state.log(logging.WARNING, "a host has no replica server any more: its objects are not found")
            for name in self._state.copies.names():
                if self._state.objects[name].host == host:
                    self._state.use_copy(name, self._state.objects[name])
        for name in list(self._requested):
            wanted = self._state.objects.get(name)
            if wanted is not None and wanted.fetching_from == peer:
                wanted.fetching_from = b""
                self.fetch(name, wanted)

    def dropped(self, peer: bytes, event: DropReplicas) -> None:
        """Free objects that their host no longer has."""
        host = self._state.peers[peer].host
        for name, version in zip(event.objects, event.versions, strict=True):
            record = self._state.objects.get(name)
            if host and record is not None and (record.host, record.version) == (host, version):
                if self._state.use_copy(name, record) is not None:
                    continue
                self._state.log(logging.ERROR, f"object {name.hex()} is lost: its host no longer has it")
                self._state.unset_remote(name, record, drop=False)
                self._state.free(name)

    def send_drops(self) -> None:
        """Tell each host which objects it may delete."""
        for host, rows in self._state.drops.items():
            server = next(iter(self._state.replica_servers.get(host, ())), None)
            if server is not None:
                for some in pieces_of(rows):
                    self._state.send(server, DropReplicas(*zip(*some, strict=True)))
        self._state.drops.clear()

    def check(self) -> None:
        """Assert the invariants."""
        state = self._state
        servers = {(host, peer) for host, peers in state.replica_servers.items() for peer in peers}
        assert servers == {(record.host, peer) for peer, record in state.peers.items() if record.host}
        assert all(state.replica_servers.values())
        remote = [record for record in state.objects.values() if record.host]
        assert (state.replicas, state.replica_bytes) == (len(remote), sum(record.size for record in remote))
        for record in remote:
            assert record.segment is None and not (record.in_memory or record.ticket or record.pins)
            assert bool(record.fetching_from) == bool(record.waiting)
        awaited = {name for name, record in state.objects.items() if record.fetching_from}
        assert awaited <= self._requested.keys()
        for record in state.objects.values():
            assert not record.fetching_from or record.fetching_from in state.replica_servers[record.host]
