"""Uplink: the connecting side of a link; scaler_io.links describes the protocol. Pure, no IO."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any

from scaler_io.links.events import LinkDown, LinkLost, LinkRefused, LinkUp, UplinkEvent
from scaler_io.links.streams import (
    LONGEST_HEARTBEAT_SECONDS,
    Frames,
    Stream,
    StreamMismatchError,
    is_numbered,
    message_of,
    size_of,
)
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Acknowledge, Heartbeat, Hello, NeedHello, Refused, Welcome
from scaler_protocol.messages import MESSAGE_MOST, Message

FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 1.0
GREETING_SECONDS = 2.0
"""How long to wait for the answer to Hello before a new connection is made."""
_MISSED = 1.5
"""Intervals without a heartbeat of the service after which we send one: returning that of the service is enough."""


def longest_absence(timeout_seconds: float) -> float:
    """How long after the service has lost a peer that peer may still try to reach it.

    The peer may not have noticed that its connection is lost; then it does after a silence of the timeout, and tries
    for that long again.
    """
    return timeout_seconds + max(timeout_seconds, 3 * LONGEST_HEARTBEAT_SECONDS)


class LinkState(Enum):
    """States of an Uplink."""

    DOWN = "down"
    GREETING = "greeting"
    UP = "up"
    REFUSED = "refused"


class Uplink:
    """The connecting side of one link; `in_process` if messages are passed as objects instead of encoded."""

    def __init__(self, hello: Hello, now: float, *, timeout_seconds: float, in_process: bool = False) -> None:
        self.state = LinkState.DOWN
        self.peer_incarnation = 0
        self._hello, self._timeout = hello, timeout_seconds
        self._heartbeat = 1.0
        self.busy = 0.0
        """The share of its time for which the service was at work lately, as it has told last."""
        self._stream = Stream(in_process=in_process, longest=MESSAGE_MOST)
        self._out: list[Frames] = []
        self._epoch = 0
        self._retry = FIRST_RETRY_SECONDS
        self._attempt_at = now
        self._silent_since = self._heartbeat_at = self._down_since = self._last_there = now
        """`_heartbeat_at`: when the last heartbeat was sent or returned; `_last_there`: `heard_at` of past epochs."""
        self._ticked_at = now
        self._is_there = self._lost = False
        """`_is_there`: whether a valid message has come after Welcome. A service may say Welcome and nothing else."""
        self._handlers: dict[type[Any], Callable[[Any, float], list[UplinkEvent]]] = {
            Welcome: self._welcomed,
            Refused: self._refused,
            NeedHello: lambda message, now: self.broken("the peer does not know this connection", now),
            Heartbeat: self._heartbeat_received,
            Acknowledge: self._acknowledged,
            Hello: self._hello_received,
        }

    @property
    def identity(self) -> bytes:
        """By which the service knows us."""
        return self._hello.identity

    @property
    def heartbeat_seconds(self) -> float:
        """The interval of the service's heartbeats, as it has told last."""
        return self._heartbeat

    @property
    def epoch(self) -> int:
        """The number of the current or last connection."""
        return self._epoch

    @property
    def heard_at(self) -> float:
        """When the service was heard last, now or in an epoch in which it was there; at first, when we began."""
        return self._silent_since if self.state is LinkState.UP else self._last_there

    def wants_connection(self, now: float) -> bool:
        """Whether the shell should open a connection now."""
        return self.state is LinkState.DOWN and now >= self._attempt_at

    def connect_now(self) -> None:
        """Connect at once instead of waiting for the next attempt."""
        self._retry = FIRST_RETRY_SECONDS
        self._attempt_at = -math.inf

    def opened(self, now: float) -> None:
        """Begin an epoch with Hello: the shell has opened a new connection."""
        self._epoch += 1
        self.state, self._is_there = LinkState.GREETING, False
        self._silent_since = now
        self._out = [
            self._stream.write(
                replace(
                    self._hello,
                    epoch=self._epoch,
                    peer_incarnation=self.peer_incarnation,
                    received=self._stream.received,
                )
            )
        ]

    def broken(self, reason: str, now: float) -> list[UplinkEvent]:
        """End the epoch: the connection is gone."""
        if self.state in (LinkState.DOWN, LinkState.REFUSED):
            return []
        if self._is_there:
            self._last_there, self._down_since, self._retry = self._silent_since, now, FIRST_RETRY_SECONDS
        self.state, self._out = LinkState.DOWN, []
        self._attempt_at = now + self._retry
        self._retry = min(2 * self._retry, LAST_RETRY_SECONDS)
        return [LinkDown(reason)]

    def refuse(self, reason: str) -> list[UplinkEvent]:
        """End the link: the transport knows that the peer accepts no connection of ours."""
        return self._refused(Refused([reason]), self._ticked_at)

    def send(self, message: Message) -> None:
        """Send now, or as soon as the link is up again; a peer that does not resume the stream never receives it."""
        frames = self._stream.write(message)
        if self.state is LinkState.UP:
            self._out.append(frames)

    @property
    def kept_bytes(self) -> int:
        """Bytes sent that the peer has not acknowledged."""
        return self._stream.kept_bytes

    def outgoing(self) -> list[Frames]:
        """Return and clear the messages to write to the connection."""
        out, self._out = self._out, []
        return out

    def receive(self, frames: list[bytes], now: float) -> list[UplinkEvent]:
        """Receive a message; returns the events for the core. Raises ProtocolError for a malformed message."""
        if len(frames) < 2:
            raise ProtocolError(f"a message has at least 2 frames, not {len(frames)}")
        message = message_of(frames)  # what is malformed does not count as received: the next epoch sends it again
        if self.state is LinkState.UP:
            self._silent_since = now
            try:
                if not self._stream.read(frames[0], now, size_of(frames)):
                    return []
            except StreamMismatchError:
                self.peer_incarnation = 0
                raise
            if now >= self._stream.acknowledge_at:
                self._out.append(self._stream.write(Acknowledge()))
        handler = self._handlers.get(type(message))
        if handler is not None:
            return handler(message, now)
        if self.state is not LinkState.UP:
            return []
        if not is_numbered(frames[0]):
            raise ProtocolError(f"{type(message).__name__} must be numbered")
        self._is_there = True
        return [message]

    def tick(self, now: float) -> list[UplinkEvent]:
        """Send due heartbeats and acknowledgements, detect silence. Call when `due` says so."""
        self._exclude_pause(now)
        if self.state is LinkState.UP:
            if now > self._silent_since + max(self._timeout, 3 * self._heartbeat):
                return self.broken("the peer is silent", now)
            if now >= self._heartbeat_at + _MISSED * self._heartbeat:
                self._heartbeat_at = now
                self._out.append(self._stream.write(Heartbeat(sent=int(now * 1e9))))
            elif now >= self._stream.acknowledge_at:
                self._out.append(self._stream.write(Acknowledge()))
            return []
        if self.state is LinkState.GREETING and now >= self._silent_since + GREETING_SECONDS:
            return [*self.broken("no answer to Hello", now), *self.tick(now)]
        if self.state is not LinkState.REFUSED and not self._lost and now > self._down_since + self._timeout:
            self._lost, self._down_since = True, now  # what begins after the next Welcome has a timeout, too
            return [LinkLost(f"no connection for {self._timeout:g} s")]
        return []

    def _exclude_pause(self, now: float) -> None:
        """Do not count time in which this process was paused as silence: messages that came meanwhile may be unread."""
        missed = now - self._ticked_at - self._heartbeat
        self._ticked_at = now
        if missed > 0:
            self._last_there = min(now, self._last_there + missed)
            self._silent_since = min(now, self._silent_since + missed)
            self._down_since = min(now, self._down_since + missed)

    def due(self) -> float:
        """When `tick` must be called or a connection is wanted; infinity once refused."""
        if self.state is LinkState.REFUSED:
            return math.inf
        if self.state is not LinkState.UP:
            at = self._attempt_at if self.state is LinkState.DOWN else self._silent_since + GREETING_SECONDS
            return min(at, self._ticked_at + self._heartbeat)  # a longer wait would be taken for a pause
        beat_at = self._heartbeat_at + _MISSED * self._heartbeat
        return min(beat_at, self._ticked_at + self._heartbeat, self._stream.acknowledge_at)

    def _heartbeat_received(self, heartbeat: Heartbeat, now: float) -> list[UplinkEvent]:
        if self.state is LinkState.UP:
            self._is_there = True
            self._heartbeat = heartbeat.seconds or self._heartbeat
            self.busy = heartbeat.busy
            if not heartbeat.echo:
                self._heartbeat_at = now
                self._out.append(self._stream.write(Heartbeat(heartbeat.sent, echo=True)))
        return []

    def _acknowledged(self, message: Acknowledge, now: float) -> list[UplinkEvent]:
        self._is_there = self.state is LinkState.UP
        return []

    def _welcomed(self, welcome: Welcome, now: float) -> list[UplinkEvent]:
        if self.state is not LinkState.GREETING:
            return []
        same = welcome.resumed and welcome.incarnation == self.peer_incarnation
        self.peer_incarnation = welcome.incarnation
        if welcome.session:
            self._hello = replace(self._hello, session=welcome.session)
        self.state, self._lost, self._heartbeat, self.busy = LinkState.UP, False, welcome.heartbeat_seconds, 0.0
        self._silent_since = self._heartbeat_at = now
        if same:
            self._stream.acknowledge(welcome.received)
            self._out += self._stream.unacknowledged()
        else:
            self._stream = Stream(in_process=self._stream.in_process, longest=MESSAGE_MOST)
        return [LinkUp(welcome, same)]

    def _refused(self, refused: Refused, now: float) -> list[UplinkEvent]:
        self.state, self._out = LinkState.REFUSED, []
        reasons = tuple(filter(None, refused.reasons)) or ("it gave no reason",)
        return [LinkRefused(reasons, refused.in_use)]

    def _hello_received(self, hello: Hello, now: float) -> list[UplinkEvent]:
        raise ProtocolError("the accepting side must not send Hello")
