"""The sockets of the monitor stream: one publishes, the others subscribe."""

from __future__ import annotations

import contextlib
import math
import os
import time
from typing import Any, Final

import zmq

from scaler_io import descriptors
from scaler_io.links.streams import Frames
from scaler_io.ports import listen_problem
from scaler_io.security.authorized import AuthorizedKeys
from scaler_io.security.keyring import MONITOR_KEYS, Credentials
from scaler_io.transport.connections import TOPIC_BYTES, SubscriptionLimiter
from scaler_io.transport.curve import HANDSHAKE_FAILURES, Gate, handshake_failure, use_credentials
from scaler_io.transport.endpoint import TURN_MESSAGES, ListenError
from scaler_io.transport.key_demand import KeyDemand
from scaler_io.transport.sockets import (
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
    next_event,
    own_context,
    read,
    receive,
    send,
)
from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError

PUBLISHED_AHEAD = 64
"""Messages that may wait for a slow subscriber, on either side of a connection."""
_FIRST_PAUSE: Final = 1.0
"""Seconds until a refused subscriber connects again; each time it is twice as long, up to _LONGEST_PAUSE."""
_LONGEST_PAUSE: Final = 30.0
_CHANGES_TOGETHER = 32
"""Changes of subscriptions that are processed together: their senders may never stop."""
_TOPIC_MESSAGE_BYTES = TOPIC_BYTES + 64
"""A topic as CURVE encrypts it; its handshake needs more than a topic alone may have."""


class Publisher:
    """A publishing socket. Messages to a slow subscriber are dropped while PUBLISHED_AHEAD messages wait for it."""

    def __init__(self, keys: AuthorizedKeys | None = None) -> None:
        """With `keys`, subscribers at TCP addresses prove one."""
        self.context: Context = own_context()
        self._socket = make_socket(self.context, zmq.XPUB)
        accept(self._socket, TOPIC_BYTES if keys is None else _TOPIC_MESSAGE_BYTES)
        self._limiter = SubscriptionLimiter("monitors")
        self.arrivals = self._limiter.arrivals
        """A descriptor that asks for `close_greedy` sooner than after a second; None if the system has none."""
        self._accept_monitor = AcceptMonitor(self._socket, self._limiter)
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
            raise ListenError(f"cannot listen to {address}: {listen_problem(error.errno)}") from None
        finally:
            os.umask(mask)

    def fileno(self) -> int:
        """The descriptor to wait on; `is_readable` re-arms its edge."""
        return self._socket.FD

    def joined(self) -> bool:
        """Whether a subscriber has joined since the last call; call it again while `is_readable`, and after sending."""
        joined = False
        for _ in range(_CHANGES_TOGETHER):
            if not self.is_readable():
                break
            frame = RAW.recv(self._socket, NOWAIT, False)
            descriptor = descriptor_of(frame)
            if self._limiter.is_restless(descriptor):
                continue
            if self._gate is None or descriptor is None or self._is_accepted(self._gate, descriptor, frame):
                joined = self._limiter.subscription_changed(descriptor, frame.bytes) or joined
        return joined and self.has_subscribers

    def is_readable(self) -> bool:
        """Whether subscriptions have changed; it also re-arms the edge of the descriptor."""
        return is_readable(self._socket)

    def _is_accepted(self, gate: Gate, descriptor: int, frame: Any) -> bool:
        """Whether the sender's key is accepted; if not, its connection is closed."""
        key = gate.key_of(frame)
        if key is None:
            descriptors.shut_down(descriptor)
        elif key:
            self._accept_monitor.process_events()  # the event "accepted" precedes the first message
            self._limiter.first_message(descriptor, key + descriptor.to_bytes(4, "big"))
        return key is not None

    def close_greedy(self, seconds: float) -> float:
        """Close connections that take too much memory; `seconds` after the last call. Call `joined` afterwards.

        Returns after how many seconds it must be called again, or sooner, as ConnectionLimiter tells.
        """
        self._accept_monitor.process_events()  # the kernel may have reused descriptors
        return self._limiter.close_greedy(seconds, None, drained=not is_readable(self._socket))

    def close_revoked(self) -> None:
        """Close the connections of keys that are accepted no longer."""
        if self._gate is not None:
            cut_keys(self._gate.revoked(), self._accept_monitor, self._limiter)

    @property
    def has_subscribers(self) -> bool:
        """Whether any peer has subscribed to everything."""
        return bool(self._limiter.subscribers)

    def send(self, frames: Frames) -> None:
        """Send a message to all subscribers."""
        send(self._socket, frames)

    def close(self) -> None:
        """Free the addresses."""
        self.context.destroy(linger=0)
        self._limiter.close()


class Subscriber:
    """A subscribing socket; it reconnects until it is closed, also to a service that has refused it for its key."""

    def __init__(self, address: Address, credentials: Credentials | None = None) -> None:
        self._address, self._credentials = address, credentials
        self.problem = ""
        """Why nothing will come: the keys; empty if that is not known. `receive` notices it."""
        self.is_answered = False
        """Whether something listens at the address. `receive` notices it."""
        self._renew_at, self._pause = math.inf, _FIRST_PAUSE
        self._context: Context = own_context()
        self._demand = KeyDemand(self._context, address)
        try:
            self._socket, self._monitor = self._connected()
        except zmq.ZMQError as error:
            self.close()
            raise AddressError(f"cannot connect to {address}: {zmq.strerror(error.errno or 0)}") from None

    def _connected(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """A socket that connects, and its monitor; raises OSError if too few descriptors are left."""
        made = make_socket(self._context, zmq.SUB)
        made.set_hwm(PUBLISHED_AHEAD)
        made.setsockopt(zmq.IPV6, ":" in self._address.host)
        made.setsockopt(zmq.RECONNECT_IVL, 100)
        made.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        made.subscribe(b"")
        use_credentials(made, self._credentials, self._address)
        monitor = made.get_monitor_socket(zmq.EVENT_CONNECTED | HANDSHAKE_FAILURES)
        made.connect(str(self._address))
        return made, monitor

    def wait(self, seconds: float) -> bool:
        """Block until a message is there, at most `seconds`; returns whether one is."""
        return bool(self._socket.poll(int(seconds * 1000)))

    def receive(self, limit: int = TURN_MESSAGES) -> list[list[bytes]]:
        """The frames of up to `limit` messages that have arrived."""
        while is_readable(self._monitor):
            event, value = next_event(self._monitor)
            self.is_answered = True
            if event == zmq.EVENT_CONNECTED:
                continue
            # ZeroMQ reconnects after some failures, and gives up after others.
            self._renew_at = min(self._renew_at, time.monotonic() + self._pause)
            failure = handshake_failure(event, value, self._credentials, self._address)
            reason = failure.reason
            if not reason and self._credentials is None:
                reason = self._demand.reason(":" in self._address.host)
            self.problem = reason or self.problem
        messages = receive(self._socket, limit, read)
        if messages:
            self.problem, self._renew_at, self._pause = "", math.inf, _FIRST_PAUSE
        elif time.monotonic() >= self._renew_at:
            self._renew()
        return messages

    def _renew(self) -> None:
        """Connect once more: another service may be there by now, or the key be accepted."""
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._renew_at = time.monotonic() + self._pause
        with contextlib.suppress(OSError, zmq.ZMQError):  # too few descriptors: it is tried again
            before = self._socket, self._monitor
            self._socket, self._monitor = self._connected()
            self._renew_at = math.inf
            before[0].disable_monitor()
            for each in before:
                each.close()

    def subscribe_again(self) -> None:
        """Subscribe again: the publisher then sends all that a new subscriber receives."""
        self._socket.unsubscribe(b"")
        self._socket.subscribe(b"")

    def close(self) -> None:
        """Close the connection."""
        self._context.destroy(linger=0)
