"""The two ends of a link over ZeroMQ: a Listener accepts, a Dialer connects. None of them blocks or loses an edge.

A socket's descriptor is edge-triggered: the shell must call `readable()` again after its last receive and last send.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from scaler_io import descriptors
from scaler_io.links.streams import Frames
from scaler_io.links.uplink import Uplink
from scaler_io.ports import listen_problem, path_problem
from scaler_io.security.authorized import AuthorizedKeys
from scaler_io.security.keyring import ANYONE, KEY_BYTES, LINK_KEYS, Credentials, Principal
from scaler_io.transport.connections import FRAME_BYTES, Connection, ConnectionLimiter
from scaler_io.transport.curve import (
    CURVE_BYTES,
    HANDSHAKE_FAILURES,
    Control,
    Gate,
    HandshakeFailure,
    handshake_failure,
    use_credentials,
)
from scaler_io.transport.endpoint import LINGER_SECONDS, TURN_MESSAGES, EpochDialer, ListenError
from scaler_io.transport.input_poller import InputPoller
from scaler_io.transport.key_demand import KeyDemand
from scaler_io.transport.sockets import (
    HANDSHAKE_MS,
    NEVER_MS,
    NOWAIT,
    RAW,
    AcceptMonitor,
    Context,
    Watched,
    accept,
    cut_keys,
    descriptor_of,
    is_readable,
    make_socket,
    make_stream,
    next_event,
    own_context,
    parts,
    read,
    receive,
    send,
    send_heartbeats,
)
from scaler_protocol.addresses import Address
from scaler_protocol.messages import MESSAGE_MOST

if TYPE_CHECKING:
    from scaler_io.transport.local_sockets import LocalDialed

_REASONS = {
    int(zmq.EVENT_DISCONNECTED): "connection closed",
    int(zmq.EVENT_CLOSED): "cannot connect",
    int(
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    ): "the peer ended the handshake: it is busy, ends, or is no service of Scaler",
}
_MAY_DEMAND_KEYS = "; or it demands keys: give --keys or SCALER_KEYS, or keys= of a Client"
_LOST = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | HANDSHAKE_FAILURES
_WATCHED = _LOST | zmq.EVENT_HANDSHAKE_SUCCEEDED
_LONGEST_WAIT_SECONDS = 3600.0
_MISMATCHES = 2
"""Controls in a row that were kept, after which it is certain that a service has another key."""


class Listener:
    """The accepting socket of a service; raises ListenError, which names the address, if it cannot be bound.

    With `keys`, peers at a TCP address prove a key, and a route is that key and ZeroMQ's routing id: what another key
    sends comes from another route, also if it has taken the routing id of a peer that is gone.
    """

    def __init__(self, address: Address, keys: AuthorizedKeys | None = None) -> None:
        self._context: Context = own_context()
        self._socket = make_socket(self._context, zmq.ROUTER)
        accept(self._socket, MESSAGE_MOST)
        self._limiter = ConnectionLimiter(str(address))
        self.arrivals = self._limiter.arrivals
        """A descriptor that asks for `close_greedy` sooner than after a second; None if the system has none."""
        self._accept_monitor = AcceptMonitor(self._socket, self._limiter)
        self._socket.router_mandatory = 1
        self._gate = Gate(self._socket, keys, LINK_KEYS) if keys is not None and not address.path else None
        if self._gate is not None:
            self._gate.guard(address)
        self._frame_bytes = FRAME_BYTES + (CURVE_BYTES if self._gate is not None else 0)
        self.watched: tuple[Watched, ...] = (self._accept_monitor, *([self._gate] if self._gate else []))
        """Further sockets whose descriptors must be watched."""
        self._was_readable = False
        self._path = address.path
        if address.path and os.path.exists(address.path) and (problem := path_problem(address.path)):
            raise self._refusal(address, problem)
        mask = os.umask(0o077)  # only its owner may use an ipc socket
        try:
            self._socket.bind(str(address) if address.path or address.port else f"{str(address).removesuffix('0')}*")
        except zmq.ZMQError as error:
            raise self._refusal(address, listen_problem(error.errno)) from None
        finally:
            os.umask(mask)
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = address if address.path or address.port else Address(address.host, int(bound.rpartition(":")[2]))

    def _refusal(self, address: Address, reason: str) -> ListenError:
        self._context.destroy(linger=0)
        return ListenError(f"cannot listen to {address}: {reason}")

    def fileno(self) -> int:
        """The descriptor to wait on for messages."""
        return self._socket.FD

    def call_on_arrival(self, arrived: Callable[[], object]) -> None:
        """Call this when there is a message of which no descriptor tells; here they tell of all."""

    def readable(self) -> bool:
        """Whether a message is there; also re-arms the descriptor's edge."""
        self._was_readable = is_readable(self._socket)
        return self._was_readable

    def receive(self, limit: int = TURN_MESSAGES) -> list[tuple[bytes, list[bytes]]]:
        """Up to `limit` messages, each as route and frames; at most one unless `readable` returned True.

        Usually one message arrives at a time, and a failed attempt to receive another one costs more than the message.
        """
        return receive(self._socket, limit if self._was_readable else 1, self._read)

    def _read(self, through: zmq.Socket[bytes]) -> tuple[bytes, list[bytes]]:
        route, frame = RAW.recv(through, NOWAIT), RAW.recv(through, NOWAIT, False)
        if self._gate is not None:
            while not (key := self._gate.key_of(frame)):
                self._drop(frame)
                route, frame = RAW.recv(through, NOWAIT), RAW.recv(through, NOWAIT, False)
            route = key + route
        connection = self._limiter.routes.get(route) or self._first_message(route, frame)
        connection.read += len(frame) + self._frame_bytes
        return route, parts(through, frame)

    def _first_message(self, route: bytes, frame: Any) -> Connection:
        """The connection of the sender of a frame; one that is forgotten if ZeroMQ made the frame itself."""
        if (descriptor := descriptor_of(frame)) is None:
            return Connection(-1)
        self._accept_monitor.process_events()  # the event "accepted" precedes the first message
        return self._limiter.first_message(descriptor, route)

    def _drop(self, frame: Any) -> None:
        """Ignore a message of a key that is accepted no longer, and close its connection."""
        if (descriptor := descriptor_of(frame)) is not None:
            descriptors.shut_down(descriptor)
        parts(self._socket, frame)

    def principal(self, route: bytes) -> Principal:
        """Who has sent what came from this route."""
        return ANYONE if self._gate is None else self._gate.principal(route[:KEY_BYTES])

    def revoked(self) -> set[bytes]:
        """Keys that are accepted no longer since the last call; their connections are closed."""
        keys = self._gate.revoked() if self._gate is not None else set[bytes]()
        cut_keys(keys, self._accept_monitor, self._limiter)
        return keys

    def send(self, route: bytes, frames: Frames) -> bool:
        """Whether the message was accepted; False if the route is gone."""
        if self._gate is not None:
            if route not in self._limiter.routes:
                return False
            route = route[KEY_BYTES:]
        return send(self._socket, frames, route)

    def cut(self, route: bytes) -> None:
        """Close a connection, even if messages are on their way; does nothing if the route is gone."""
        self._accept_monitor.process_events()  # the kernel may have reused its descriptor
        self._limiter.cut(route)

    def close_greedy(self, seconds: float, has_peer: Callable[[bytes], bool] | None) -> float:
        """Close connections that take too much memory, or have had no peer for long; `has_peer` knows peers' routes.

        If `has_peer` is None, nobody is a peer yet, and none is closed for that. Returns after how many seconds it must
        be called again, or sooner, as ConnectionLimiter tells; `seconds` is the time since the last call. Call
        `readable` afterwards.
        """
        self._accept_monitor.process_events()  # the kernel may have reused descriptors
        drained = not is_readable(self._socket)
        return self._limiter.close_greedy(seconds, has_peer, drained=drained)

    def close(self) -> None:
        """Free the address, after at most LINGER_SECONDS for sending the last messages."""
        self._context.destroy(linger=int(LINGER_SECONDS * 1000))
        self._limiter.close()
        if self._path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)


def _if_for_monitors(address: Address) -> str:
    """What to do if this is the scheduler's address for monitors, which greets nobody; nothing for a Unix socket."""
    if address.path:
        return ""
    return (
        f"if {address} is the scheduler's address for monitors, give the scheduler's own, whose port is "
        f"{address.port - 2} by default, or that of object storage, {address.port - 1}"
    )


class _Connection:
    """The connection of one epoch: a socket that connects once."""

    def __init__(
        self,
        context: Context,
        address: Address,
        routing_id: bytes,
        ipv6: bool,
        credentials: Credentials | None,
    ) -> None:
        self.failure = HandshakeFailure("", final=False)
        """Why the handshake has failed, if the keys are the reason."""
        self._address, self._credentials, self._began = address, credentials, time.monotonic()
        self.ipv6 = ipv6
        self._reason: str | None = None
        self._has_shaken_hands = False
        self._was_readable = False
        self.socket = make_socket(context, zmq.DEALER)
        self.socket.setsockopt(zmq.IPV6, ipv6)
        self.socket.routing_id = routing_id
        self.socket.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)
        send_heartbeats(self.socket)
        use_credentials(self.socket, credentials, address)
        self.monitor = self.socket.get_monitor_socket(_WATCHED)
        self.monitor.linger = 0
        try:
            self.socket.connect(str(address))
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"cannot connect to {address}: {zmq.strerror(error.errno or 0)}") from None
        self.lost()  # the monitor's descriptor signals nothing before the first read

    def filenos(self) -> tuple[int, ...]:
        """The descriptors to wait on."""
        return self.socket.FD, self.monitor.FD

    def readable(self) -> bool:
        """Whether a message is there, or the connection is known to be gone; also re-arms the descriptor's edge."""
        self._was_readable = is_readable(self.socket)
        return self._was_readable or self._reason is not None

    def receive(self, limit: int) -> list[list[bytes]]:
        """Up to `limit` messages that have arrived; at most one unless `readable` returned True."""
        return receive(self.socket, limit if self._was_readable else 1, read)

    def send(self, frames: Frames) -> bool:
        """Whether the transport took the message."""
        return send(self.socket, frames)

    def lost(self) -> str | None:
        """Why the connection is gone; None if it is not."""
        while self._reason is None and is_readable(self.monitor):
            event, value = next_event(self.monitor)
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._has_shaken_hands = True
                continue
            hint = _if_for_monitors(self._address)
            failure = handshake_failure(event, value, self._credentials, self._address, hint)
            # A service that is busy ends a handshake, too, but not at once.
            if failure.final or time.monotonic() < self._began + HANDSHAKE_MS / 2000:
                self.failure = failure
            reason = _REASONS.get(event, "the peer does not speak ZeroMQ as we do")
            if event == zmq.EVENT_DISCONNECTED and not self._has_shaken_hands:
                reason += f" before the handshake: {hint}" if hint else " before the handshake"
            if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                # A socket for monitors ends the handshake so if it is faster than this side.
                reason += f"; {hint}" if hint else ""
                reason += _MAY_DEMAND_KEYS if self._credentials is None else ""
            self._reason = self.failure.reason or reason
        return self._reason

    def close(self, linger: float = 0.0) -> None:
        """Close the connection after at most `linger` seconds for sending the last messages."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=int(linger * 1000))


class Dialer(EpochDialer["_Connection | LocalDialed"]):
    """Connects an Uplink over ZeroMQ, or a Unix socket of this user. Not thread-safe: one thread or loop owns it."""

    def __init__(
        self,
        address: Address,
        uplink: Uplink,
        context: Context | None = None,
        *,
        credentials: Credentials | None = None,
        local: Path | None = None,
    ) -> None:
        """With a `context` of the caller no thread is started, and `close` does not wait for the last messages.

        `local` is where the service may also listen to programs of this user.
        """
        super().__init__(uplink, address)
        self._credentials = credentials
        self._local = (address, local) if local is not None else None
        self._suspects = False
        """Whether the last connection has failed as if the service had another key: the next one has a control."""
        self._control: Control | None = None
        """That of the last connection, until the next one."""
        self._mismatches = 0
        """Controls in a row that were kept when their connections had failed."""
        self._secret = b"\x01" + os.urandom(15)  # others must not be able to guess the routes of our epochs
        self._owns_context, self._context = context is None, context or own_context()
        self._demand = KeyDemand(self._context, address)
        # ZeroMQ's own poller examines every socket at each call; polling their descriptors is enough.
        self._inputs = InputPoller(())
        self._waited: tuple[_Connection | LocalDialed | None, int] = (None, -1)

    def _connect(self, epoch: int) -> _Connection | LocalDialed:
        if self._local is not None and self._local[0] == self.address:
            from scaler_io.transport.local_sockets import LocalDialed

            with contextlib.suppress(OSError):  # no service is there, or it has no such socket
                return LocalDialed.to(self._local[1])
        # A host name may have addresses of both families, and ZeroMQ tries only one: alternate between them.
        ipv6 = ":" in self.address.host or (not self.address.is_numeric and epoch % 2 == 0)
        self._judge_control()
        route = self._secret + epoch.to_bytes(4, "big")
        connection = _Connection(self._context, self.address, route, ipv6, self._credentials)
        if self._suspects:
            try:
                self._control = Control(make_stream(self._context, ipv6), self.address)
            except zmq.ZMQError as error:
                connection.close()
                raise OSError(f"cannot connect to {self.address}: {zmq.strerror(error.errno or 0)}") from None
        return connection

    def _judge_control(self) -> None:
        """Count the last connection's control if it was kept until now, and close it.

        A service that is full closes both connections, but perhaps not at once.
        """
        if self._control is not None:
            self._mismatches = self._mismatches + 1 if self._control.is_kept() else 0
            self._control.close()
            self._control = None

    def _refused(self, connection: _Connection | LocalDialed) -> str:
        if not isinstance(connection, _Connection):
            return ""
        reason, final = connection.failure
        if self._credentials is None:
            reason = reason or self._demand.reason(connection.ipv6)
            return "" if self.uplink.peer_incarnation else reason
        self._suspects = bool(reason) and not self.address.path
        certain = self._mismatches >= _MISMATCHES and not self.uplink.peer_incarnation
        return reason if final or certain else ""

    def readable(self) -> bool:
        """Whether a message is there; also re-arms the descriptor's edge."""
        return self._connection is not None and self._connection.readable()

    def call_on_arrival(self, arrived: Callable[[], object]) -> None:
        """Call this when there is a message of which no descriptor tells; here they tell of all."""

    def filenos(self) -> tuple[int, ...]:
        """The descriptors to wait on; they change with every epoch."""
        return () if self._connection is None else self._connection.filenos()

    def wait(self, wake: int, seconds: float) -> bool:
        """Block until a message, a broken connection, or input on descriptor `wake`; returns whether on `wake`.

        Call it only after `readable` returned False: messages that are already there do not end the wait.
        """
        if self._waited != (self._connection, wake):
            self._inputs = InputPoller((wake, *self.filenos()))
            self._waited = (self._connection, wake)
        found = self._inputs.wait(min(max(0.0, seconds), _LONGEST_WAIT_SECONDS))
        self._may_be_readable = found != [wake]
        return wake in found

    def close(self) -> None:
        """Write the uplink's messages and close the connection."""
        super().close()
        self._demand.close()
        if self._control is not None:
            self._control.close()
        if self._owns_context:
            self._context.destroy(linger=int(LINGER_SECONDS * 1000))
