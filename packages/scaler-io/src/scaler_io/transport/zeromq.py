"""ZeroMQ sockets as Scaler uses them: they never block, reconnect or lose an edge. The one module that imports zmq.

A socket's descriptor is edge-triggered: the shell asks `readable()` again after it has read and after its last send.

A message travels as one ZeroMQ frame, and is cut into its parts here: each frame costs more than the bytes in it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
from collections.abc import Callable
from typing import Any, TypeVar

import zmq
import zmq.backend
from zmq.utils.monitor import recv_monitor_message

from scaler_io import descriptors
from scaler_io.descriptors import TOPIC_BYTES, ConnectionLimiter, SubscriptionLimiter
from scaler_io.links.streams import Frames, cut, join
from scaler_io.links.uplink import Uplink
from scaler_io.ports import path_trouble
from scaler_io.transport.endpoint import LINGER_SECONDS, TURN_MESSAGES, EpochDialer
from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError

_COPY_BELOW = 256 * 1024
Read = TypeVar("Read")
Context = zmq.Context[zmq.Socket[bytes]]
"""The threads of ZeroMQ behind some sockets."""
_raw: Any = zmq.backend.Socket
"""The methods below pyzmq's conveniences, which take as long as the rest of a small message's way."""
_NOWAIT = int(zmq.NOBLOCK)
_NOWAIT_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
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
_LONGEST_WAIT_SECONDS = 3600.0
PUBLISHED_AHEAD = 64
"""Messages that may wait for a slow listener, on either side of a connection."""
_DESCRIPTORS = 16  # of a context and a socket with its monitor: without them ZeroMQ aborts the process


def _own_context() -> Context:
    """Raises OSError where no descriptors are left."""
    descriptors.require(_DESCRIPTORS)
    return zmq.Context()


def _socket(context: Context, kind: int) -> zmq.Socket[bytes]:
    """Raises OSError where no descriptors are left."""
    descriptors.require(_DESCRIPTORS)
    made = context.socket(kind)
    made.set_hwm(0)
    made.linger = 0
    made.setsockopt(zmq.IPV6, 1)
    made.setsockopt(zmq.TCP_KEEPALIVE, 1)
    made.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    made.setsockopt(zmq.HEARTBEAT_IVL, _BEAT_MS)
    made.setsockopt(zmq.HEARTBEAT_TIMEOUT, _BEAT_TIMEOUT_MS)
    return made


def _send(through: zmq.Socket[bytes], frames: Frames, route: bytes | None = None) -> bool:
    """Whether the transport took the message; False means the peer is unreachable."""
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
    """The header, the columns and, where there is one, the payload of a message that has arrived; raises zmq.Again."""
    return _parts(through, _raw.recv(through, _NOWAIT, False))


def _parts(through: zmq.Socket[bytes], frame: Any) -> list[bytes]:
    """Those of the message that begins with a frame; nothing for what can be no message."""
    more = frame.more
    while more:  # no message of ours, but its rest must not be taken for the next one
        more, frame = _raw.recv(through, _NOWAIT, False).more, None
    if frame is None:
        return []
    return cut(frame.bytes if len(frame) < _COPY_BELOW else frame.buffer)


def _descriptor(frame: Any) -> int | None:
    """Of the connection that a frame has come by; None for what ZeroMQ says itself."""
    try:
        return int(frame.get("__fd"))
    except zmq.ZMQError:
        return None


def _receive(through: zmq.Socket[bytes], limit: int, read: Callable[[zmq.Socket[bytes]], Read]) -> list[Read]:
    """Up to `limit` messages that have arrived."""
    taken: list[Read] = []
    try:
        while len(taken) < limit:
            taken.append(read(through))
    except zmq.Again:
        pass
    return taken


def _is_readable(through: zmq.Socket[bytes]) -> bool:
    return bool(_raw.get(through, _EVENTS) & _POLLIN)


class _AcceptMonitor:
    """Hears of every connection to an accepting socket; those beyond the limit are closed again."""

    def __init__(self, accepting: zmq.Socket[bytes], cap: ConnectionLimiter) -> None:
        self._cap = cap
        path = f"inproc://entrance-{id(self)}"
        # Of failures to accept it tells without end where descriptors are lacking.
        accepting.monitor(path, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._monitor = accepting.context.socket(zmq.PAIR)
        self._monitor.set_hwm(0)  # or the thread that accepts would wait for us
        self._monitor.linger = 0
        self._monitor.connect(path)
        self.look()

    def fileno(self) -> int:
        """The descriptor to wait on; its edge is re-armed by `look`."""
        return int(self._monitor.FD)

    def look(self) -> None:
        """Refuse what was accepted beyond the limit."""
        while _is_readable(self._monitor):
            told = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            accepted = told["event"] == zmq.EVENT_ACCEPTED
            (self._cap.accepted if accepted else self._cap.gone)(told["value"])


class Listener:
    """The accepting socket of a service; raises AddressError, which names the address, where it cannot be bound."""

    def __init__(self, address: Address) -> None:
        self._context: Context = _own_context()
        self._socket = _socket(self._context, zmq.ROUTER)
        self._cap = ConnectionLimiter(str(address))
        self.accept_monitor = _AcceptMonitor(self._socket, self._cap)
        self._socket.router_mandatory = 1
        self._many = False
        self._path = address.path
        if address.path and os.path.exists(address.path) and (trouble := path_trouble(address.path)):
            raise self._refusal(address, trouble)
        mask = os.umask(0o077)  # an ipc socket is for its owner alone
        try:
            self._socket.bind(str(address) if address.path or address.port else f"{str(address).removesuffix('0')}*")
        except zmq.ZMQError as error:
            raise self._refusal(address, os.strerror(error.errno or 0)) from None
        finally:
            os.umask(mask)
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = address if address.path or address.port else Address(address.host, int(bound.rpartition(":")[2]))

    def _refusal(self, address: Address, why: str) -> AddressError:
        self._context.destroy(linger=0)
        return AddressError(f"cannot listen to {address}: {why}")

    def fileno(self) -> int:
        """The descriptor to wait on for messages."""
        return self._socket.FD

    def readable(self) -> bool:
        """Whether a message is there; also re-arms the descriptor's edge."""
        self._many = _is_readable(self._socket)
        return self._many

    def receive(self, limit: int = TURN_MESSAGES) -> list[tuple[bytes, list[bytes]]]:
        """Up to `limit` messages: the route each came by, and its frames; only one unless `readable` was True.

        Mostly one comes at a time, and to hear that there is no other takes longer than to take it.
        """
        return _receive(self._socket, limit if self._many else 1, self._read)

    def _read(self, through: zmq.Socket[bytes]) -> tuple[bytes, list[bytes]]:
        route, frame = _raw.recv(through, _NOWAIT), _raw.recv(through, _NOWAIT, False)
        if route not in self._cap.descriptors and (descriptor := _descriptor(frame)) is not None:
            self.accept_monitor.look()  # that it was accepted is told before anything comes by it
            self._cap.heard(descriptor, route)
        return route, _parts(through, frame)

    def send(self, route: bytes, frames: Frames) -> bool:
        """Whether the message was taken; False means there is no such route any more."""
        return _send(self._socket, frames, route)

    def cut(self, route: bytes) -> None:
        """Close a connection, whatever is on its way; nothing where there is none any more."""
        self.accept_monitor.look()  # the kernel may have given its descriptor to another one
        self._cap.cut(route)

    def close(self) -> None:
        """Free the address; what was written last has LINGER_SECONDS to go."""
        self._context.destroy(linger=int(LINGER_SECONDS * 1000))
        if self._path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)


class _Connection:
    """One epoch: a socket that connects once."""

    def __init__(self, context: Context, address: Address, routing_id: bytes, ipv6: bool) -> None:
        self._reason: str | None = None
        self._many = False
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
        self.lost()  # a socket whose descriptor nobody has asked for wakes nobody

    def readable(self) -> bool:
        """Whether a message is there, or the connection is known to be gone; also re-arms the descriptor's edge."""
        self._many = _is_readable(self.socket)
        return self._many or self._reason is not None

    def receive(self, limit: int) -> list[list[bytes]]:
        """Up to `limit` messages that have arrived; only one unless `readable` was True."""
        return _receive(self.socket, limit if self._many else 1, _read)

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
    """An Uplink over ZeroMQ. Not thread-safe: one thread or loop owns it."""

    def __init__(self, address: Address, uplink: Uplink, context: Context | None = None) -> None:
        """With the `context` of somebody else no thread is started, and nobody waits for what is written last."""
        super().__init__(uplink)
        self._address = address
        self._secret = b"\x01" + secrets.token_bytes(15)  # keeps strangers from taking over the routes of our epochs
        self._own, self._context = context is None, context or _own_context()
        # ZeroMQ's own poller looks into every socket each time; their descriptors are enough.
        self._selector = selectors.DefaultSelector()
        self._waited: tuple[_Connection | None, int] = (None, -1)

    def _connect(self, epoch: int) -> _Connection:
        # A name may stand for addresses of both families, and ZeroMQ tries only one: take turns.
        ipv6 = ":" in self._address.host or (not self._address.is_numeric and epoch % 2 == 0)
        return _Connection(self._context, self._address, self._secret + epoch.to_bytes(4, "big"), ipv6)

    def readable(self) -> bool:
        """Whether a message is there; also re-arms the descriptor's edge."""
        return self._connection is not None and self._connection.readable()

    def filenos(self) -> tuple[int, ...]:
        """The descriptors to wait on; they change with every epoch."""
        if self._connection is None:
            return ()
        return tuple(watched.FD for watched in (self._connection.socket, self._connection.monitor))

    def wait(self, wake: int, seconds: float) -> bool:
        """Block until a message, a broken connection, or something on the descriptor `wake`; whether on that one.

        To be called after `readable` was False: what had come before wakes nobody.
        """
        if self._waited != (self._connection, wake):
            self._selector.close()
            self._selector = selectors.DefaultSelector()
            for descriptor in (wake, *self.filenos()):
                self._selector.register(descriptor, selectors.EVENT_READ)
            self._waited = (self._connection, wake)
        found = [key.fd for key, _ in self._selector.select(min(max(0.0, seconds), _LONGEST_WAIT_SECONDS))]
        self._may_have = found != [wake]
        return wake in found

    def close(self) -> None:
        """Write what is left, and leave."""
        super().close()
        self._selector.close()
        if self._own:
            self._context.destroy(linger=int(LINGER_SECONDS * 1000))


class Publisher:
    """A publishing socket. What a listener does not take is dropped once PUBLISHED_AHEAD messages wait for it."""

    def __init__(self) -> None:
        self.context: Context = _own_context()
        self._socket = _socket(self.context, zmq.XPUB)
        self._cap = SubscriptionLimiter("monitors")
        self.accept_monitor = _AcceptMonitor(self._socket, self._cap)
        self._socket.set_hwm(PUBLISHED_AHEAD)
        self._socket.setsockopt(zmq.MAXMSGSIZE, TOPIC_BYTES)
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # every listener that comes is told of, not only the first

    def bind(self, address: Address) -> None:
        """Publish there, too; raises AddressError naming it."""
        mask = os.umask(0o077)  # an ipc socket is for its owner alone
        try:
            self._socket.bind(str(address))
        except zmq.ZMQError as error:
            raise AddressError(f"cannot listen to {address}: {os.strerror(error.errno or 0)}") from None
        finally:
            os.umask(mask)

    def fileno(self) -> int:
        """The descriptor to wait on; its edge is re-armed by `joined`."""
        return self._socket.FD

    def joined(self) -> bool:
        """Whether a listener has come since the last call; to be called after sending, too."""
        came = False
        while _is_readable(self._socket):
            frame = _raw.recv(self._socket, _NOWAIT, False)
            came = self._cap.told(_descriptor(frame), frame.bytes) or came
        return came and self.has_listeners

    @property
    def has_listeners(self) -> bool:
        """Whether anybody listens to everything."""
        return bool(self._cap.listening)

    def send(self, frames: Frames) -> None:
        """To everybody who listens."""
        _send(self._socket, frames)

    def close(self) -> None:
        """Free the addresses."""
        self.context.destroy(linger=0)


class Subscriber:
    """A listening socket, which connects again and again until it is closed."""

    def __init__(self, address: Address) -> None:
        self._context: Context = _own_context()
        self._socket = _socket(self._context, zmq.SUB)
        self._socket.set_hwm(PUBLISHED_AHEAD)
        self._socket.setsockopt(zmq.IPV6, ":" in address.host)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        self._socket.subscribe(b"")
        try:
            self._socket.connect(str(address))
        except zmq.ZMQError as error:
            self.close()
            raise AddressError(f"cannot connect to {address}: {os.strerror(error.errno or 0)}") from None

    def wait(self, seconds: float) -> bool:
        """Block until something is there, or so long; whether something is."""
        return bool(self._socket.poll(int(seconds * 1000)))

    def receive(self, limit: int = TURN_MESSAGES) -> list[list[bytes]]:
        """The frames of up to `limit` messages that have arrived."""
        return _receive(self._socket, limit, _read)

    def listen_anew(self) -> None:
        """Have the publisher begin anew, with all that a new listener is told."""
        self._socket.unsubscribe(b"")
        self._socket.subscribe(b"")

    def close(self) -> None:
        """Leave."""
        self._context.destroy(linger=0)
