"""The shell of the object storage server: sockets, directories and the event loop around StorageEngine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from scaler_io.descriptors import worker_connections
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import KeptLimits, PeerTimeouts
from scaler_io.objects.connection import ObjectConnection
from scaler_io.objects.multiplexer import WINDOW_BYTES
from scaler_io.security.authorized import AuthorizedKeys
from scaler_io.security.keyring import Credentials
from scaler_io.service.memory_limits import allowed_bytes, default_directory, free_bytes
from scaler_io.service.runtime_dirs import ServerDirectory
from scaler_io.service.server_loop import ServerLoop
from scaler_io.service.session_tokens import TokenDesk
from scaler_io.transport.endpoint import ListenError
from scaler_io.transport.zeromq import Listener
from scaler_protocol.addresses import Address
from scaler_protocol.errors import HandshakeRefusedError, ObjectNotFoundError, StorageLostError
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import new_incarnation
from scaler_protocol.monitoring import StorageStatus
from scaler_protocol.objects import Reference, new_object_id
from scaler_storage.engine.engine import HEARTBEAT_SECONDS, PERMITTED, StorageEngine
from scaler_storage.files import FileSegments
from scaler_storage.options import StorageOptions

LOGGER = logging.getLogger("scaler")
AGENT_GRACE_SECONDS = 10.0
"""How long, in seconds, the session of a worker's tasks is kept after the worker's connection is lost."""
_PROBE_SECONDS = 1.0
MEMORY_SHARE = 0.6
"""Share of the allowed memory that objects may take by default; the rest is for messages and other processes."""


class StorageService:
    """One running object storage server."""

    def __init__(self, options: StorageOptions) -> None:
        self._options = options
        self._name = options.identity

    @contextlib.contextmanager
    def serving(self, stop: Callable[[], None]) -> Iterator[None]:
        """Serve on the running loop while this context is open; `stop` is called if the server must end."""
        listener = _listen(self._options.address, self._options.authorized())
        LOGGER.info("%s: listen to object storage address %s", self._name, listener.address)
        with contextlib.ExitStack() as stack:
            limit, parent = self._memory()
            memory = stack.enter_context(ServerDirectory(parent))
            LOGGER.info("%s: keep up to %s bytes in %s", self._name, f"{limit:,}", memory.path)
            disk = self._options.spill_directory
            own = stack.enter_context(ServerDirectory(disk)).path if disk is not None else None
            segments = stack.enter_context(contextlib.closing(FileSegments(memory.path, own, memory.restore)))
            with self._reception(listener, segments, limit, stop):
                yield
        LOGGER.info("%s: ended", self._name)

    @contextlib.contextmanager
    def _reception(
        self, listener: Listener, segments: FileSegments, limit: int, stop: Callable[[], None]
    ) -> Iterator[None]:
        incarnation = new_incarnation()
        options = self._options
        engine = StorageEngine(
            incarnation,
            segments,
            limit,
            options.object_retention_seconds,
            options.spill_limit,
            key_of=lambda peer: hub.key_of(peer),
            unacknowledged=lambda peer: hub.unacknowledged(peer),
            port=listener.address.port,
        )
        hub = self._hub(incarnation, engine, listener)
        loop = asyncio.get_running_loop()
        reception = ServerLoop(self._name, listener, hub, engine, stop)
        loop.add_reader(segments.fileno(), reception.turn)
        self._say_ready(listener.address)
        try:
            yield
        finally:
            loop.remove_reader(segments.fileno())
            reception.close()
        LOGGER.info("%s: %s", self._name, _summary(engine.status()))

    def _memory(self) -> tuple[int, Path]:
        """The memory limit in bytes, and the parent of the segment directory."""
        wanted = self._options.memory_limit or int(MEMORY_SHARE * allowed_bytes())
        place = self._options.segment_directory or default_directory(wanted)
        place.mkdir(parents=True, exist_ok=True)
        room = free_bytes(place)
        if room >= wanted:
            return wanted, place
        if self._options.memory_limit is None:
            return room, place
        LOGGER.warning(
            "%s: %s has room for %s bytes only, less than the memory limit; see --segment-directory",
            self._name, place, f"{room:,}",
        )  # fmt: skip
        return wanted, place

    def _hub(self, incarnation: int, engine: StorageEngine, listener: Listener) -> Hub:
        keys = self._options.authorized()
        client_grace = self._options.client_timeout_seconds

        def timeouts(hello: Hello) -> PeerTimeouts:
            # ZeroMQ's heartbeats detect dead hosts. A silent process may just be busy with a long task.
            return PeerTimeouts(client_grace if hello.role == Role.CLIENT else AGENT_GRACE_SECONDS, math.inf)

        return Hub(
            incarnation,
            admit=engine.admit,
            timeouts=timeouts,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            principal=listener.principal,
            permitted=PERMITTED,
            # A peer asks for a window of bytes, and for more when they have arrived.
            kept=KeptLimits(2 * WINDOW_BYTES, 4 * WINDOW_BYTES),
            refusal=TokenDesk(keys.own.secret).refusal if keys is not None else None,
            worker_links=worker_connections,
        )

    def _say_ready(self, address: Address) -> None:
        """Write the address to the process that started this one."""
        if self._options.ready_fd is not None:
            with os.fdopen(self._options.ready_fd, "w", encoding="utf-8") as ready:
                ready.write(f"{address}\n")


def _summary(status: StorageStatus) -> str:
    return (
        f"{status.objects} objects left, {status.bytes:,} bytes in memory and {status.spilled_bytes:,} on disk; "
        f"{status.hits} reads from memory, {status.misses} from disk, {status.unknown} of unknown objects; "
        f"{status.spilled_bytes_total:,} bytes spilled, {status.loaded_bytes_total:,} loaded back"
    )


def _listen(address: Address, keys: AuthorizedKeys | None) -> Listener:
    """Open the listener; raises ListenError, which names the Scaler service that has the address, if any."""
    try:
        return Listener(address, keys)
    except ListenError:
        if owner := _owner(address, keys.own if keys is not None else None):
            raise ListenError(f"cannot listen to {address}: {owner}") from None
        raise


def _owner(address: Address, credentials: Credentials | None) -> str:
    """The reason to give if a Scaler service answers at the address, else ""."""
    probe = ObjectConnection(
        address, session=0, role=Role.AGENT, timeout_seconds=_PROBE_SECONDS, credentials=credentials
    )
    try:
        probe.get(Reference(new_object_id(), 0))
    except ObjectNotFoundError:
        return "an object storage server of Scaler is already running there; use that one, or choose another port"
    except HandshakeRefusedError:
        return "another service of Scaler has this address; choose another port"
    except StorageLostError:
        pass
    finally:
        probe.close()
    return ""
