"""ZeroMQ sockets: how they are made, written and read, and which connections accepting ones take.

A socket's descriptor is edge-triggered: the shell must call `readable()` again after its last receive and last send.

A message is sent as one ZeroMQ frame and split into its parts here: each frame costs more than the bytes in it.

ZeroMQ 4.3.5 ends the process (an assertion, `!_io_error`) if it has to write to a connection that was reset after its
input had stopped, because of a high-water mark. It writes when a heartbeat is due, or answers one that was received.
Therefore accepting sockets have no high-water mark for what they receive (ConnectionLimiter bounds it), and sockets
with one have no heartbeats. The connecting side of a link sends heartbeats; they tell the accepting side for how long
the peer may be silent.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import zmq
import zmq.backend

from scaler_io import descriptors
from scaler_io.links.streams import Frames, cut, join
from scaler_io.security.keyring import KEY_BYTES
from scaler_io.transport.connections import ConnectionLimiter
from scaler_io.transport.frame_properties import property_of

# On PyPy a view of a frame does not keep the frame's memory.
_COPY_BELOW = 256 * 1024 if sys.implementation.name == "cpython" else sys.maxsize
Read = TypeVar("Read")
Context = zmq.Context[zmq.Socket[bytes]]
"""The ZeroMQ threads behind a group of sockets."""
RAW: Any = zmq.backend.Socket
"""pyzmq's backend methods: its convenience methods cost as much as everything else for a small message."""
NOWAIT = int(zmq.NOBLOCK)
_NOWAIT_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_BEAT_MS, _SILENCE_MS = 2000, 10_000
_KEEPALIVE = (
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, 30),
    (zmq.TCP_KEEPALIVE_INTVL, 10),
    (zmq.TCP_KEEPALIVE_CNT, 3),
)
"""Ends connections to hosts that have been out of reach for a minute."""
# With -1 ("do not reconnect") ZeroMQ drops unread messages when the peer closes.
NEVER_MS = 24 * 3600 * 1000
HANDSHAKE_MS = 2000
"""How long a connection may be open without a handshake, which strangers could use to hold memory."""
_BACKLOG = 4096
"""Connections that wait to be accepted; with fewer, a flood of strangers keeps others out."""
_EVENT = struct.Struct("=Hi")
_DESCRIPTORS = 16  # for a context and a socket with its monitor: without them ZeroMQ aborts the process


def own_context() -> Context:
    """Make a context; raises OSError if too few descriptors are left."""
    descriptors.require(_DESCRIPTORS)
    return zmq.Context()


def make_socket(context: Context, kind: int) -> zmq.Socket[bytes]:
    """Make a socket; raises OSError if too few descriptors are left."""
    descriptors.require(_DESCRIPTORS)
    made = context.socket(kind)
    made.set_hwm(0)
    made.linger = 0
    made.setsockopt(zmq.IPV6, 1)
    for option, value in _KEEPALIVE:
        made.setsockopt(option, value)
    return made


def send_heartbeats(connecting: zmq.Socket[bytes]) -> None:
    """Have both sides of a connection end it when they have heard nothing for _SILENCE_MS."""
    connecting.setsockopt(zmq.HEARTBEAT_IVL, _BEAT_MS)
    connecting.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)
    connecting.setsockopt(zmq.HEARTBEAT_TTL, _SILENCE_MS)


def accept(accepting: zmq.Socket[bytes], longest: int) -> None:
    """Bound what strangers can take of a socket that accepts connections."""
    accepting.setsockopt(zmq.MAXMSGSIZE, longest)
    accepting.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    accepting.setsockopt(zmq.BACKLOG, _BACKLOG)


def send(through: zmq.Socket[bytes], frames: Frames, route: bytes | None = None) -> bool:
    """Send a message; returns False if the peer is unreachable."""
    written = join(frames)
    try:
        if route is not None:
            RAW.send(through, route, _NOWAIT_MORE)
        RAW.send(through, written, NOWAIT, len(written) < _COPY_BELOW)
    except (zmq.Again, zmq.ZMQError) as error:
        if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            raise
        return False
    return True


def read(through: zmq.Socket[bytes]) -> list[bytes]:
    """Receive the parts of one message: header, columns and an optional payload; raises zmq.Again if none is there."""
    return parts(through, RAW.recv(through, NOWAIT, False))


def parts(through: zmq.Socket[bytes], frame: Any) -> list[bytes]:
    """The parts of the message that begins with `frame`; empty if it is no valid message."""
    more = frame.more
    while more:  # several frames are no valid message, but the others must not be taken for the next message
        more, frame = RAW.recv(through, NOWAIT, False).more, None
    if frame is None:
        return []
    return cut(frame.bytes if len(frame) < _COPY_BELOW else frame.buffer)


def descriptor_of(frame: Any) -> int | None:
    """The descriptor of the connection on which a frame arrived; None if ZeroMQ made the frame itself."""
    descriptor = property_of(frame, "__fd")
    return None if descriptor is None else int(descriptor)


def receive(through: zmq.Socket[bytes], limit: int, read: Callable[[zmq.Socket[bytes]], Read]) -> list[Read]:
    """Up to `limit` messages that have arrived."""
    messages: list[Read] = []
    try:
        while len(messages) < limit:
            messages.append(read(through))
    except zmq.Again:
        pass
    return messages


def is_readable(through: zmq.Socket[bytes]) -> bool:
    return bool(RAW.get(through, _EVENTS) & _POLLIN)


def next_event(monitor: zmq.Socket[bytes]) -> tuple[int, int]:
    """An event of a monitor, which is readable, and its value: zmq_socket_monitor(3).

    `zmq.utils.monitor` reads it, too, but imports asyncio, of which clients have no other need.
    """
    event, value = _EVENT.unpack(monitor.recv_multipart(NOWAIT)[0])
    return event, value


class AcceptMonitor:
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
        while is_readable(self._monitor):
            event, value = next_event(self._monitor)
            accepted = event == zmq.EVENT_ACCEPTED
            (self._limiter.accepted if accepted else self._limiter.disconnected)(value)


class Watched(Protocol):
    """A further descriptor of a listener, which must be watched."""

    def fileno(self) -> int:
        """The descriptor."""

    def process_events(self) -> None:
        """Handle what the descriptor tells of."""


def cut_keys(keys: set[bytes], monitor: AcceptMonitor, limiter: ConnectionLimiter) -> None:
    """Close the connections of these keys, with which their routes begin."""
    if keys:
        monitor.process_events()  # the kernel may have reused descriptors
        for route in [route for route in limiter.routes if route[:KEY_BYTES] in keys]:
            limiter.cut(route)


def make_stream(context: Context, ipv6: bool) -> zmq.Socket[bytes]:
    stream = make_socket(context, zmq.STREAM)
    stream.setsockopt(zmq.IPV6, ipv6)
    stream.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)
    return stream
