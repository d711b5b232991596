"""ZeroMQ sockets that never block, reconnect or lose an edge.

A socket's descriptor is edge-triggered: the shell must call `readable()` again after its last receive and last send.

A message is sent as one ZeroMQ frame and split into its parts here: each frame costs more than the bytes in it.

ZeroMQ 4.3.5 ends the process (an assertion, `!_io_error`) if it has to write to a connection that was reset after its
input had stopped, because of a high-water mark. It writes when a heartbeat is due, or answers one that was received.
Therefore accepting sockets have no high-water mark for what they receive (ConnectionLimiter bounds it), and sockets
with one have no heartbeats. The connecting side of a link sends heartbeats; they tell the accepting side for how long
the peer may be silent.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import time
from collections.abc import Callable
from typing import Any, TypeVar

import zmq
import zmq.backend
from zmq.utils.monitor import recv_monitor_message

from scaler_io import descriptors
from scaler_io.links.streams import Frames, cut, join
from scaler_io.links.uplink import Uplink
from scaler_io.ports import path_problem
from scaler_io.security.authorized import AuthorizedKeys
from scaler_io.security.keyring import ANYONE, KEY_BYTES, LINK_KEYS, MONITOR_KEYS, Credentials, Principal
from scaler_io.transport.connections import (
    FRAME_BYTES,
    TOPIC_BYTES,
    Connection,
    ConnectionLimiter,
    SubscriptionLimiter,
)
from scaler_io.transport.curve import (
    CURVE_BYTES,
    HANDSHAKE_FAILURES,
    Control,
    Gate,
    HandshakeFailure,
    MechanismQuestion,
    demands_keys,
    handshake_failure,
    use_credentials,
)
from scaler_io.transport.endpoint import LINGER_SECONDS, TURN_MESSAGES, EpochDialer, ListenError
from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError
from scaler_protocol.messages import MESSAGE_MOST

_COPY_BELOW = 256 * 1024
Read = TypeVar("Read")
Context = zmq.Context[zmq.Socket[bytes]]
"""The ZeroMQ threads behind a group of sockets."""
_raw: Any = zmq.backend.Socket
"""pyzmq's backend methods: its convenience methods cost as much as everything else for a small message."""
_NOWAIT = int(zmq.NOBLOCK)
_NOWAIT_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_REASONS = {
    int(zmq.EVENT_DISCONNECTED): "connection closed",
    int(zmq.EVENT_CLOSED): "cannot connect",
    int(
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    ): "the peer ended the handshake: it is busy, ends, or is no service of Scaler",
}
_MAY_DEMAND_KEYS = "; or it demands keys: give --keys or SCALER_KEYS, or keys= of a Client"
_LOST = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | HANDSHAKE_FAILURES
_BEAT_MS, _SILENCE_MS = 2000, 10_000
_KEEPALIVE = (
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, 30),
    (zmq.TCP_KEEPALIVE_INTVL, 10),
    (zmq.TCP_KEEPALIVE_CNT, 3),
)
"""Ends connections to hosts that have been out of reach for a minute."""
# With -1 ("do not reconnect") ZeroMQ drops unread messages when the peer closes.
_NEVER_MS = 24 * 3600 * 1000
_LONGEST_WAIT_SECONDS = 3600.0
_HANDSHAKE_MS = 2000
"""How long a connection may be open without a handshake, which strangers could use to hold memory."""
_BACKLOG = 4096
"""Connections that wait to be accepted; with fewer, a flood of strangers keeps others out."""
_MISMATCHES = 2
"""Failures beside a control that was kept, after which it is certain that a service has another key."""
PUBLISHED_AHEAD = 64
"""Messages that may wait for a slow subscriber, on either side of a connection."""
_TOPIC_MESSAGE_BYTES = TOPIC_BYTES + 64
"""A topic as CURVE encrypts it; its handshake needs more than a topic alone may have."""
_DESCRIPTORS = 16  # for a context and a socket with its monitor: without them ZeroMQ aborts the process


def _own_context() -> Context:
    """Make a context; raises OSError if too few descriptors are left."""
    descriptors.require(_DESCRIPTORS)
    return zmq.Context()


def _socket(context: Context, kind: int) -> zmq.Socket[bytes]:
    """Make a socket; raises OSError if too few descriptors are left."""
    descriptors.require(_DESCRIPTORS)
    made = context.socket(kind)
    made.set_hwm(0)
    made.linger = 0
    made.setsockopt(zmq.IPV6, 1)
    for option, value in _KEEPALIVE:
        made.setsockopt(option, value)
    return made


def _send_heartbeats(connecting: zmq.Socket[bytes]) -> None:
    """Have both sides of a connection end it when they have heard nothing for _SILENCE_MS."""
    connecting.setsockopt(zmq.HEARTBEAT_IVL, _BEAT_MS)
    connecting.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)
    connecting.setsockopt(zmq.HEARTBEAT_TTL, _SILENCE_MS)


def _accept(accepting: zmq.Socket[bytes], longest: int) -> None:
    """Bound what strangers can take of a socket that accepts connections."""
    accepting.setsockopt(zmq.MAXMSGSIZE, longest)
    accepting.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    accepting.setsockopt(zmq.BACKLOG, _BACKLOG)


def _send(through: zmq.Socket[bytes], frames: Frames, route: bytes | None = None) -> bool:
    """Send a message; returns False if the peer is unreachable."""
    written = join(frames)
    try:
        if route is not None:
            _raw.send(through, route, _NOWAIT_MORE)
        _raw.send(through, written, _NOWAIT, len(written) < _COPY_BELOW)
    except (zmq.Again, zmq.ZMQError) as error:
        if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            raise
        return False
    return True


def _read(through: zmq.Socket[bytes]) -> list[bytes]:
    """Receive the parts of one message: header, columns and an optional payload; raises zmq.Again if none is there."""
    return _parts(through, _raw.recv(through, _NOWAIT, False))


def _parts(through: zmq.Socket[bytes], frame: Any) -> list[bytes]:
    """The parts of the message that begins with `frame`; empty if it is no valid message."""
    more = frame.more
    while more:  # several frames are no valid message, but the others must not be taken for the next message
        more, frame = _raw.recv(through, _NOWAIT, False).more, None
    if frame is None:
        return []
    return cut(frame.bytes if len(frame) < _COPY_BELOW else frame.buffer)


def _descriptor(frame: Any) -> int | None:
    """The descriptor of the connection on which a frame arrived; None if ZeroMQ made the frame itself."""
    try:
        return int(frame.get("__fd"))
    except zmq.ZMQError:
        return None


def _receive(through: zmq.Socket[bytes], limit: int, read: Callable[[zmq.Socket[bytes]], Read]) -> list[Read]:
    """Up to `limit` messages that have arrived."""
    messages: list[Read] = []
    try:
        while len(messages) < limit:
            messages.append(read(through))
    except zmq.Again:
        pass
    return messages


def _is_readable(through: zmq.Socket[bytes]) -> bool:
    return bool(_raw.get(through, _EVENTS) & _POLLIN)


class _AcceptMonitor:
    """Reports each accepted and ended connection of a socket to a limiter, which closes those beyond the limit."""

    def __init__(self, accepting: zmq.Socket[bytes], limiter: ConnectionLimiter) -> None:
        self._limiter = limiter
        path = f"inproc://entrance-{id(self)}"
        # Not failures to accept: they are reported without end while no descriptor is left.
        accepting.monitor(path, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._monitor = accepting.context.socket(zmq.PAIR)
        self._monitor.set_hwm(0)  # otherwise the accepting thread would wait for us
        self._monitor.linger = 0
        self._monitor.connect(path)
        self.process_events()

    def fileno(self) -> int:
        """The descriptor to wait on; `process_events` re-arms its edge."""
        return int(self._monitor.FD)

    def process_events(self) -> None:
        """Report new events to the limiter, which closes connections beyond the limit."""
        while _is_readable(self._monitor):
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            accepted = event["event"] == zmq.EVENT_ACCEPTED
            (self._limiter.accepted if accepted else self._limiter.disconnected)(event["value"])


Watched = _AcceptMonitor | Gate
"""Has a descriptor, and `process_events` to call when that is readable."""


class Listener:
    """The accepting socket of a service; raises ListenError, which names the address, if it cannot be bound.

    With `keys`, peers at a TCP address prove a key, and a route is that key and ZeroMQ's routing id: what another key
    sends comes from another route, also if it has taken the routing id of a peer that is gone.
    """

    def __init__(self, address: Address, keys: AuthorizedKeys | None = None) -> None:
        self._context: Context = _own_context()
        self._socket = _socket(self._context, zmq.ROUTER)
        _accept(self._socket, MESSAGE_MOST)
        self._limiter = ConnectionLimiter(str(address))
        self._accept_monitor = _AcceptMonitor(self._socket, self._limiter)
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
            raise self._refusal(address, os.strerror(error.errno or 0)) from None
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

    def readable(self) -> bool:
        """Whether a message is there; also re-arms the descriptor's edge."""
        self._was_readable = _is_readable(self._socket)
        return self._was_readable

    def receive(self, limit: int = TURN_MESSAGES) -> list[tuple[bytes, list[bytes]]]:
        """Up to `limit` messages, each as route and frames; at most one unless `readable` returned True.

        Usually one message arrives at a time, and a failed attempt to receive another one costs more than the message.
        """
        return _receive(self._socket, limit if self._was_readable else 1, self._read)

    def _read(self, through: zmq.Socket[bytes]) -> tuple[bytes, list[bytes]]:
        route, frame = _raw.recv(through, _NOWAIT), _raw.recv(through, _NOWAIT, False)
        if self._gate is not None:
            while not (key := self._gate.key_of(frame)):
                self._drop(frame)
                route, frame = _raw.recv(through, _NOWAIT), _raw.recv(through, _NOWAIT, False)
            route = key + route
        connection = self._limiter.routes.get(route) or self._first_message(route, frame)
        connection.read += len(frame) + self._frame_bytes
        return route, _parts(through, frame)

    def _first_message(self, route: bytes, frame: Any) -> Connection:
        """The connection of the sender of a frame; one that is forgotten if ZeroMQ made the frame itself."""
        if (descriptor := _descriptor(frame)) is None:
            return Connection(-1)
        self._accept_monitor.process_events()  # the event "accepted" precedes the first message
        return self._limiter.first_message(descriptor, route)

    def _drop(self, frame: Any) -> None:
        """Ignore a message of a key that is accepted no longer, and close its connection."""
        if (descriptor := _descriptor(frame)) is not None:
            descriptors.shut_down(descriptor)
        _parts(self._socket, frame)

    def principal(self, route: bytes) -> Principal:
        """Who has sent what came from this route."""
        return ANYONE if self._gate is None else self._gate.principal(route[:KEY_BYTES])

    def revoked(self) -> set[bytes]:
        """Keys that are accepted no longer since the last call; their connections are closed."""
        keys = self._gate.revoked() if self._gate is not None else set[bytes]()
        _cut_keys(keys, self._accept_monitor, self._limiter)
        return keys

    def send(self, route: bytes, frames: Frames) -> bool:
        """Whether the message was accepted; False if the route is gone."""
        if self._gate is not None:
            if route not in self._limiter.routes:
                return False
            route = route[KEY_BYTES:]
        return _send(self._socket, frames, route)

    def cut(self, route: bytes) -> None:
        """Close a connection, even if messages are on their way; does nothing if the route is gone."""
        self._accept_monitor.process_events()  # the kernel may have reused its descriptor
        self._limiter.cut(route)

    def close_greedy(self, seconds: float, has_peer: Callable[[bytes], bool]) -> None:
        """Close connections that take too much memory, or have had no peer for long; `has_peer` knows peers' routes.

        Call it every SWEEP_SECONDS or so; `seconds` is the time since the last call. Call `readable` afterwards.
        """
        self._accept_monitor.process_events()  # the kernel may have reused descriptors
        drained = not _is_readable(self._socket)
        self._limiter.close_greedy(seconds, has_peer, drained=drained)

    def close(self) -> None:
        """Free the address, after at most LINGER_SECONDS for sending the last messages."""
        self._context.destroy(linger=int(LINGER_SECONDS * 1000))
        if self._path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)


def _cut_keys(keys: set[bytes], monitor: _AcceptMonitor, limiter: ConnectionLimiter) -> None:
    """Close the connections of these keys, with which their routes begin."""
    if keys:
        monitor.process_events()  # the kernel may have reused descriptors
        for route in [route for route in limiter.routes if route[:KEY_BYTES] in keys]:
            limiter.cut(route)


class _Connection:
    """The connection of one epoch: a socket that connects once."""

    def __init__(
        self,
        context: Context,
        address: Address,
        routing_id: bytes,
        ipv6: bool,
        credentials: Credentials | None,
        *,
        controlled: bool,
    ) -> None:
        """With `controlled` it has a control."""
        self.failure = HandshakeFailure("", final=False)
        """Why the handshake has failed, if the keys are the reason."""
        self._address, self._credentials, self._began = address, credentials, time.monotonic()
        self.ipv6 = ipv6
        self._reason: str | None = None
        self._was_readable = False
        self._control: Control | None = None
        self.socket = _socket(context, zmq.DEALER)
        self.socket.setsockopt(zmq.IPV6, ipv6)
        self.socket.routing_id = routing_id
        self.socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
        _send_heartbeats(self.socket)
        use_credentials(self.socket, credentials, address)
        self.monitor = self.socket.get_monitor_socket(_LOST)
        self.monitor.linger = 0
        try:
            self.socket.connect(str(address))
            if controlled:
                self._control = Control(_stream(context, ipv6), address)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"cannot connect to {address}: {os.strerror(error.errno or 0)}") from None
        self.lost()  # the monitor's descriptor signals nothing before the first read

    def readable(self) -> bool:
        """Whether a message is there, or the connection is known to be gone; also re-arms the descriptor's edge."""
        self._was_readable = _is_readable(self.socket)
        return self._was_readable or self._reason is not None

    def receive(self, limit: int) -> list[list[bytes]]:
        """Up to `limit` messages that have arrived; at most one unless `readable` returned True."""
        return _receive(self.socket, limit if self._was_readable else 1, _read)

    def send(self, frames: Frames) -> bool:
        """Whether the transport took the message."""
        return _send(self.socket, frames)

    def lost(self) -> str | None:
        """Why the connection is gone; None if it is not."""
        if self._reason is None and _is_readable(self.monitor):
            event = recv_monitor_message(self.monitor, zmq.NOBLOCK)
            failure = handshake_failure(event["event"], event["value"], self._credentials, self._address)
            # A service that is busy ends a handshake, too, but not at once.
            if failure.final or time.monotonic() < self._began + _HANDSHAKE_MS / 2000:
                self.failure = failure
            reason = _REASONS.get(int(event["event"]), "the peer does not speak ZeroMQ as we do")
            if event["event"] == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and self._credentials is None:
                reason += _MAY_DEMAND_KEYS
            self._reason = self.failure.reason or reason
        return self._reason

    def is_control_kept(self) -> bool:
        """Whether the service has greeted the control and not closed it; may be called once, when this is lost."""
        return self._control is not None and self._control.is_kept()

    def close(self, linger: float = 0.0) -> None:
        """Close the connection after at most `linger` seconds for sending the last messages."""
        if self._control is not None:
            self._control.close()
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=int(linger * 1000))


def _stream(context: Context, ipv6: bool) -> zmq.Socket[bytes]:
    stream = _socket(context, zmq.STREAM)
    stream.setsockopt(zmq.IPV6, ipv6)
    stream.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
    return stream


class _KeyDemand:
    """Finds out whether a service demands keys, for a peer without keys whose connections fail."""

    def __init__(self, context: Context, address: Address) -> None:
        self._context, self._address = context, address
        self._question: MechanismQuestion | None = None

    def reason(self, ipv6: bool) -> str:
        """The error text if the service has said that it demands keys; "" otherwise, and then it is asked."""
        if self._address.path:
            return ""
        if self._question is not None:
            if self._question.demands_keys():
                return demands_keys(self._address)
            if not self._question.is_over:
                return ""
            self.close()
        with contextlib.suppress(OSError, zmq.ZMQError):  # too few descriptors: the next failure asks again
            self._question = MechanismQuestion(_stream(self._context, ipv6), self._address)
        return ""

    def close(self) -> None:
        """Close the connection."""
        if self._question is not None:
            self._question.close()
            self._question = None


class Dialer(EpochDialer[_Connection]):
    """Connects an Uplink over ZeroMQ. Not thread-safe: one thread or loop owns it."""

    def __init__(
        self,
        address: Address,
        uplink: Uplink,
        context: Context | None = None,
        *,
        credentials: Credentials | None = None,
    ) -> None:
        """With a `context` of the caller no thread is started, and `close` does not wait for the last messages."""
        super().__init__(uplink)
        self._address, self._credentials = address, credentials
        self._suspects = False
        """Whether a connection has failed as if the service had another key: the next ones have a control."""
        self._mismatches = 0
        """Connections that have failed because of the service's keys."""
        self._secret = b"\x01" + secrets.token_bytes(15)  # others must not be able to guess the routes of our epochs
        self._owns_context, self._context = context is None, context or _own_context()
        self._demand = _KeyDemand(self._context, address)
        # ZeroMQ's own poller examines every socket at each call; polling their descriptors is enough.
        self._selector = selectors.DefaultSelector()
        self._waited: tuple[_Connection | None, int] = (None, -1)

    def _connect(self, epoch: int) -> _Connection:
        # A host name may have addresses of both families, and ZeroMQ tries only one: alternate between them.
        ipv6 = ":" in self._address.host or (not self._address.is_numeric and epoch % 2 == 0)
        return _Connection(
            self._context,
            self._address,
            self._secret + epoch.to_bytes(4, "big"),
            ipv6,
            self._credentials,
            controlled=self._suspects,
        )

    def _refused(self, connection: _Connection) -> str:
        reason, final = connection.failure
        if self._credentials is None:
            reason = reason or self._demand.reason(connection.ipv6)
            return "" if self.uplink.peer_incarnation else reason
        if reason:
            self._mismatches += connection.is_control_kept()
            self._suspects = not self._address.path
        certain = self._mismatches >= _MISMATCHES and not self.uplink.peer_incarnation
        return reason if final or certain else ""

    def readable(self) -> bool:
        """Whether a message is there; also re-arms the descriptor's edge."""
        return self._connection is not None and self._connection.readable()

    def filenos(self) -> tuple[int, ...]:
        """The descriptors to wait on; they change with every epoch."""
        if self._connection is None:
            return ()
        return tuple(watched.FD for watched in (self._connection.socket, self._connection.monitor))

    def wait(self, wake: int, seconds: float) -> bool:
        """Block until a message, a broken connection, or input on descriptor `wake`; returns whether on `wake`.

        Call it only after `readable` returned False: messages that are already there do not end the wait.
        """
        if self._waited != (self._connection, wake):
            self._selector.close()
            self._selector = selectors.DefaultSelector()
            for descriptor in (wake, *self.filenos()):
                self._selector.register(descriptor, selectors.EVENT_READ)
            self._waited = (self._connection, wake)
        found = [key.fd for key, _ in self._selector.select(min(max(0.0, seconds), _LONGEST_WAIT_SECONDS))]
        self._may_be_readable = found != [wake]
        return wake in found

    def close(self) -> None:
        """Write the uplink's messages and close the connection."""
        super().close()
        self._demand.close()
        self._selector.close()
        if self._owns_context:
            self._context.destroy(linger=int(LINGER_SECONDS * 1000))


class Publisher:
    """A publishing socket. Messages to a slow subscriber are dropped while PUBLISHED_AHEAD messages wait for it."""

    def __init__(self, keys: AuthorizedKeys | None = None) -> None:
        """With `keys`, subscribers at TCP addresses prove one."""
        self.context: Context = _own_context()
        self._socket = _socket(self.context, zmq.XPUB)
        _accept(self._socket, TOPIC_BYTES if keys is None else _TOPIC_MESSAGE_BYTES)
        self._limiter = SubscriptionLimiter("monitors")
        self._accept_monitor = _AcceptMonitor(self._socket, self._limiter)
        self._gate = Gate(self._socket, keys, MONITOR_KEYS) if keys is not None else None
        self.watched: tuple[Watched, ...] = (self._accept_monitor, *([self._gate] if self._gate else []))
        """Further sockets whose descriptors must be watched."""
        self._socket.sndhwm = PUBLISHED_AHEAD
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # reports every new subscriber, not only the first one

    def bind(self, address: Address) -> None:
        """Publish at a further address; raises ListenError, which names it, if that is impossible."""
        if self._gate is not None:
            self._gate.guard(address)
        mask = os.umask(0o077)  # only its owner may use an ipc socket
        try:
            self._socket.bind(str(address))
        except zmq.ZMQError as error:
            raise ListenError(f"cannot listen to {address}: {os.strerror(error.errno or 0)}") from None
        finally:
            os.umask(mask)

    def fileno(self) -> int:
        """The descriptor to wait on; `joined` re-arms its edge."""
        return self._socket.FD

    def joined(self) -> bool:
        """Whether a subscriber has joined since the last call; call it after sending, too."""
        joined = False
        while _is_readable(self._socket):
            frame = _raw.recv(self._socket, _NOWAIT, False)
            descriptor = _descriptor(frame)
            if self._gate is None or descriptor is None or self._is_accepted(self._gate, descriptor, frame):
                joined = self._limiter.subscription_changed(descriptor, frame.bytes) or joined
        return joined and self.has_subscribers

    def _is_accepted(self, gate: Gate, descriptor: int, frame: Any) -> bool:
        """Whether the sender's key is accepted; if not, its connection is closed."""
        key = gate.key_of(frame)
        if key is None:
            descriptors.shut_down(descriptor)
        elif key:
            self._accept_monitor.process_events()  # the event "accepted" precedes the first message
            self._limiter.first_message(descriptor, key + descriptor.to_bytes(4, "big"))
        return key is not None

    def close_greedy(self, seconds: float) -> None:
        """Close connections that take too much memory; `seconds` after the last call. Call `joined` afterwards."""
        self._accept_monitor.process_events()  # the kernel may have reused descriptors
        self._limiter.close_greedy(seconds, None, drained=not _is_readable(self._socket))

    def close_revoked(self) -> None:
        """Close the connections of keys that are accepted no longer."""
        if self._gate is not None:
            _cut_keys(self._gate.revoked(), self._accept_monitor, self._limiter)

    @property
    def has_subscribers(self) -> bool:
        """Whether any peer has subscribed to everything."""
        return bool(self._limiter.subscribers)

    def send(self, frames: Frames) -> None:
        """Send a message to all subscribers."""
        _send(self._socket, frames)

    def close(self) -> None:
        """Free the addresses."""
        self.context.destroy(linger=0)


class Subscriber:
    """A subscribing socket; it reconnects until it is closed, or refused for its key."""

    def __init__(self, address: Address, credentials: Credentials | None = None) -> None:
        self._address, self._credentials = address, credentials
        self.problem = ""
        """Why nothing will come: the keys; empty if that is not known. `receive` notices it."""
        self._context: Context = _own_context()
        self._demand = _KeyDemand(self._context, address)
        self._socket = _socket(self._context, zmq.SUB)
        self._socket.set_hwm(PUBLISHED_AHEAD)
        self._socket.setsockopt(zmq.IPV6, ":" in address.host)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        self._socket.subscribe(b"")
        use_credentials(self._socket, credentials, address)
        self._monitor = self._socket.get_monitor_socket(HANDSHAKE_FAILURES)
        try:
            self._socket.connect(str(address))
        except zmq.ZMQError as error:
            self.close()
            raise AddressError(f"cannot connect to {address}: {os.strerror(error.errno or 0)}") from None

    def wait(self, seconds: float) -> bool:
        """Block until a message is there, at most `seconds`; returns whether one is."""
        return bool(self._socket.poll(int(seconds * 1000)))

    def receive(self, limit: int = TURN_MESSAGES) -> list[list[bytes]]:
        """The frames of up to `limit` messages that have arrived."""
        while _is_readable(self._monitor):
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            failure = handshake_failure(event["event"], event["value"], self._credentials, self._address)
            reason = failure.reason
            if not reason and self._credentials is None:
                reason = self._demand.reason(":" in self._address.host)
            self.problem = reason or self.problem
        messages = _receive(self._socket, limit, _read)
        if messages:
            self.problem = ""
        return messages

    def subscribe_again(self) -> None:
        """Subscribe again: the publisher then sends all that a new subscriber receives."""
        self._socket.unsubscribe(b"")
        self._socket.subscribe(b"")

    def close(self) -> None:
        """Close the connection."""
        self._context.destroy(linger=0)
