"""ZeroMQ sockets as Scaler uses them: never blocking, never reconnecting, never losing an edge. The one module with
zmq.

A socket's descriptor is edge-triggered: after reading *and after the last send* of a turn the shell asks `readable()`
again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import stat
import sys
from collections.abc import Sequence
from typing import Any

import zmq
import zmq.backend
from zmq.utils.monitor import recv_monitor_message

from scaler_io.dialing import LINGER_SECONDS, TURN_MESSAGES, EpochDialer
from scaler_io.links import Uplink
from scaler_io.streams import Frames
from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError

_COPY_BELOW = 256 * 1024
_raw: Any = zmq.backend.Socket
"""The methods below pyzmq's conveniences, which take as long as the rest of a small message's way."""
_NOWAIT = int(zmq.NOBLOCK)
_NOWAIT_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_RCVMORE = int(zmq.RCVMORE)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_REASONS = {int(zmq.EVENT_DISCONNECTED): "connection closed", int(zmq.EVENT_CLOSED): "cannot connect"}
_LOST = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_BEAT_MS, _BEAT_TIMEOUT_MS = 2000, 10_000
# With -1 ("do not reconnect") ZeroMQ drops what has arrived and was not read when the peer closes.
_NEVER_MS = 24 * 3600 * 1000
_PROBE_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 3600.0


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    made = context.socket(kind)
    made.set_hwm(0)
    made.linger = 0
    made.setsockopt(zmq.IPV6, 1)
    made.setsockopt(zmq.TCP_KEEPALIVE, 1)
    made.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    made.setsockopt(zmq.HEARTBEAT_IVL, _BEAT_MS)
    made.setsockopt(zmq.HEARTBEAT_TIMEOUT, _BEAT_TIMEOUT_MS)
    return made


def _send(through: zmq.Socket[bytes], frames: Sequence[bytes | memoryview]) -> bool:
    """Whether the transport took the message; False means the peer is unreachable."""
    last = len(frames) - 1
    try:
        for position, frame in enumerate(frames):
            flags = _NOWAIT if position == last else _NOWAIT_MORE
            _raw.send(through, frame, flags, len(frame) < _COPY_BELOW)
    except (zmq.Again, zmq.ZMQError) as error:
        if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            raise
        return False
    return True


def _receive(through: zmq.Socket[bytes], limit: int) -> list[list[bytes]]:
    """Up to `limit` messages that have arrived."""
    taken: list[list[bytes]] = []
    receive, get = _raw.recv, _raw.get
    with contextlib.suppress(zmq.Again):
        while len(taken) < limit:
            frames = [receive(through, _NOWAIT)]
            while get(through, _RCVMORE):
                frames.append(receive(through, _NOWAIT))
            taken.append(frames)
    return taken


def _is_readable(through: zmq.Socket[bytes]) -> bool:
    return bool(_raw.get(through, _EVENTS) & _POLLIN)


class Listener:
    """The accepting socket of a service.

    Raises AddressError (one line, naming the address) where it cannot be bound.
    """

    def __init__(self, address: Address) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = _socket(self._context, zmq.ROUTER)
        self._socket.router_mandatory = 1
        self._path = address.path
        if address.path and os.path.exists(address.path):
            self._claim(address)
        mask = os.umask(0o077)  # an ipc socket is for its owner alone
        try:
            self._socket.bind(str(address) if address.path or address.port else f"{str(address).removesuffix('0')}*")
        except zmq.ZMQError as error:
            raise self._refusal(address, os.strerror(error.errno or 0)) from None
        finally:
            os.umask(mask)
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = address if address.path or address.port else Address(address.host, int(bound.rpartition(":")[2]))

    def _claim(self, address: Address) -> None:
        """Refuse a path that is no socket, or that a living service answers at."""
        if not stat.S_ISSOCK(os.stat(address.path).st_mode):
            raise self._refusal(address, "the path exists and is no socket")
        if sys.platform == "win32":
            return
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
            probe.settimeout(_PROBE_SECONDS)
            problem = probe.connect_ex(address.path)
        # Only a refusal proves that nobody is there: a service too busy to accept is alive.
        if problem not in (errno.ECONNREFUSED, errno.ENOENT):
            denied = problem == errno.EACCES
            raise self._refusal(address, os.strerror(errno.EACCES if denied else errno.EADDRINUSE))

    def _refusal(self, address: Address, why: str) -> AddressError:
        self._context.destroy(linger=0)
        return AddressError(f"cannot listen to {address}: {why}")

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._socket.FD

    def readable(self) -> bool:
        """Whether a message is there; also re-arms the descriptor's edge."""
        return _is_readable(self._socket)

    def receive(self, limit: int = TURN_MESSAGES) -> list[tuple[bytes, list[bytes]]]:
        """Up to `limit` messages: the route each came by, and its frames."""
        return [(frames[0], frames[1:]) for frames in _receive(self._socket, limit)]

    def send(self, route: bytes, frames: Frames) -> bool:
        """Whether the message was taken; False means there is no such route any more."""
        return _send(self._socket, [route, *frames])

    def close(self) -> None:
        """Free the address; what was written last has LINGER_SECONDS to go."""
        self._context.destroy(linger=int(LINGER_SECONDS * 1000))
        if self._path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)


class _Connection:
    """One epoch: a socket that connects once."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: Address, routing_id: bytes, ipv6: bool
    ) -> None:
        self._reason: str | None = None
        self.socket = _socket(context, zmq.DEALER)
        self.socket.setsockopt(zmq.IPV6, ipv6)
        self.socket.routing_id = routing_id
        self.socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
        self.monitor = self.socket.get_monitor_socket(_LOST)
        self.monitor.linger = 0
        try:
            self.socket.connect(str(address))
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"cannot connect to {address}: {os.strerror(error.errno or 0)}") from None

    def receive(self, limit: int) -> list[list[bytes]]:
        """Up to `limit` messages that have arrived."""
        return _receive(self.socket, limit)

    def send(self, frames: Frames) -> bool:
        """Whether the transport took the message."""
        return _send(self.socket, frames)

    def lost(self) -> str | None:
        """Why the connection is gone, if it is."""
        if self._reason is None and _is_readable(self.monitor):
            event = recv_monitor_message(self.monitor, zmq.NOBLOCK)
            self._reason = _REASONS.get(int(event["event"]), "the peer does not speak ZeroMQ as we do")
        return self._reason

    def close(self, linger: float = 0.0) -> None:
        """Leave; what was sent may take `linger` seconds to go."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=int(linger * 1000))


class Dialer(EpochDialer[_Connection]):
    """An Uplink over ZeroMQ.

    Not thread-safe: one thread or loop owns it. `secret` keeps strangers from taking over the routes of our epochs.
    """

    def __init__(self, address: Address, uplink: Uplink) -> None:
        super().__init__(uplink)
        self._address = address
        self._secret = b"\x01" + secrets.token_bytes(15)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._polled: tuple[_Connection | None, int] = (None, -1)

    def _connect(self, epoch: int) -> _Connection:
        # A name may stand for addresses of both families, and ZeroMQ tries only one: take turns.
        ipv6 = ":" in self._address.host or (not self._address.is_numeric and epoch % 2 == 0)
        return _Connection(self._context, self._address, self._secret + epoch.to_bytes(4, "big"), ipv6)

    def readable(self) -> bool:
        """Whether a message is there; also re-arms the descriptor's edge."""
        connection = self._connection
        return connection is not None and _is_readable(connection.socket)

    def filenos(self) -> tuple[int, ...]:
        """The descriptors to wait on; they change with every epoch."""
        if self._connection is None:
            return ()
        return tuple(watched.FD for watched in (self._connection.socket, self._connection.monitor))

    def wait(self, wake: int, seconds: float) -> None:
        """Block until a message, a broken connection, or something to read on the descriptor `wake`."""
        if self._polled != (self._connection, wake):
            self._polled = (self._connection, wake)
            self._poller = zmq.Poller()
            self._poller.register(wake, zmq.POLLIN)
            if self._connection is not None:
                self._poller.register(self._connection.socket, zmq.POLLIN)
                self._poller.register(self._connection.monitor, zmq.POLLIN)
        self._poller.poll(int(min(max(0.0, seconds), _LONGEST_WAIT_SECONDS) * 1000) + 1)

    def close(self) -> None:
        """Write what is left, and leave."""
        super().close()
        self._context.destroy(linger=int(LINGER_SECONDS * 1000))
