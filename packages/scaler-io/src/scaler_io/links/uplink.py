"""The connecting side of a link. scaler_io.links tells the theory. Pure, no IO."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any

from scaler_io.links.events import LinkDown, LinkLost, LinkRefused, LinkUp, UplinkEvent
from scaler_io.links.streams import ACK_MESSAGES, Frames, Stream, StreamMismatchError, is_numbered, opened
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Acknowledge, Heartbeat, Hello, NeedHello, Refused, Welcome
from scaler_protocol.messages import Message

FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 1.0
GREETING_SECONDS = 2.0
"""How long a Hello may stay unanswered before the connection is given up for a new one."""


class LinkState(Enum):
    """Where an Uplink stands."""

    DOWN = "down"
    GREETING = "greeting"
    UP = "up"
    REFUSED = "refused"


class Uplink:
    """The connecting side of one link; `handed` if it does not leave the process."""

    def __init__(self, hello: Hello, now: float, *, timeout_seconds: float, handed: bool = False) -> None:
        self.state = LinkState.DOWN
        self.round_trip = 0.0
        self.peer_incarnation = 0
        self.heard_at = now
        """When the peer said anything last; in the beginning, when this was made."""
        self._hello = hello
        self._timeout = timeout_seconds
        self._heartbeat = 1.0
        self._stream = Stream(handed=handed)
        self._out: list[Frames] = []
        self._epoch = 0
        self._retry = FIRST_RETRY_SECONDS
        self._attempt_at = now
        self._heard = self._beaten = self._down_since = now
        self._ticked = now
        self._lost = False
        self._handlers: dict[type[Any], Callable[[Any, float], list[UplinkEvent]]] = {
            Welcome: self._welcomed,
            Refused: self._refused,
            NeedHello: lambda message, now: self.broken("the peer does not know this connection", now),
            Heartbeat: self._beat,
            Acknowledge: lambda message, now: [],
            Hello: self._greeted,
        }

    @property
    def epoch(self) -> int:
        """The number of the current (or last) connection."""
        return self._epoch

    def wants_connection(self, now: float) -> bool:
        """Whether the shell should open a connection now."""
        return self.state is LinkState.DOWN and now >= self._attempt_at

    def hurry(self) -> None:
        """Somebody wants the peer now: the next attempt to connect is not waited for."""
        self._retry = FIRST_RETRY_SECONDS
        self._attempt_at = -math.inf

    def opened(self, now: float) -> None:
        """The shell opened a fresh connection: greet."""
        self._epoch += 1
        self.state = LinkState.GREETING
        self._heard = now
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
        """The connection is no more."""
        if self.state in (LinkState.DOWN, LinkState.REFUSED):
            return []
        if self.state is LinkState.UP:
            self._down_since, self._retry = now, FIRST_RETRY_SECONDS
        self.state, self._out = LinkState.DOWN, []
        self._attempt_at = now + self._retry
        self._retry = min(2 * self._retry, LAST_RETRY_SECONDS)
        return [LinkDown(reason)]

    def send(self, message: Message) -> None:
        """Send now, or as soon as the link is up again.

        A peer that does not know us when it is (LinkUp without `resumed`) is sent nothing of what was said before.
        """
        frames = self._stream.write(message)
        if self.state is LinkState.UP:
            self._out.append(frames)

    @property
    def kept_bytes(self) -> int:
        """Bytes sent that the peer has not acknowledged."""
        return self._stream.kept_bytes

    def outgoing(self) -> list[Frames]:
        """Take what is to be written to the connection."""
        out, self._out = self._out, []
        return out

    def receive(self, frames: list[bytes], now: float) -> list[UplinkEvent]:
        """Take a message from the connection; raises ProtocolError for one that is none."""
        if len(frames) < 2:
            raise ProtocolError(f"a message has at least 2 frames, not {len(frames)}")
        self.heard_at = now
        if self.state is LinkState.UP:
            self._heard = now
            try:
                if not self._stream.read(frames[0], now):
                    return []
            except StreamMismatchError:
                self.peer_incarnation = 0
                raise
            if self._stream.owed >= ACK_MESSAGES:
                self._out.append(self._stream.write(Acknowledge()))
        message = opened(frames)
        handler = self._handlers.get(type(message))
        if handler is not None:
            return handler(message, now)
        if self.state is not LinkState.UP:
            return []
        if not is_numbered(frames[0]):
            raise ProtocolError(f"{type(message).__name__} came without a number")
        return [message]

    def tick(self, now: float) -> list[UplinkEvent]:
        """Beat, acknowledge, notice silence. Call at least every heartbeat interval."""
        self._forgive(now)
        if self.state is LinkState.UP:
            if now > self._heard + max(self._timeout, 3 * self._heartbeat):
                return self.broken("the peer is silent", now)
            if now >= self._beaten + self._heartbeat:
                self._beaten = now
                self._out.append(self._stream.write(Heartbeat(sent=int(now * 1e9))))
            elif self._stream.owes_acknowledgement(now):
                self._out.append(self._stream.write(Acknowledge()))
            return []
        if self.state is LinkState.GREETING and now >= self._heard + GREETING_SECONDS:
            return [*self.broken("no answer to Hello", now), *self.tick(now)]
        if self.state is not LinkState.REFUSED and not self._lost and now > self._down_since + self._timeout:
            self._lost = True
            return [LinkLost(f"no connection for {self._timeout:g} s")]
        return []

    def _forgive(self, now: float) -> None:
        """Time in which this process did not run is not the peer's silence: what it said may still be unread."""
        missed = now - self._ticked - self._heartbeat
        self._ticked = now
        if missed > 0:
            self.heard_at = min(now, self.heard_at + missed)
            self._heard = min(now, self._heard + missed)
            self._down_since = min(now, self._down_since + missed)

    def due(self) -> float:
        """When `tick` has something to do, or a connection is wanted; never, once refused."""
        if self.state is LinkState.REFUSED:
            return math.inf
        if self.state is not LinkState.UP:
            return self._attempt_at if self.state is LinkState.DOWN else self._heard + GREETING_SECONDS
        beat = self._beaten + self._heartbeat
        acknowledge = self._stream.acknowledgement_due()
        return beat if acknowledge is None else min(beat, acknowledge)

    def _beat(self, beat: Heartbeat, now: float) -> list[UplinkEvent]:
        if beat.echo:
            self.round_trip = now - beat.sent / 1e9
        elif self.state is LinkState.UP:
            self._out.append(self._stream.write(replace(beat, echo=True)))
        return []

    def _welcomed(self, welcome: Welcome, now: float) -> list[UplinkEvent]:
        if self.state is not LinkState.GREETING:
            return []
        same = welcome.resumed and welcome.incarnation == self.peer_incarnation
        self.peer_incarnation = welcome.incarnation
        self.state, self._lost, self._heartbeat = LinkState.UP, False, welcome.heartbeat_seconds
        self._heard = self._beaten = now
        if same:
            self._stream.acknowledge(welcome.received)
            self._out += self._stream.unacknowledged()
        else:
            self._stream = Stream(handed=self._stream.handed)
        return [LinkUp(welcome, same)]

    def _refused(self, refused: Refused, now: float) -> list[UplinkEvent]:
        self.state, self._out = LinkState.REFUSED, []
        return [LinkRefused(tuple(refused.reasons))]

    def _greeted(self, hello: Hello, now: float) -> list[UplinkEvent]:
        raise ProtocolError("the accepting side says no Hello")
