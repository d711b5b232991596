"""An object storage server in the test's process, with counters of its objects and requests."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from collections import Counter
from types import TracebackType
from typing import TypeVar

from scaler_io.links.events import HubEvent
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.service.memory_limits import MEMORY
from scaler_io.service.runtime_dirs import ServerDirectory
from scaler_io.service.server_loop import ServerLoop
from scaler_io.transport.zeromq import Listener
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import Role
from scaler_protocol.ids import new_incarnation
from scaler_protocol.monitoring import StorageStatus
from scaler_protocol.storage import AllocateObject, GetObject, MapObject, PutObject
from scaler_storage.engine.engine import StorageEngine
from scaler_storage.files import FileSegments
from support.gates import SECONDS
from support.own_keys import accepted
from support.waiting import wait_until

T = TypeVar("T")


class CountingCore(StorageEngine):
    """Counts objects that are put and read, by role of the peer."""

    def __init__(self, segments: FileSegments, memory_limit: int, retention_seconds: float) -> None:
        super().__init__(new_incarnation(), segments, memory_limit, retention_seconds)
        self.puts: Counter[int] = Counter()
        self.gets: Counter[int] = Counter()
        self.bytes_put = 0

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Count the first request for each."""
        if isinstance(event, AllocateObject) or (isinstance(event, PutObject) and not event.offset):
            self.puts[self._state.peers[peer].role] += 1
            self.bytes_put += event.size
        elif isinstance(event, MapObject) or (isinstance(event, GetObject) and not event.offset):
            self.gets[self._state.peers[peer].role] += 1
        super().handle(peer, event, now)


class WatchedStorage:
    """A running server. A peer that is away for `grace_seconds` loses its objects."""

    def __init__(self, *, grace_seconds: float = 1.0, retention_seconds: float = 60.0) -> None:
        self._stack = contextlib.ExitStack()
        self._directory = self._stack.enter_context(ServerDirectory(MEMORY)).path
        segments = self._stack.enter_context(contextlib.closing(FileSegments(self._directory, None)))
        self._core = CountingCore(segments, 8 * 1024**3, retention_seconds)
        self._grace = grace_seconds
        self._listener = Listener(Address.parse("tcp://127.0.0.1:0"), accepted())
        self.address = str(self._listener.address)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="watched-storage")
        self._thread.start()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        hub = Hub(
            new_incarnation(),
            admit=self._core.admit,
            timeouts=lambda hello: PeerTimeouts(self._grace, 60.0),
            heartbeat_seconds=1.0,
        )
        reception = ServerLoop("Storage", self._listener, hub, self._core, self._stop.set)
        await self._stop.wait()
        reception.close()

    def _status(self) -> StorageStatus:
        async def look() -> StorageStatus:
            self._core.check()
            return self._core.status()

        return asyncio.run_coroutine_threadsafe(look(), self._loop).result(SECONDS)

    @property
    def objects(self) -> int:
        """The number of objects."""
        return self._status().objects

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Objects put and read by clients, and by workers."""
        self._status()
        puts, gets = self._core.puts, self._core.gets
        return puts[Role.CLIENT], gets[Role.CLIENT], puts[Role.AGENT], gets[Role.AGENT]

    @property
    def bytes_put(self) -> int:
        """Bytes of the objects put."""
        self._status()
        return self._core.bytes_put

    @property
    def segments(self) -> list[str]:
        """The files of segments, free ones included."""
        kept = {"lock", "token", "peers"}
        return [name for name in os.listdir(self._directory) if name not in kept]

    def forget_counts(self) -> None:
        """Reset the counters."""
        self._core.bytes_put = 0
        self._core.puts.clear()
        self._core.gets.clear()

    def wait_empty(self) -> None:
        """Wait until no object is left: deletions are asynchronous, and a traceback keeps its objects."""
        gc.collect()
        wait_until(lambda: self._status().bytes == 0, "all objects are deleted")

    def __enter__(self) -> WatchedStorage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(SECONDS)
        self._stack.close()
