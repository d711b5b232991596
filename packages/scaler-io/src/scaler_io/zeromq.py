"""ZeroMQ sockets as Scaler uses them: never blocking, never reconnecting, never losing an edge. The one module with
zmq.

A socket's descriptor is edge-triggered: after reading *and after the last send* of a turn the shell asks `readable()`
again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Sequence

import zmq
from zmq.utils.monitor import recv_monitor_message

from scaler_io.links import LinkState, Uplink, UplinkEvent
from scaler_io.streams import Frames
from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError, ProtocolError

TURN_MESSAGES = 256
"""Messages read in one turn, so that a flood never keeps a loop from its timers."""
_COPY_BELOW = 64 * 1024
_LOST = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_BEAT_MS, _BEAT_TIMEOUT_MS = 2000, 10_000


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.set_hwm(0)
    socket.linger = 0
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    socket.setsockopt(zmq.HEARTBEAT_IVL, _BEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _BEAT_TIMEOUT_MS)
    return socket


def _send(socket: zmq.Socket[bytes], frames: Sequence[bytes | memoryview]) -> bool:
    """Whether the transport took the message; False means the peer is unreachable."""
    try:
        socket.send_multipart(frames, zmq.NOBLOCK, copy=max(map(len, frames)) < _COPY_BELOW)
    except (zmq.Again, zmq.ZMQError) as error:
        if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            raise
        return False
    return True


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
            self._socket.bind(str(address) if address.path or address.port else f"tcp://{address.host}:*")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise AddressError(f"cannot listen to {address}: {error.strerror}") from None
        finally:
            os.umask(mask)
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = address if address.path or address.port else Address(address.host, int(bound.rpartition(":")[2]))

    def _claim(self, address: Address) -> None:
        """Refuse a path that is no socket, or that a living service answers at."""
        if not stat.S_ISSOCK(os.stat(address.path).st_mode):
            self._context.destroy(linger=0)
            raise AddressError(f"cannot listen to {address}: the path exists and is no socket")
        import socket

        with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
            if probe.connect_ex(address.path) == 0:
                self._context.destroy(linger=0)
                raise AddressError(f"cannot listen to {address}: address already in use")

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._socket.FD

    def readable(self) -> bool:
        """Whether a message is there; also re-arms the descriptor's edge."""
        return bool(int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def receive(self, limit: int = TURN_MESSAGES) -> list[tuple[bytes, list[bytes]]]:
        """Up to `limit` messages: the route each came by, and its frames."""
        taken: list[tuple[bytes, list[bytes]]] = []
        receive = self._socket.recv_multipart
        with contextlib.suppress(zmq.Again):
            while len(taken) < limit:
                route, *frames = receive(zmq.NOBLOCK)
                taken.append((route, frames))
        return taken

    def send(self, route: bytes, frames: Frames) -> bool:
        """Whether the message was taken; False means there is no such route any more."""
        return _send(self._socket, [route, *frames])

    def close(self) -> None:
        """Free the address at once."""
        self._context.destroy(linger=0)
        if self._path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)


class _Connection:
    """One epoch: a socket that connects once."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: Address, routing_id: bytes) -> None:
        self.socket = _socket(context, zmq.DEALER)
        self.socket.routing_id = routing_id
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self.monitor = self.socket.get_monitor_socket(_LOST)
        self.monitor.linger = 0
        self.socket.connect(str(address))

    def lost(self) -> str | None:
        """Why the connection is gone, if it is."""
        try:
            event = recv_monitor_message(self.monitor, zmq.NOBLOCK)
        except zmq.Again:
            return None
        return "connection closed" if event["event"] == zmq.EVENT_DISCONNECTED else "cannot connect"

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=0)


class Dialer:
    """An Uplink over ZeroMQ: opens one connection per epoch and moves messages both ways.

    Not thread-safe: one thread or loop owns it. `secret` keeps strangers from taking over the routes of our epochs.
    """

    def __init__(self, address: Address, uplink: Uplink) -> None:
        self.uplink = uplink
        self.malformed = 0
        self._address = address
        self._secret = b"\x01" + secrets.token_bytes(15)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connection: _Connection | None = None

    def turn(self, now: float) -> list[UplinkEvent]:
        """Take in what has arrived, at most TURN_MESSAGES. Then `flush` what the core says, then ask `readable`."""
        uplink, events = self.uplink, list[UplinkEvent]()
        if self._connection is not None:
            events += self._receive(self._connection, now)
            if uplink.state is not LinkState.DOWN and (reason := self._connection.lost()):
                events += uplink.broken(reason, now)
        events += uplink.tick(now)
        if self._connection is not None and uplink.state in (LinkState.DOWN, LinkState.REFUSED):
            self._connection.close()
            self._connection = None
        if uplink.wants_connection(now):
            uplink.opened(now)
            self._connection = _Connection(self._context, self._address, self._secret + uplink.epoch.to_bytes(4, "big"))
        return events

    def _receive(self, connection: _Connection, now: float) -> list[UplinkEvent]:
        events: list[UplinkEvent] = []
        receive, uplink = connection.socket.recv_multipart, self.uplink
        with contextlib.suppress(zmq.Again):
            for _ in range(TURN_MESSAGES):
                frames = receive(zmq.NOBLOCK)
                try:
                    events += uplink.receive(frames, now)
                except ProtocolError as error:
                    self.malformed += 1
                    events += uplink.broken(f"malformed message: {error}", now)
                if uplink.state is LinkState.DOWN:
                    break
        return events

    def flush(self, now: float) -> list[UplinkEvent]:
        """Write what the Uplink has to say."""
        if self._connection is None:
            return []
        for frames in self.uplink.outgoing():
            if not _send(self._connection.socket, frames):
                return self.uplink.broken("connection closed", now)
        return []

    def readable(self) -> bool:
        """Whether a message is there; also re-arms the descriptor's edge."""
        connection = self._connection
        return connection is not None and bool(int(connection.socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def filenos(self) -> tuple[int, ...]:
        """The descriptors to wait on; they change with every epoch."""
        if self._connection is None:
            return ()
        return tuple(socket.FD for socket in (self._connection.socket, self._connection.monitor))

    def wait(self, wake: int, seconds: float) -> None:
        """Block until a message, a broken connection, or something to read on the descriptor `wake`."""
        poller = zmq.Poller()
        poller.register(wake, zmq.POLLIN)
        if self._connection is not None:
            poller.register(self._connection.socket, zmq.POLLIN)
            poller.register(self._connection.monitor, zmq.POLLIN)
        poller.poll(max(0, int(seconds * 1000) + 1))

    def close(self) -> None:
        """Write what is left, and leave."""
        if self._connection is not None:
            for frames in self.uplink.outgoing():
                _send(self._connection.socket, frames)
            self._connection.socket.linger = 200
            self._connection.close()
            self._connection = None
        self._context.destroy(linger=200)
