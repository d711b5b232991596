"""HostReplicas: the agent's connection to object storage on another host, which asks there for what this host holds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from scaler_io.objects.connection import ObjectConnection
from scaler_io.objects.host_cache import UNUSED_SECONDS, HostCache
from scaler_io.objects.replica_server import ReplicaServer
from scaler_io.objects.replicas import Replica, Replicas
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ScalerError
from scaler_protocol.handshake import Role

LOGGER: Final = logging.getLogger("scaler")
PATIENCE_SECONDS: Final = 60.0


class HostReplicas:
    """Speaks for this host to the server at `address`, empty as long as there is none, which may become another one.

    All of a host's agents do, each over a connection of its own, so what workers hold outlives any of them. On the
    server's own host nothing is held, and the connection is closed again.
    """

    def __init__(self, cache: HostCache, address: Callable[[], str], name: str) -> None:
        self._cache, self._address, self._name = cache, address, name
        self._named = ""
        self._speaking: tuple[ObjectConnection, ReplicaServer] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def look_after(self, unused_seconds: float = UNUSED_SECONDS) -> None:
        """Connect where need be, and give up what nobody has needed for so long; blocks, for a thread."""
        try:
            self._cache.trim(unused_seconds)
            speaking = self._connect()
            if speaking is None:
                return
            connection, replica_server = speaking
            connection.open_soon()
            if connection.is_near():
                self._hang_up()
            else:
                replica_server.drop_unneeded(unused_seconds, lambda held: _is_known(connection, held))
        except (ScalerError, OSError) as error:
            if not self._closed:
                LOGGER.warning("what is held on this host can not be looked after: %s", error)

    def _connect(self) -> tuple[ObjectConnection, ReplicaServer] | None:
        address = self._address()
        if address != self._named:
            self._hang_up()
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
                )
                self._speaking = connection, replica_server
            return self._speaking

    def _hang_up(self) -> None:
        with self._lock:
            speaking, self._speaking = self._speaking, None
        if speaking is not None:
            speaking[0].close()

    def close(self) -> None:
        """Speak no more, also to who is just being called."""
        self._closed = True
        self._hang_up()


def _is_known(connection: ObjectConnection, held: Replica) -> bool:
    return connection.has(held.reference, held.edition)
