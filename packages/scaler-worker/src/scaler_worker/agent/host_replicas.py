"""HostReplicas: the agent's connection to object storage on another host, which fetches this host's replicas."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from scaler_io.objects.connection import ObjectConnection
from scaler_io.objects.host_cache import UNUSED_SECONDS, HostCache
from scaler_io.objects.replica_server import ReplicaServer
from scaler_io.objects.replicas import Replica, Replicas
from scaler_io.security.keyring import Credentials
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ScalerError
from scaler_protocol.handshake import Role
from scaler_protocol.plurals import counted

LOGGER: Final = logging.getLogger("scaler")
PATIENCE_SECONDS: Final = 60.0
_FULL: Final = "object storage is full, see its --memory-limit and --spill-directory"


class LeftBehind(NamedTuple):
    """How many objects of a host that leaves object storage was not given, and why."""

    objects: int = 0
    reason: str = ""


class HostReplicas:
    """Serves this host's replicas to the storage server at `address()`, which may change and is empty if unknown.

    Each agent of a host has its own connection, so replicas stay available when one agent exits. The server's own host
    has no replicas: there the connection is closed again.
    """

    def __init__(
        self,
        cache: HostCache,
        address: Callable[[], str],
        name: str,
        credentials: Credentials | None = None,
        token: Callable[[], bytes] = bytes,
    ) -> None:
        self._cache, self._address, self._name, self._credentials = cache, address, name, credentials
        self._token = token
        self._named = ""
        self._connected: tuple[ObjectConnection, ReplicaServer] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def maintain(self, unused_seconds: float = UNUSED_SECONDS) -> None:
        """Connect if necessary, and drop replicas unused for `unused_seconds`. Blocks: call it in a thread."""
        try:
            self._cache.trim(unused_seconds)
            connected = self._connect()
            if connected is None:
                return
            connection, replica_server = connected
            connection.open_soon()
            if connection.is_near():
                self._disconnect()
            else:
                replica_server.drop_unneeded(unused_seconds, lambda replica: _is_known(connection, replica))
        except (ScalerError, OSError) as error:
            if not self._closed:
                LOGGER.warning("replicas of this host cannot be maintained: %s", error)

    def _connect(self) -> tuple[ObjectConnection, ReplicaServer] | None:
        address = self._address()
        if address != self._named:
            self._disconnect()
        with self._lock:
            if address != self._named and not self._closed:
                self._named = address
                parsed = Address.parse(address)
                replica_server = ReplicaServer(Replicas(self._cache.directory, parsed))
                connection = ObjectConnection(
                    parsed,
                    session=0,
                    role=Role.AGENT,
                    timeout_seconds=PATIENCE_SECONDS,
                    name=self._name,
                    replica_server=replica_server,
                    credentials=self._credentials,
                    token=self._token,
                )
                self._connected = connection, replica_server
            return self._connected

    def _disconnect(self) -> None:
        with self._lock:
            connected, self._connected = self._connected, None
        if connected is not None:
            connected[0].close()

    def hand_over(self, deadline: float) -> LeftBehind:
        """Upload the replicas of this host, which is about to leave, until `deadline` (of time.monotonic). Blocks."""
        connected = self._connect()
        if connected is None:
            return LeftBehind()
        connection, replica_server = connected
        try:
            if not replica_server.count() or connection.is_near(deadline):
                return LeftBehind()
            left = LeftBehind(replica_server.hand_over(lambda upload: connection.run(upload, deadline)), _FULL)
        except (ScalerError, OSError) as error:  # TimeoutError is an OSError
            left = LeftBehind(_count(replica_server), str(error))
        if left.objects:
            LOGGER.warning("%s of this host cannot be handed over: %s", counted(left.objects, "object"), left.reason)
        return left

    def close(self) -> None:
        """Close the connection, also one that is being opened."""
        self._closed = True
        self._disconnect()


def _count(replica_server: ReplicaServer) -> int:
    """How many replicas are left; at least one, because handing over has failed."""
    with contextlib.suppress(OSError):
        return max(1, replica_server.count())
    return 1


def _is_known(connection: ObjectConnection, replica: Replica) -> bool:
    return connection.has(replica.reference, replica.version)
