"""Connections between programs of one user on one host: Unix sockets, which need no thread, no key and no handshake.

ZeroMQ moves each message through a thread on either side. Between processes that answer each other one by one, waking
these takes a quarter of the time of a round trip. A service that accepts the user's own keys also listens at a path in
their directory, which other users cannot reach. Messages are frames as of ZeroMQ (`scaler_io.links.streams.join`), each
after its size (4 bytes, little-endian). What arrives is read when it is asked for, so the kernel bounds what waits.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from scaler_io.descriptors import connection_limit, limit
from scaler_io.links.streams import Frames, cut, join
from scaler_io.transport.connections import HELLO_SECONDS, STRANGER_BYTES, refused_log
from scaler_protocol.addresses import Address
from scaler_protocol.messages import MESSAGE_MOST

if sys.platform != "linux":
    raise ImportError("services that listen at these sockets run on Linux only")

_SIZE: Final = struct.Struct("<I")
_READ_BYTES: Final = 16 * 1024
"""Bytes that are read at once, and handled before more is read, so that other peers wait for few small messages.

Longer messages are read into a buffer of their own.
"""
_JOINED_BYTES: Final = 64 * 1024
"""A message below this is sent together with its size."""
_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""What we ask the kernel to keep of unread messages; it has a limit of its own (net.core.wmem_max)."""
_LONGEST: Final = MESSAGE_MOST + 1024
"""Longest frame: a message, its header, and the size of its columns."""
_BACKLOG: Final = 128
_INPUT: Final = select.EPOLLIN
_SUFFIX: Final = ".socket"


def socket_path(directory: Path, address: Address) -> Path | None:
    """Where the service at a TCP address also listens: one path per network namespace; None if this is not known."""
    if address.path:
        return None
    try:
        namespace = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return None
    return directory / f"{namespace}_{address.host}_{address.port}{_SUFFIX}"


class LocalConnection:
    """One end of a connection. An epoll instance tells of input, and of room for what waits."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._socket = connected
        self._poll: Any = None
        """That instance; only Linux has its type."""
        self._messages: list[list[bytes]] = []
        self._rest = b""
        """The beginning of a message."""
        self._long: memoryview | None = None
        """The part of a long message that is still to be read, and all of it."""
        self._whole = bytearray()
        self._unsent: deque[memoryview] = deque()
        self._reason: str | None = None
        self.longest = _LONGEST
        """Bytes of the longest frame that is received."""

    def watch(self, poll: Any) -> None:
        """Tell this epoll instance of input, and of room for what waits."""
        self._poll = poll
        poll.register(self._socket, _INPUT)

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._socket.fileno()

    def readable(self) -> bool:
        """Whether a message has been read and not received, or the connection is gone."""
        return bool(self._messages) or self._reason is not None

    def receive(self, limit: int) -> list[list[bytes]]:
        """Up to `limit` messages that have arrived."""
        if not self._messages:
            self._read()
        taken, self._messages = self._messages[:limit], self._messages[limit:]
        return taken

    def _read(self) -> None:
        """Read once, and the rest of a long message as far as it has arrived."""
        if self._reason is not None:
            return
        try:
            if self._long is None:
                self._cut(self._socket.recv(_READ_BYTES))
            while self._long is not None and self._reason is None:
                self._read_long(self._socket.recv_into(self._long))
        except BlockingIOError:
            pass
        except OSError as error:
            self._reason = error.strerror or str(error)

    def _read_long(self, count: int) -> None:
        assert self._long is not None
        self._long = self._long[count:]
        if not count:
            self._reason = "connection closed"
        elif not self._long:
            self._messages.append(cut(memoryview(self._whole)))
            self._long, self._whole = None, bytearray()

    def _cut(self, read: bytes) -> None:
        """Cut the messages out of what was read."""
        if not read:
            self._reason = "connection closed"
            return
        data = self._rest + read if self._rest else read
        at, end = 0, len(data)
        while end - at >= _SIZE.size:
            size = _SIZE.unpack_from(data, at)[0]
            start = at + _SIZE.size
            if size > self.longest:
                self._reason = f"a message of {size:,} bytes, more than {self.longest:,}"
                return
            if end - start < size:
                if size > _READ_BYTES:
                    self._whole = bytearray(size)
                    self._whole[: end - start] = data[start:]
                    self._long, at = memoryview(self._whole)[end - start :], end
                break
            at = start + size
            self._messages.append(cut(data[start:at]))
        self._rest = data[at:]

    def send(self, frames: Frames) -> bool:
        """Send a message, now or when the peer has read; False if the connection is gone."""
        frame = join(frames)
        size = _SIZE.pack(len(frame))
        waits = bool(self._unsent)
        self._unsent += (memoryview(size + frame),) if len(frame) < _JOINED_BYTES else map(memoryview, (size, frame))
        if not waits:
            self._send()
            if self._unsent:
                self._ask_for_room(True)
        return self._reason is None

    def _send(self) -> None:
        """Send what waits, as far as there is room, or drop it if nobody will read it.

        The peer may be gone, but its last messages have not been read yet: the connection is lost after these.
        """
        unsent = self._unsent
        try:
            while unsent:
                sent = self._socket.send(unsent[0])
                if sent < len(unsent[0]):
                    unsent[0] = unsent[0][sent:]
                else:
                    unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            unsent.clear()
            with contextlib.suppress(OSError):  # the peer has closed it
                self._socket.shutdown(socket.SHUT_RDWR)

    def flush(self) -> None:
        """Send what has waited, as far as there is room now."""
        if self._unsent:
            self._send()
            if not self._unsent:
                self._ask_for_room(False)

    def _ask_for_room(self, asks: bool) -> None:
        if self._poll is not None:
            self._poll.modify(self._socket, _INPUT | select.EPOLLOUT if asks else _INPUT)

    def lost(self) -> str | None:
        """Why the connection is gone; None if it is not."""
        return self._reason

    def close(self, linger: float = 0.0) -> None:
        """Close the connection after at most `linger` seconds for sending what waits."""
        if self._unsent and linger and self._reason is None:
            until = time.monotonic() + linger
            with contextlib.suppress(OSError):
                for part in self._unsent:
                    self._socket.settimeout(max(0.0, until - time.monotonic()))
                    self._socket.sendall(part)
        self._socket.close()


class LocalDialed(LocalConnection):
    """The connecting end, with a descriptor of its own to wait on."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self.longest = sys.maxsize  # what the service sends has no limit, as over the network
        self._own = select.epoll()
        self.watch(self._own)

    @classmethod
    def to(cls, path: Path) -> LocalDialed:
        """Connect; raises OSError if nobody listens there, or has no room."""
        connecting = socket.socket(socket.AF_UNIX)
        try:
            connecting.setblocking(False)
            connecting.connect(str(path))
            return cls(connecting)
        except OSError:
            connecting.close()
            raise

    def receive(self, limit: int) -> list[list[bytes]]:
        """Up to `limit` messages that have arrived; what waits is sent as far as there is room."""
        self.flush()
        return super().receive(limit)

    def filenos(self) -> tuple[int, ...]:
        """The descriptor to wait on, for input and for room."""
        return (self._own.fileno(),)

    def close(self, linger: float = 0.0) -> None:
        """Close the connection after at most `linger` seconds for sending what waits."""
        self._own.close()
        super().close(linger)


class LocalSockets:
    """The accepting end of a service. Raises OSError if its path cannot be used.

    `arrived` is called with the route and frames of each message.
    """

    def __init__(
        self, path: Path, arrived: Callable[[bytes, list[bytes]], object], is_full: Callable[[], bool]
    ) -> None:
        """While `is_full` says so nothing is read."""
        self._path, self._arrived, self._is_full = path, arrived, is_full
        _remove_unused(path.parent)
        self._accepting = socket.socket(socket.AF_UNIX)
        self._poll = select.epoll()
        self._connections: dict[int, tuple[bytes, LocalConnection]] = {}
        self.routes: dict[bytes, LocalConnection] = {}
        self._strange_seconds: dict[bytes, float] = {}
        """How long connections have had no peer."""
        self._refused = refused_log()
        self._accepts = True
        """False after a failure, which would be met again at once, until the next call of `close_strangers`."""
        try:
            self._accepting.setblocking(False)
            made = path.with_suffix(".new")  # before it listens, other services would take it for unused
            made.unlink(missing_ok=True)
            self._accepting.bind(str(made))
            self._accepting.listen(_BACKLOG)
            made.rename(path)  # perhaps in place of that of an earlier service at this port
        except OSError:
            self._accepting.close()
            self._poll.close()
            raise
        self._poll.register(self._accepting, _INPUT)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._poll.fileno()

    def process_events(self) -> None:
        """Accept connections, read what has arrived, and send what waits."""
        if self._is_full():
            return
        for descriptor, events in self._poll.poll(0):
            if descriptor == self._accepting.fileno():
                self._accept()
                continue
            route, connection = self._connections[descriptor]
            if events & select.EPOLLOUT:
                connection.flush()
            if events & ~select.EPOLLOUT:
                for frames in connection.receive(sys.maxsize):
                    self._arrived(route, frames)
            if connection.lost() is not None:
                self.cut(route)

    def _accept(self) -> None:
        try:
            accepted, _ = self._accepting.accept()
        except OSError:  # it is gone again, or no descriptor is left: the client will try again, and the network
            self._poll.unregister(self._accepting)
            self._accepts = False
            return
        if accepted.fileno() >= connection_limit():
            self._refused.add(str(self._path), limit())
            accepted.close()
            return
        connection, route = LocalConnection(accepted), b"\x03" + os.urandom(15)
        connection.longest = STRANGER_BYTES
        connection.watch(self._poll)
        self._connections[connection.fileno()] = route, connection
        self.routes[route], self._strange_seconds[route] = connection, 0.0

    def send(self, route: bytes, frames: Frames) -> bool:
        """Whether the connection is there."""
        connection = self.routes.get(route)
        if connection is None:
            return False
        connection.longest = _LONGEST  # whoever was answered may be a peer now
        return connection.send(frames)

    def cut(self, route: bytes, linger: float = 0.0) -> None:
        """Close a connection; does nothing if the route is gone."""
        connection = self.routes.pop(route, None)
        if connection is not None:
            descriptor = connection.fileno()
            del self._strange_seconds[route], self._connections[descriptor]
            self._poll.unregister(descriptor)
            connection.close(linger)

    def revoke(self) -> None:
        """Close all connections and accept none: clients try the network, which says that their key is refused."""
        self._free(0.0)

    def close_strangers(self, seconds: float, has_peer: Callable[[bytes], bool]) -> None:
        """Close connections that have had no peer for HELLO_SECONDS; `seconds` is the time since the last call."""
        if not self._accepts and self._accepting.fileno() >= 0:
            self._poll.register(self._accepting, _INPUT)
            self._accepts = True
        for route, strange in list(self._strange_seconds.items()):
            if has_peer(route):
                self._strange_seconds[route] = 0.0
            elif strange + seconds > HELLO_SECONDS:
                self.cut(route)
            else:
                self._strange_seconds[route] = strange + seconds

    def close(self, linger: float) -> None:
        """Close all connections after at most `linger` seconds for sending what waits, and free the path."""
        self._free(linger)
        self._poll.close()

    def _free(self, linger: float) -> None:
        if self._accepting.fileno() < 0:
            return  # another service may have the path now
        self._accepting.close()
        with contextlib.suppress(OSError):  # its directory may be gone, or read-only; the next service removes it
            self._path.unlink()
        until = time.monotonic() + linger
        for route in list(self.routes):
            self.cut(route, max(0.0, until - time.monotonic()))


def _remove_unused(directory: Path) -> None:
    """Remove the sockets of services that were killed."""
    for path in directory.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
