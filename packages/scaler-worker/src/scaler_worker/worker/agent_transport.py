"""The transport of the client inside a task: the agent relays its messages, so it needs no address and no key."""

from __future__ import annotations

import contextlib
import math
import select
import socket

from scaler_io.links.events import LinkLost, LinkUp, UplinkEvent
from scaler_protocol.handshake import Welcome
from scaler_protocol.messages import Message
from scaler_worker.ipc.client_messages import MessageReader, pack_message

_READ_SIZE = 256 * 1024


class AgentTransport:
    """A transport as `scaler_client.task_context` describes it.

    The agent sends a Welcome first, and another one for each new scheduler: each becomes a LinkUp. The last one is
    repeated to a client that takes the transport over from one that failed.
    """

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._reader = MessageReader()
        self._out = bytearray()
        self._lost = False
        self._welcome: Welcome | None = None
        self._greeting = False
        """Whether the owner has not received the Welcome yet."""

    def taken_over(self) -> AgentTransport:
        """Return this transport for a new owner; the previous owner has ended."""
        self._greeting = self._welcome is not None
        return self

    def turn(self, now: float) -> list[UplinkEvent]:
        """Receive; returns the events that have arrived."""
        if self._lost:
            return []
        events: list[UplinkEvent] = []
        if self._greeting and self._welcome is not None:
            events.append(LinkUp(self._welcome, False))
        self._greeting = False
        try:
            data = self._channel.recv(_READ_SIZE)
        except BlockingIOError:
            return events
        except ConnectionResetError:  # it has not read all that it was sent
            data = b""
        if not data:
            self._lost = True
            return [LinkLost("the agent has exited: no connection")]
        for message in self._reader.feed(data):
            if isinstance(message, Welcome):
                self._welcome = message
                events.append(LinkUp(message, False))
            else:
                events.append(message)
        return events

    def send(self, message: Message) -> None:
        """Write the message with the next `flush`."""
        self._out += pack_message(message)

    def flush(self, now: float) -> list[UplinkEvent]:
        """Write buffered messages as far as the socket accepts them."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._out:
                del self._out[: self._channel.send(self._out)]
        return []

    def due(self) -> float:
        """Never: the agent watches the link."""
        return math.inf

    def readable(self) -> bool:
        """Whether `turn` would return an event."""
        if self._lost or self._greeting:
            return self._greeting
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        return bool(poller.poll(0))

    def wait(self, wake: int, seconds: float) -> bool:
        """Block until this channel or `wake` is readable, or `seconds` are over; returns whether `wake` is readable."""
        poller = select.poll()
        poller.register(wake, select.POLLIN)
        if not self._lost:
            poller.register(self._channel, select.POLLIN | (select.POLLOUT if self._out else 0))
        return any(descriptor == wake for descriptor, _ in poller.poll(max(0, seconds) * 1000))

    def close(self) -> None:
        """Flush; the worker keeps the socket open."""
        self.flush(0.0)
