"""The accepting side of many links. scaler_io.links tells the theory. Pure, no IO."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from scaler_io.links.events import HubEvent, PeerJoined, PeerLost
from scaler_io.links.streams import (
    ACK_MESSAGES,
    HEADER,
    KEPT_LIMIT,
    KEPT_MOST,
    STUCK_SECONDS,
    Frames,
    Stream,
    StreamGapError,
    StreamMismatchError,
    is_numbered,
    opened,
)
from scaler_protocol.errors import MalformedMessageError, ProtocolError
from scaler_protocol.handshake import (
    Acknowledge,
    Goodbye,
    Heartbeat,
    Hello,
    NeedHello,
    RefusalCode,
    Refused,
    Welcome,
)
from scaler_protocol.messages import Message

UNREAD_LIMIT = 1024 * 1024
"""Bytes of answers that are not kept, and that nobody may have read, after which a connection is closed.

Who reads them says so about once per heartbeat interval, and has asked for a handful by then.
"""
_BEATS = 16
_UNKEPT_BYTES = 128
"""What ZeroMQ keeps of a small answer, about."""
_ROUTES_LIMIT = 65_536
"""Routes without a peer of which it is known how much they may have unread: there are no more connections."""
_LINK_MESSAGES = frozenset({Hello, Welcome, Refused, NeedHello, Heartbeat, Acknowledge, Goodbye})


class _Peer:
    """One peer as the Hub sees it."""

    __slots__ = (
        "beaten",
        "beats",
        "broken_at",
        "confirmed",
        "fault",
        "heard",
        "hello",
        "identity",
        "round_trip",
        "route",
        "stream",
        "stuck",
        "timeouts",
        "unread",
    )  # fmt: skip

    def __init__(
        self, hello: Hello, route: bytes, timeouts: PeerTimeouts, now: float, *, confirmed: bool, handed: bool
    ) -> None:
        self.identity, self.hello, self.route, self.timeouts = hello.identity, hello, route, timeouts
        self.stream = Stream(handed=handed)
        self.heard = self.beaten = now
        self.beats: deque[int] = deque(maxlen=_BEATS)
        """What the last heartbeats said: who returns one reads. Nobody knows our clock to the nanosecond."""
        self.broken_at: float | None = None
        self.confirmed = confirmed
        """Whether it will know this stream when it names us again.

        One that had an earlier stream with us may have missed the Welcome that began this one, until it speaks in it.
        """
        self.round_trip = 0.0
        self.stuck: tuple[int, float] | None = None
        """The oldest message that it has not acknowledged, and since when, while too much waits behind that."""
        self.unread = 0
        """Bytes of answers without a number since it last showed that it reads what we send."""
        self.fault = ""
        """The malformed message that ended the link."""


@dataclass(frozen=True, slots=True)
class PeerTimeouts:
    """How long a peer may be gone (its route broken) and how long silent, in seconds, before it is lost."""

    grace: float
    silence: float


class Hub:
    """The accepting side of many links. Peers are named by their identity; routes are an affair of the Hub alone.

    Work per `tick` follows what is to be done, not how many peers there are.
    """

    def __init__(
        self,
        incarnation: int,
        *,
        admit: Callable[[Hello], Welcome | Refused],
        timeouts: Callable[[Hello], PeerTimeouts],
        heartbeat_seconds: float = 1.0,
    ) -> None:
        self.refused_frames = 0
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        """Messages by type, since the start."""
        self._incarnation = incarnation
        self._admit = admit
        self._timeouts = timeouts
        self._heartbeat = heartbeat_seconds
        self._peers: dict[bytes, _Peer] = {}
        self._routes: dict[bytes, _Peer] = {}
        self._out: list[tuple[bytes, Frames]] = []
        self._cuts: list[bytes] = []
        self._unread: dict[bytes, int] = {}
        """Bytes that may stand unread on routes without a peer."""
        self._beats: deque[_Peer] = deque()
        """Peers in the order of their last beat; forgotten ones are passed over."""
        self._owing: dict[_Peer, None] = {}
        """Peers that may be owed an acknowledgement."""
        self._suspects: dict[_Peer, None] = {}
        """Peers whose route is broken, or who let too much pile up."""
        self._ticked: float | None = None

    def receive(self, route: bytes, frames: list[bytes], now: float) -> tuple[bytes, HubEvent] | None:
        """Take a message; returns the peer and what it means to the core. Raises ProtocolError for garbage."""
        if len(frames) < 2:
            raise ProtocolError(f"a message has at least 2 frames, not {len(frames)}")
        peer = self._routes.get(route)
        if peer is None:
            return self._greet(route, frames, now)
        peer.heard, peer.confirmed = now, True
        stream = peer.stream
        try:
            if not stream.read(frames[0], now):
                return None
        except (StreamGapError, StreamMismatchError) as error:
            peer.confirmed = isinstance(error, StreamGapError)
            self._ask_hello(route, stream.handed)
            self.unreachable(route, now)
            self._leave_route(peer)
            raise
        if stream.owed == 1:
            self._owing[peer] = None
        elif stream.owed >= ACK_MESSAGES:
            self._write_unkept(peer, Acknowledge())
        message = self._open(peer, frames)
        self.received[type(message).__name__] += 1
        if type(message) in _LINK_MESSAGES:
            return self._about_link(peer, message, now)
        if not is_numbered(frames[0]):
            raise ProtocolError(f"{type(message).__name__} came without a number")
        return peer.identity, message

    def send(self, to: bytes, message: Message) -> None:
        """Send to a peer, now or in its next epoch. A peer that is lost is no error: the message is dropped.

        Raises, changing nothing, for a message that cannot be encoded.
        """
        if peer := self._peers.get(to):
            self._write(peer, message)

    def outgoing(self) -> list[tuple[bytes, Frames]]:
        """Take what is to be written: routes and frames, in order."""
        out, self._out = self._out, []
        return out

    def cuts(self) -> list[bytes]:
        """Take the routes whose connections are to be closed, whatever of `outgoing` is still on its way there."""
        cuts, self._cuts = self._cuts, []
        return cuts

    def unreachable(self, route: bytes, now: float) -> None:
        """Nothing can be written to this route any more; what the peer said last may still be unread."""
        peer = self._routes.get(route)
        if peer is not None and peer.broken_at is None:
            peer.broken_at = now
            self._suspects[peer] = None

    def round_trip(self, identity: bytes) -> float:
        """Seconds of the last heartbeat's round trip."""
        peer = self._peers.get(identity)
        return peer.round_trip if peer else 0.0

    def tick(self, now: float) -> list[tuple[bytes, HubEvent]]:
        """Beat, acknowledge, notice who is gone. Call at least every heartbeat interval."""
        self._forgive(now)
        lost: list[tuple[bytes, HubEvent]] = []
        for peer in list(self._suspects):
            if peer.broken_at is None and peer.unread <= UNREAD_LIMIT and not self._is_behind(peer, now):
                del self._suspects[peer]
            else:
                self._judge(peer, now, lost)
        while self._beats and now >= self._beats[0].beaten + self._heartbeat:
            peer = self._beats.popleft()
            if self._peers.get(peer.identity) is peer and not self._judge(peer, now, lost):
                peer.beaten = now
                self._beats.append(peer)
                peer.beats.append(int(now * 1e9))
                self._write_unkept(peer, Heartbeat(sent=peer.beats[-1]))
        for peer in list(self._owing):
            due = peer.stream.owes_acknowledgement(now)
            if due and peer.broken_at is None:
                self._write_unkept(peer, Acknowledge())
            if due or not peer.stream.owed:
                del self._owing[peer]
        return lost

    def due(self) -> float | None:
        """When `tick` has something to do, if any peer is connected."""
        times = [self._beats[0].beaten + self._heartbeat] if self._beats else []
        times += [at for peer in self._owing if (at := peer.stream.acknowledgement_due()) is not None]
        for peer in self._suspects:
            if peer.stream.backlog > KEPT_MOST or peer.unread > UNREAD_LIMIT:
                times.append(-math.inf)
            elif peer.broken_at is not None:
                times.append(peer.broken_at + peer.timeouts.grace)
            elif peer.stuck is not None:
                times.append(peer.stuck[1] + STUCK_SECONDS)
        return min(times, default=None)

    def _forgive(self, now: float) -> None:
        """Time in which we did not look is nobody's silence: what came meanwhile may still stand unread."""
        if self._ticked is not None and now > self._ticked + 3 * self._heartbeat:
            missed = now - self._ticked - self._heartbeat
            for peer in self._peers.values():
                peer.heard += missed
                if peer.broken_at is not None:
                    peer.broken_at += missed
                if peer.stuck is not None:
                    peer.stuck = peer.stuck[0], peer.stuck[1] + missed
        self._ticked = now

    def _judge(self, peer: _Peer, now: float, lost: list[tuple[bytes, HubEvent]]) -> bool:
        """Whether the peer is lost."""
        reason = ""
        if peer.broken_at is not None and now >= peer.broken_at + peer.timeouts.grace:
            reason = peer.fault or "its connection is gone"
        elif now >= peer.heard + peer.timeouts.silence:
            reason = f"silent for {peer.timeouts.silence:g} s"
        elif self._is_too_slow(peer, now):
            reason = f"too slow: {peer.stream.kept_bytes:,} bytes wait for it"
        elif peer.unread > UNREAD_LIMIT:
            reason = "it reads nothing of what it is sent"
        if reason:
            if peer.broken_at is None:
                self._ask_hello(peer.route, peer.stream.handed)
            self._forget(peer)
            lost.append((peer.identity, PeerLost(reason)))
        return bool(reason)

    @staticmethod
    def _is_behind(peer: _Peer, now: float) -> bool:
        """Whether too much waits for the peer; since when it has acknowledged nothing is noted."""
        if peer.stream.backlog <= KEPT_LIMIT:
            peer.stuck = None
        elif peer.stuck is None or peer.stuck[0] != peer.stream.oldest:
            peer.stuck = peer.stream.oldest, now
        return peer.stuck is not None

    def _is_too_slow(self, peer: _Peer, now: float) -> bool:
        if not self._is_behind(peer, now) or peer.stuck is None:
            return False
        return peer.stream.backlog > KEPT_MOST or now >= peer.stuck[1] + STUCK_SECONDS

    def _about_link(self, peer: _Peer, message: Message, now: float) -> tuple[bytes, HubEvent] | None:
        if isinstance(message, Heartbeat):
            if not message.echo:
                self._write_unkept(peer, replace(message, echo=True))
                return None
            peer.round_trip = now - message.sent / 1e9
            if message.sent in peer.beats:
                peer.unread = 0
            return None
        if isinstance(message, Acknowledge):
            return None
        if isinstance(message, Goodbye):
            self._forget(peer)
            return peer.identity, PeerLost(message.reason or "it said goodbye", farewell=True)
        who = peer.hello.name or peer.identity.hex()
        raise ProtocolError(f"{who} said {type(message).__name__} in the middle of an epoch")

    def _greet(self, route: bytes, frames: list[bytes], now: float) -> tuple[bytes, HubEvent] | None:
        if len(frames[0]) != HEADER.size:
            raise ProtocolError(f"a header has {HEADER.size} bytes, not {len(frames[0])}")
        handed = type(frames[1]) is not bytes
        try:
            hello = opened(frames)
        except MalformedMessageError as error:
            if str(error.details.get("field", "")).startswith("Hello."):  # its sender can be told what is wrong
                self._answer(route, Refused([str(error)], [RefusalCode.MALFORMED]), handed)
            raise
        self.received[type(hello).__name__] += 1
        if not isinstance(hello, Hello):
            self.refused_frames += 1
            self._ask_hello(route, handed)
            return None
        peer = self._peers.get(hello.identity)
        same = peer is not None and peer.hello.incarnation == hello.incarnation
        if peer is not None and same and hello.epoch <= peer.hello.epoch:
            return None  # a stale Hello of an epoch that is over
        answer = self._admit(hello)
        if isinstance(answer, Refused):
            self._answer(route, answer, handed)
            return None
        names_us = hello.peer_incarnation == self._incarnation
        known = same and names_us and peer is not None and peer.confirmed and hello.received <= peer.stream.sent
        if peer is not None and known:
            self._routes.pop(peer.route, None)
            self._cuts.append(peer.route)
            peer.route, peer.hello, peer.broken_at, peer.heard = route, hello, None, now
            peer.timeouts = self._timeouts(hello)
            peer.stream.acknowledge(hello.received)
        else:
            if peer is not None:
                self._forget(peer)
                self._cuts.append(peer.route)
            peer = _Peer(hello, route, self._timeouts(hello), now, confirmed=not names_us, handed=handed)
            self._peers[hello.identity] = peer
            self._beats.append(peer)
        self._routes[route] = peer
        welcome = replace(
            answer,
            incarnation=self._incarnation,
            received=peer.stream.received,
            resumed=known,
            heartbeat_seconds=self._heartbeat,
        )
        self._write(peer, welcome)
        self._out += [(route, again) for again in peer.stream.unacknowledged()]
        return peer.identity, PeerJoined(hello, known)

    def _open(self, peer: _Peer, frames: list[bytes]) -> Message:
        """Decode a message; a numbered one that is malformed ends the link, or its sender would wait for ever.

        The next tick reports the loss.
        """
        try:
            return opened(frames)
        except MalformedMessageError as error:
            if is_numbered(frames[0]):
                peer.fault = f"malformed message: {error}"
                self._write(peer, Refused([peer.fault], [RefusalCode.MALFORMED]))
                self._leave_route(peer)
                peer.broken_at, peer.confirmed = -math.inf, False
                self._suspects[peer] = None
            raise

    def _ask_hello(self, route: bytes, handed: bool) -> None:
        self._answer(route, NeedHello(), handed)

    def _answer(self, route: bytes, message: Message, handed: bool) -> None:
        """Write to a route without a peer, unless too much stands unread there."""
        frames = Stream(handed=handed).write(message)
        if self._pile_up(route, 0 if handed else _UNKEPT_BYTES + sum(map(len, frames))):
            self._out.append((route, frames))

    def _pile_up(self, route: bytes, size: int) -> bool:
        """Note what may stay unread on a route without a peer; False where its connection is closed for that."""
        unread = self._unread.pop(route, 0) + size
        if unread > UNREAD_LIMIT:
            self._cuts.append(route)
            return False
        self._unread[route] = unread
        if len(self._unread) > _ROUTES_LIMIT:
            del self._unread[next(iter(self._unread))]
        return True

    def _write_unkept(self, peer: _Peer, message: Message) -> None:
        """Write an answer that nobody will acknowledge."""
        self._write(peer, message)
        peer.unread += _UNKEPT_BYTES
        if peer.unread > UNREAD_LIMIT:
            self._suspects[peer] = None

    def _write(self, peer: _Peer, message: Message) -> None:
        stream = peer.stream
        frames = stream.write(message)
        self.sent[type(message).__name__] += 1
        if peer.broken_at is None:
            self._out.append((peer.route, frames))
        if stream.kept_bytes > KEPT_LIMIT:
            self._suspects[peer] = None

    def _leave_route(self, peer: _Peer) -> None:
        """The peer has no route any more; what it was sent by that may stand unread there."""
        if self._routes.get(peer.route) is peer:
            del self._routes[peer.route]
            self._pile_up(peer.route, peer.stream.kept_bytes + peer.unread)

    def _forget(self, peer: _Peer) -> None:
        self._leave_route(peer)
        if self._peers.get(peer.identity) is peer:
            del self._peers[peer.identity]
        self._suspects.pop(peer, None)
        self._owing.pop(peer, None)
