"""A TCP relay before a server, which can cut, hold, swallow and count the bytes of its connections."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from scaler_protocol.addresses import Address
from support.gates import SECONDS

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: a socket that is closed resets its connection."""


class RelayedConnection:
    """The two sockets of one connection. The second thread that is done with them closes them."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near, self.far = near, far
        self.dead = False
        """Nothing is carried any more."""
        self._done = 0
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def shut(self, *ends: socket.socket) -> None:
        """Close these ends of the connection."""
        for end in ends or (self.near, self.far):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def leave(self) -> None:
        """One direction of the connection has ended."""
        self._done += 1
        if self._done == 2:
            self.near.close()
            self.far.close()


class Relay:
    """Relays every connection to its own port, or the given one, to the target. A context manager."""

    def __init__(self, target: Address, port: int = 0) -> None:
        self._target = (target.host, target.port)
        self._listener = socket.create_server(("127.0.0.1", port))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self.carried = 0
        """Bytes from the target so far."""
        self.cuts = 0
        self._act: tuple[int, Callable[[], None]] | None = None
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.RLock()
        self._connections: list[RelayedConnection] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    # --- faults -----------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Break all connections, so that both ends notice. Bytes in transit, or held, are lost."""
        with self._lock:
            self.swallow()
            for connection in self._connections:
                connection.shut()
            self._connections.clear()
            self.cuts += 1
            self._act = None

    def half_open(self) -> None:
        """Break all connections, so that only the connecting ends notice. Bytes in transit, or held, are lost."""
        with self._lock:
            self.swallow()
            for connection in self._connections:
                connection.shut(connection.near)

    def swallow(self) -> None:
        """Drop all bytes of the existing connections; neither end notices. Held bytes are lost."""
        with self._lock:
            for connection in self._connections:
                connection.dead = True
            self._flows.set()

    def hold(self) -> None:
        """Hold arriving bytes until `release` or one of the other faults."""
        self._flows.clear()

    def release(self) -> None:
        """Forward the held bytes."""
        self._flows.set()

    @property
    def held(self) -> bool:
        """Whether arriving bytes are held."""
        return not self._flows.is_set()

    def after(self, size: int, act: Callable[[], None]) -> None:
        """Call `act`, such as `cut` or `hold`, when the target has sent this many more bytes."""
        with self._lock:
            self._act = self.carried + size, act

    # --- threads ----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)  # as where nobody listens
                near.close()
                continue
            connection = RelayedConnection(near, far)
            with self._lock:
                self._connections.append(connection)
            for source, sink in ((near, far), (far, near)):
                self._threads.append(threading.Thread(target=self._carry, args=(connection, source, sink)))
                self._threads[-1].start()

    def _carry(self, connection: RelayedConnection, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sent = self._count(connection, sink, data) if source is connection.far else 0
                self._flows.wait()
                if not connection.dead:
                    sink.sendall(data[sent:])
        if not connection.dead:
            connection.shut()
        with self._lock:
            connection.leave()

    def _count(self, connection: RelayedConnection, sink: socket.socket, data: bytes) -> int:
        """Count bytes of the target, and act if it is time; return how many may be forwarded before."""
        with self._lock:
            before, self.carried = self.carried, self.carried + len(data)
            if self._act is None or self.carried < self._act[0]:
                return 0
            (at, act), self._act = self._act, None
        if not connection.dead:
            sink.sendall(data[: at - before])
        act()
        return at - before

    def close(self) -> None:
        """Close all connections and free the port."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(SECONDS)
        self._listener.close()
        self.cut()
        for thread in self._threads[1:]:
            thread.join(SECONDS)
            assert not thread.is_alive()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
