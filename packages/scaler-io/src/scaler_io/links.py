"""Links: what a connection promises, on the connecting side (Uplink) and on the accepting side (Hub). Pure, no IO.

A connection is an *epoch*: the shell opens one, says so with `opened`, and never lets ZeroMQ reconnect behind our
back. The first message of an epoch is Hello; it is answered by Welcome or Refused. Between two incarnations messages
are numbered (scaler_io.streams); a new epoch of the same two sends the unacknowledged suffix again, duplicates are
dropped, so the cores see every message exactly once and in order as long as both processes live. A peer that is
another incarnation than before starts a fresh stream, and the core hears that (`LinkUp.resumed`, `PeerJoined.resumed`
are False).

    Uplink:  DOWN --opened--> GREETING --Welcome--> UP --broken / NeedHello / silence--> DOWN
             GREETING --Refused--> REFUSED (final); DOWN for longer than the timeout --> LinkLost, once

Both sides beat once per heartbeat interval; anything received is a sign of life. A peer whose route is gone is lost
after its *grace*, a silent one after its *patience*, one that lets KEPT_LIMIT bytes pile up at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from scaler_io.streams import HEADER, KEPT_LIMIT, Frames, Stream
from scaler_protocol.codec import decode
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Acknowledge, Goodbye, Heartbeat, Hello, NeedHello, Refused, Welcome
from scaler_protocol.messages import Message

FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 1.0
GREETING_SECONDS = 2.0
"""How long a Hello may stay unanswered before the connection is given up for a new one."""


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The peer welcomed us; without `resumed` it knows nothing of what we sent before."""

    welcome: Welcome
    resumed: bool


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The connection broke; attempts to make a new one go on."""

    reason: str


@dataclass(frozen=True, slots=True)
class LinkLost:
    """No connection for longer than the timeout."""

    reason: str


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """The peer will not have us."""

    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """A peer said Hello; without `resumed` it is new, or has lost what it knew."""

    hello: Hello
    resumed: bool


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A peer is gone for good."""

    reason: str


UplinkEvent = Message | LinkUp | LinkDown | LinkLost | LinkRefused
HubEvent = Message | PeerJoined | PeerLost


class LinkState(Enum):
    """Where an Uplink stands."""

    DOWN = "down"
    GREETING = "greeting"
    UP = "up"
    REFUSED = "refused"


class Uplink:
    """The connecting side of one link."""

    def __init__(self, hello: Hello, now: float, *, timeout_seconds: float) -> None:
        self.state = LinkState.DOWN
        self.round_trip = 0.0
        self.peer_incarnation = 0
        self._hello = hello
        self._timeout = timeout_seconds
        self._heartbeat = 1.0
        self._stream = Stream()
        self._out: list[Frames] = []
        self._epoch = 0
        self._retry = FIRST_RETRY_SECONDS
        self._attempt_at = now
        self._heard = self._beaten = self._down_since = now
        self._lost = False

    @property
    def epoch(self) -> int:
        """The number of the current (or last) connection."""
        return self._epoch

    def wants_connection(self, now: float) -> bool:
        """Whether the shell should open a connection now."""
        return self.state is LinkState.DOWN and now >= self._attempt_at

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
        """Send now, or as soon as the link is up again."""
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
        if self.state is LinkState.UP:
            if not self._stream.read(frames[0], now):
                return []
            self._heard = now
        message = decode(frames[1:])
        if isinstance(message, Heartbeat):
            return self._beat(message, now)
        if isinstance(message, Welcome):
            return self._welcomed(message, now)
        if isinstance(message, Refused):
            self.state = LinkState.REFUSED
            return [LinkRefused(tuple(message.reasons))]
        if isinstance(message, NeedHello):
            return self.broken("the peer does not know this connection", now)
        if isinstance(message, Acknowledge) or self.state is not LinkState.UP:
            return []
        return [message]

    def tick(self, now: float) -> list[UplinkEvent]:
        """Beat, acknowledge, notice silence. Call at least every heartbeat interval."""
        if self.state is LinkState.UP:
            if now - self._heard > max(self._timeout, 3 * self._heartbeat):
                return self.broken("the peer is silent", now)
            if now - self._beaten >= self._heartbeat:
                self._beaten = now
                self._out.append(self._stream.write(Heartbeat(sent=int(now * 1e9))))
            elif self._stream.owes_acknowledgement(now):
                self._out.append(self._stream.write(Acknowledge()))
            return []
        if self.state is LinkState.GREETING and now - self._heard > GREETING_SECONDS:
            return [*self.broken("no answer to Hello", now), *self.tick(now)]
        if self.state is not LinkState.REFUSED and not self._lost and now - self._down_since > self._timeout:
            self._lost = True
            return [LinkLost(f"no connection for {self._timeout:g} s")]
        return []

    def due(self) -> float:
        """When `tick` has something to do."""
        if self.state is not LinkState.UP:
            return self._attempt_at if self.state is LinkState.DOWN else self._heard + GREETING_SECONDS
        beat = self._beaten + self._heartbeat
        acknowledge = self._stream.acknowledgement_due()
        return beat if acknowledge is None else min(beat, acknowledge)

    def _beat(self, beat: Heartbeat, now: float) -> list[UplinkEvent]:
        if beat.echo:
            self.round_trip = now - beat.sent / 1e9
        else:
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
            self._stream = Stream()
        return [LinkUp(welcome, same)]


class _Peer:
    """One peer as the Hub sees it."""

    __slots__ = ("beaten", "broken_at", "heard", "hello", "identity", "round_trip", "route", "stream")

    def __init__(self, hello: Hello, route: bytes, now: float) -> None:
        self.identity, self.hello, self.route = hello.identity, hello, route
        self.stream = Stream()
        self.heard = self.beaten = now
        self.broken_at: float | None = None
        self.round_trip = 0.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a peer may be gone (its route broken) and how long silent, in seconds, before it is lost."""

    grace: float
    silence: float


class Hub:
    """The accepting side of many links. Peers are named by their identity; routes are an affair of the Hub alone."""

    def __init__(
        self,
        incarnation: int,
        *,
        admit: Callable[[Hello], Welcome | Refused],
        patience: Callable[[Hello], Patience],
        heartbeat_seconds: float = 1.0,
    ) -> None:
        self.refused_frames = 0
        self._incarnation = incarnation
        self._admit = admit
        self._patience = patience
        self._heartbeat = heartbeat_seconds
        self._peers: dict[bytes, _Peer] = {}
        self._routes: dict[bytes, _Peer] = {}
        self._out: list[tuple[bytes, Frames]] = []

    def receive(self, route: bytes, frames: list[bytes], now: float) -> tuple[bytes, HubEvent] | None:
        """Take a message; returns the peer and what it means to the core. Raises ProtocolError for garbage."""
        if len(frames) < 2:
            raise ProtocolError(f"a message has at least 2 frames, not {len(frames)}")
        peer = self._routes.get(route)
        if peer is None:
            return self._greet(route, frames, now)
        peer.heard = now
        if not peer.stream.read(frames[0], now):
            return None
        message = decode(frames[1:])
        if isinstance(message, Heartbeat):
            if message.echo:
                peer.round_trip = now - message.sent / 1e9
            else:
                self._write(peer, replace(message, echo=True))
            return None
        if isinstance(message, Acknowledge):
            return None
        if isinstance(message, Goodbye):
            self._forget(peer)
            return peer.identity, PeerLost(message.reason or "it said goodbye")
        if isinstance(message, Hello):
            raise ProtocolError(f"{peer.hello.name or peer.identity.hex()} said Hello twice in one epoch")
        return peer.identity, message

    def send(self, to: bytes, message: Message) -> None:
        """Send to a peer, now or in its next epoch. A peer that is lost is no error: the message is dropped."""
        if peer := self._peers.get(to):
            self._write(peer, message)

    def outgoing(self) -> list[tuple[bytes, Frames]]:
        """Take what is to be written: routes and frames, in order."""
        out, self._out = self._out, []
        return out

    def unreachable(self, route: bytes, now: float) -> None:
        """The transport has no such route any more."""
        if peer := self._routes.pop(route, None):
            peer.broken_at = now

    def round_trip(self, identity: bytes) -> float:
        """Seconds of the last heartbeat's round trip."""
        peer = self._peers.get(identity)
        return peer.round_trip if peer else 0.0

    def tick(self, now: float) -> list[tuple[bytes, HubEvent]]:
        """Beat, acknowledge, notice who is gone. Call at least every heartbeat interval."""
        lost: list[tuple[bytes, HubEvent]] = []
        for peer in list(self._peers.values()):
            if reason := self._why_lost(peer, now):
                if peer.broken_at is None:
                    self._out.append((peer.route, peer.stream.write(NeedHello())))
                self._forget(peer)
                lost.append((peer.identity, PeerLost(reason)))
            elif now - peer.beaten >= self._heartbeat:
                peer.beaten = now
                self._write(peer, Heartbeat(sent=int(now * 1e9)))
            elif peer.stream.owes_acknowledgement(now):
                self._write(peer, Acknowledge())
        return lost

    def due(self) -> float | None:
        """When `tick` has something to do, if any peer is connected."""
        times = []
        for peer in self._peers.values():
            times.append(peer.beaten + self._heartbeat)
            if (acknowledge := peer.stream.acknowledgement_due()) is not None:
                times.append(acknowledge)
        return min(times, default=None)

    def _why_lost(self, peer: _Peer, now: float) -> str:
        patience = self._patience(peer.hello)
        if peer.broken_at is not None and now - peer.broken_at >= patience.grace:
            return "its connection is gone"
        if now - peer.heard >= patience.silence:
            return f"silent for {patience.silence:g} s"
        if peer.stream.kept_bytes > KEPT_LIMIT:
            return f"too slow: {peer.stream.kept_bytes:,} bytes wait for it"
        return ""

    def _greet(self, route: bytes, frames: list[bytes], now: float) -> tuple[bytes, HubEvent] | None:
        hello = decode(frames[1:])
        if not isinstance(hello, Hello):
            self.refused_frames += 1
            self._out.append((route, [HEADER.pack(0, 0), *Stream().write(NeedHello())[1:]]))
            return None
        answer = self._admit(hello)
        if isinstance(answer, Refused):
            self._out.append((route, Stream().write(answer)))
            return None
        peer = self._peers.get(hello.identity)
        known = (
            peer is not None
            and peer.hello.incarnation == hello.incarnation
            and hello.peer_incarnation == self._incarnation
        )
        if peer is not None and known:
            if hello.epoch <= peer.hello.epoch:
                return None  # a stale Hello of an epoch that is over
            self._routes.pop(peer.route, None)
            peer.route, peer.hello, peer.broken_at, peer.heard = route, hello, None, now
            peer.stream.acknowledge(hello.received)
        else:
            if peer is not None:
                self._forget(peer)
            peer = self._peers[hello.identity] = _Peer(hello, route, now)
        self._routes[route] = peer
        welcome = replace(answer, incarnation=self._incarnation, received=peer.stream.received, resumed=known)
        self._write(peer, welcome)
        self._out += [(route, again) for again in peer.stream.unacknowledged()]
        return peer.identity, PeerJoined(hello, known)

    def _write(self, peer: _Peer, message: Message) -> None:
        frames = peer.stream.write(message)
        if peer.broken_at is None:
            self._out.append((peer.route, frames))

    def _forget(self, peer: _Peer) -> None:
        if self._routes.get(peer.route) is peer:
            del self._routes[peer.route]
        if self._peers.get(peer.identity) is peer:
            del self._peers[peer.identity]
