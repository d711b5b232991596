"""Hub: the accepting side of many links; scaler_io.links describes the protocol. Pure, no IO."""

from __future__ import annotations

import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import replace

from scaler_io.links.admission import Permissions, admit_principal, role_name
from scaler_io.links.events import HubEvent, PeerJoined, PeerLost
from scaler_io.links.link_record import UNREAD_LIMIT, KeptLimits, LinkFigures, LinkRecord, PeerTimeouts
from scaler_io.links.strays import Strays
from scaler_io.links.streams import (
    HEADER,
    KEPT_LIMIT,
    KEPT_MOST,
    LONGEST_HEARTBEAT_SECONDS,
    Frames,
    Stream,
    StreamGapError,
    StreamMismatchError,
    is_numbered,
    message_of,
    size_of,
)
from scaler_io.links.suspensions import Suspensions
from scaler_io.security.keyring import ANYONE, KeyRole, Principal
from scaler_protocol.errors import MalformedMessageError, ProtocolError
from scaler_protocol.handshake import (
    Acknowledge,
    Goodbye,
    Heartbeat,
    Hello,
    NeedHello,
    Refused,
    Welcome,
)
from scaler_protocol.messages import Message

FAULTS_LIMIT = 100
"""Messages of a peer that are not allowed, between two of its heartbeats, before its connection is closed."""
FAULTS_BYTES = 8 * 1024 * 1024
"""The same for their bytes: long ones cost us more."""
LEFT_LIMIT = 256 * 1024 * 1024
"""Bytes that the clients of a key may leave in a service while they have no connection."""
CONNECTED_SECONDS = 10.0
"""How long a peer that sends nothing, not even heartbeats, counts as connected, unless they are rarer than that."""
HEARTBEATS_PER_SECOND = 500
"""Most heartbeats to all peers together: with more peers each gets fewer, so that they take little of our time."""
_HEARTBEATS_IN_SILENCE = 4
"""Least number of heartbeats in the time after which a silent peer is lost, however many peers there are."""
_UNNUMBERED_BYTES = 128
"""About what ZeroMQ takes for a small message."""
HELLO_BYTES = 256 * 1024
"""Longest Hello. A longer message on a route without a peer is not decoded."""
_ROUTES_LIMIT = 65_536
"""For how many routes without a peer unread bytes are counted; a service has no more connections."""
_LINK_MESSAGES = frozenset({Hello, Welcome, Refused, NeedHello, Heartbeat, Acknowledge, Goodbye})


class Hub:
    """The accepting side of many links. It names peers by their identity; the core knows no routes.

    `tick` visits only peers with something due, so its cost does not depend on the number of peers.
    """

    def __init__(
        self,
        incarnation: int,
        *,
        admit: Callable[[Hello], Welcome | Refused],
        timeouts: Callable[[Hello], PeerTimeouts],
        heartbeat_seconds: float = 1.0,
        principal: Callable[[bytes], Principal] = lambda route: ANYONE,
        permitted: Permissions | None = None,
        kept: KeptLimits | None = None,
        token: Callable[[Hello, Principal], bytes] | None = None,
        refusal: Callable[[Hello, Principal], Refused | None] | None = None,
        left: Callable[[bytes, bool], int] = lambda identity, exact: 0,
        worker_links: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        """`principal` tells whose key the sender of a route has proved, `permitted` what peers of a role may send.

        `token` is what a welcomed peer is told for object storage; `refusal` why a peer is not admitted, or None.
        `left` tells how many bytes of a peer the service keeps only until it is lost: at most, or if `exact` precisely;
        `worker_links` how many peers there may be with one worker's key.
        """
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        """Numbers of messages by type, since the start."""
        self._incarnation, self._admit, self._timeouts = incarnation, admit, timeouts
        self._heartbeat, self._longest_heartbeat = heartbeat_seconds, LONGEST_HEARTBEAT_SECONDS
        """The interval for few peers, and the longest one that the timeout of every peer allows."""
        self._principal, self._permitted = principal, permitted
        self.kept_limits = kept or KeptLimits(KEPT_LIMIT, KEPT_MOST)
        self.refused_frames, self.busy = 0, 0.0
        """The second: the share of its time for which the service was at work lately."""
        self.tick_by = math.inf
        """When `tick` must be called at the latest; `due` is later if the reason is gone meanwhile."""
        self._token, self._refusal, self._left, self._worker_links = token, refusal, left, worker_links
        self._peers: dict[bytes, LinkRecord] = {}
        self._routes: dict[bytes, LinkRecord] = {}
        self._links: Counter[bytes] = Counter()
        """Numbers of peers by their keys."""
        self._out: list[tuple[bytes, Frames]] = []
        self._cuts: list[bytes] = []
        self._unread: dict[bytes, int] = {}
        """Bytes that may be unread on each route without a peer."""
        self._heartbeats: deque[LinkRecord] = deque()
        """Peers in the order of their last heartbeat; forgotten ones are skipped."""
        self._owing: tuple[dict[LinkRecord, None], ...] = ({}, {})
        """Peers that may wait for an acknowledgement, in the order in which it is due; second: of heavy messages."""
        self._watched: dict[LinkRecord, None] = {}
        """Peers that every tick examines: with a broken route, or with too many bytes waiting or unread."""
        self._ticked_at: float | None = None
        self._loss_due, self._suspensions, self._strays = math.inf, Suspensions(), Strays()

    @property
    def is_tick_due(self) -> bool:
        """Whether `tick` must be called at once: a peer has no connection, or leaves too many bytes unacknowledged."""
        return self.tick_by == -math.inf

    @property
    def heartbeat_seconds(self) -> float:
        """The interval of heartbeats to each peer."""
        return max(self._heartbeat, min(self._longest_heartbeat, len(self._peers) / HEARTBEATS_PER_SECOND))

    def receive(self, route: bytes, frames: list[bytes], now: float) -> tuple[bytes, HubEvent] | None:
        """Receive a message; returns the peer and the event for the core, if any.

        Raises ProtocolError for a message that is malformed or not allowed here.
        """
        if len(frames) < 2:
            raise ProtocolError(f"a message has at least 2 frames, not {len(frames)}")
        peer = self._routes.get(route)
        if peer is None:
            return self._receive_hello(route, frames, now)
        peer.heard_at, peer.confirmed = now, True
        stream = peer.stream
        try:
            before = stream.acknowledge_at
            if not stream.read(frames[0], now, size_of(frames)):
                return None
        except (StreamGapError, StreamMismatchError) as error:
            peer.confirmed = isinstance(error, StreamGapError)
            self._ask_hello(route, stream.in_process)
            self.unreachable(route, now)
            self._leave_route(peer)
            raise
        if now >= stream.acknowledge_at:
            self._write_unnumbered(peer, Acknowledge())
        elif stream.acknowledge_at != before:
            self.tick_by = min(self.tick_by, stream.acknowledge_at)
            owing = self._owing[stream.is_heavy]
            owing.pop(peer, None)
            owing[peer] = None
        message = self._decode(peer, frames)
        self.received[type(message).__name__] += 1
        if type(message) in _LINK_MESSAGES:
            return self._handle_link_message(peer, message, now)
        if not is_numbered(frames[0]):
            raise ProtocolError(f"{type(message).__name__} must be numbered")
        if self._permitted is not None and type(message) not in self._permitted[peer.hello.role]:
            raise ProtocolError(f"{role_name(peer.hello.role)} may not send {type(message).__name__}")
        return peer.identity, message

    def send(self, to: bytes, message: Message) -> None:
        """Send to a peer, now or in its next epoch. A message to a lost peer is dropped; this is no error.

        Raises MalformedMessageError, and changes nothing, for a message that cannot be encoded.
        """
        if peer := self._peers.get(to):
            self._write(peer, message)

    def outgoing(self) -> list[tuple[bytes, Frames]]:
        """Return and clear the messages to write: routes and frames, in order."""
        out, self._out = self._out, []
        return out

    def cuts(self) -> list[bytes]:
        """Return and clear the routes whose connections must be closed, even if messages to them are on their way."""
        cuts, self._cuts = self._cuts, []
        return cuts

    def unreachable(self, route: bytes, now: float, unwritten: Frames | None = None) -> None:
        """Record that nothing can be written to this route any more, nor was this message.

        The route may still hold messages from the peer.
        """
        peer = self._routes.get(route)
        if peer is None:
            return
        peer.stream.broken(unwritten)
        if peer.broken_at is None:
            peer.broken_at = now
            self._watched[peer] = None
            self.tick_by = -math.inf

    def refused(self, route: bytes, size: int) -> None:
        """A message of `size` bytes from this route was not allowed; too many or too long ones end the link.

        The next tick reports the peer as lost.
        """
        peer = self._routes.get(route)
        if peer is None:
            return
        peer.faults += 1
        peer.fault_bytes += size
        if peer.faults > FAULTS_LIMIT or peer.fault_bytes > FAULTS_BYTES:
            self._cuts.append(route)
            self._break_off(peer, f"{peer.faults} of its messages, of {peer.fault_bytes:,} bytes, were not allowed")
            self.tick_by = -math.inf

    def revoke(self, keys: Collection[bytes]) -> None:
        """Close the connections of these keys; the next tick reports their peers as lost."""
        for peer in self._peers.values():
            if peer.principal.key in keys:
                self._cuts.append(peer.route)
                self._end_link(peer, "its key is accepted no longer")

    def reconnect(self, now: float) -> None:
        """Close the connections of all peers, which connect again and are welcomed anew; their streams go on."""
        for peer in self._peers.values():
            if peer.broken_at is None:
                self._cuts.append(peer.route)
                self.unreachable(peer.route, now)

    def has_peer(self, route: bytes) -> bool:
        """Whether a peer has said Hello on this route and is not lost."""
        return route in self._routes

    def round_trip(self, identity: bytes) -> float:
        """Seconds of the last heartbeat's round trip; 0 before the first one, and for an unknown peer."""
        peer = self._peers.get(identity)
        return peer.round_trip if peer else 0.0

    def key_of(self, identity: bytes) -> bytes:
        """The key that a peer has proved; empty without keys, and for an unknown peer."""
        peer = self._peers.get(identity)
        return peer.principal.key if peer else b""

    def unacknowledged(self, identity: bytes) -> int:
        """Bytes sent that a peer has not acknowledged; 0 for an unknown peer."""
        peer = self._peers.get(identity)
        return peer.stream.kept_bytes if peer else 0

    def is_connected(self, identity: bytes) -> bool:
        """Whether a peer has a connection over which it was heard of lately."""
        peer, now = self._peers.get(identity), self._ticked_at or 0.0
        silence = max(CONNECTED_SECONDS, 2 * self.heartbeat_seconds)
        return peer is not None and peer.broken_at is None and now < peer.heard_at + silence

    def links(self, now: float) -> list[LinkFigures]:
        """The links of all peers."""
        return [peer.figures(now) for peer in self._peers.values()]

    def tick(self, now: float) -> list[tuple[bytes, HubEvent]]:
        """Send due heartbeats and acknowledgements; returns the lost peers. Call when `due` says so."""
        self._exclude_pause(now)
        self.tick_by = math.inf
        lost: list[tuple[bytes, HubEvent]] = []
        for peer in list(self._watched):
            if peer.broken_at is None and peer.unread <= UNREAD_LIMIT and not peer.is_behind(self.kept_limits, now):
                del self._watched[peer]
            else:
                self._drop_if_lost(peer, now, lost)
        self._drop_departed(lost)
        interval = self.heartbeat_seconds
        while self._heartbeats and now >= self._heartbeats[0].heartbeat_at + interval:
            peer = self._heartbeats.popleft()
            if self._peers.get(peer.identity) is peer and not self._drop_if_lost(peer, now, lost):
                peer.heartbeat_at = now
                self._heartbeats.append(peer)
                sent = int(now * 1e9)
                peer.heartbeats.append((sent, peer.unnumbered))
                self._write_unnumbered(peer, Heartbeat(sent, seconds=interval, busy=self.busy))
        for heavy, owing in enumerate(self._owing):
            while (first := self._first_owing(heavy)) is not None and now >= first.stream.acknowledge_at:
                del owing[first]
                if first.broken_at is None:
                    self._write_unnumbered(first, Acknowledge())
        self._loss_due = min((peer.loss_due(self.kept_limits) for peer in self._watched), default=math.inf)
        self._plan_tick()
        return lost

    def _plan_tick(self) -> None:
        if (due := self.due()) is not None:
            self.tick_by = min(self.tick_by, due)

    def _first_owing(self, heavy: int) -> LinkRecord | None:
        """The peer with messages of this kind that has waited longest for an acknowledgement."""
        owing = self._owing[heavy]
        while owing:
            peer = next(iter(owing))
            if peer.stream.owed and peer.stream.is_heavy == heavy:
                return peer
            del owing[peer]
        return None

    def due(self) -> float | None:
        """When `tick` must be called; None if no peer is connected."""
        due = self._loss_due
        if self._heartbeats:
            due = self._heartbeats[0].heartbeat_at + self.heartbeat_seconds
            if self._ticked_at is not None:
                due = min(due, self._ticked_at + self._heartbeat)  # a longer wait would be taken for a pause
        for heavy in range(len(self._owing)):
            if (first := self._first_owing(heavy)) is not None:
                due = min(due, first.stream.acknowledge_at)
        return due if due < math.inf else None

    def _exclude_pause(self, now: float) -> None:
        """Do not count time in which this process was paused as silence: messages that came meanwhile may be unread."""
        if self._ticked_at is not None and now > self._ticked_at + 3 * self._heartbeat:
            missed = now - self._ticked_at - self._heartbeat
            for peer in self._peers.values():
                peer.exclude(missed)
        self._ticked_at = now

    def _drop_if_lost(self, peer: LinkRecord, now: float, lost: list[tuple[bytes, HubEvent]]) -> bool:
        """Forget the peer if it is lost, and add the event to `lost`; returns whether it is."""
        reason = peer.loss(self.kept_limits, now)
        if reason:
            if peer.broken_at is None:
                self._ask_hello(peer.route, peer.stream.in_process)
            self._forget(peer)
            lost.append((peer.identity, PeerLost(reason, unwritten=peer.stream.unwritten())))
        return bool(reason)

    def _drop_departed(self, lost: list[tuple[bytes, HubEvent]]) -> None:
        """Forget clients without a connection, the first to go first, while those of their key have left too much."""
        departed: dict[bytes, list[LinkRecord]] = {}
        for peer in self._watched:
            if peer.broken_at is not None and peer.principal.role is KeyRole.CLIENT:
                departed.setdefault(peer.principal.key, []).append(peer)
        for peers in departed.values():
            if sum(self._left(peer.identity, False) for peer in peers) <= LEFT_LIMIT:
                continue
            sizes = {
                peer: self._left(peer.identity, True) for peer in sorted(peers, key=lambda peer: peer.broken_at or 0)
            }
            left = sum(sizes.values())
            for peer, size in sizes.items():
                if left <= LEFT_LIMIT:
                    break
                left -= size
                self._forget(peer)
                lost.append((peer.identity, PeerLost("the clients of its key that are gone have left too much")))

    def _handle_link_message(self, peer: LinkRecord, message: Message, now: float) -> tuple[bytes, HubEvent] | None:
        if isinstance(message, Heartbeat):
            if not message.echo:
                self._write_unnumbered(peer, Heartbeat(message.sent, True, self.heartbeat_seconds))
                return None
            peer.returned(message.sent, now)
            return None
        if isinstance(message, Acknowledge):
            return None
        if isinstance(message, Goodbye):
            self._forget(peer)
            reason, objects_left = message.reason or "it said goodbye", message.objects_left
            return peer.identity, PeerLost(reason, farewell=True, objects_left=objects_left)
        who = peer.hello.name or peer.identity.hex()
        raise ProtocolError(f"{who} sent {type(message).__name__} in the middle of an epoch")

    def _receive_hello(self, route: bytes, frames: list[bytes], now: float) -> tuple[bytes, HubEvent] | None:
        """Handle a message from a route without a peer: a Hello, or the sender is asked for one."""
        in_process = type(frames[1]) is not bytes
        fits = in_process or sum(map(len, frames)) <= HELLO_BYTES
        hello = self._decode_hello(route, frames, in_process) if fits else None
        principal = self._principal(route)
        suspended = self._suspensions.is_suspended(principal, now)
        if hello is None:
            self.refused_frames += 1
            if self._strays.add(route) or suspended:
                self._cuts.append(route)
            else:
                self._ask_hello(route, in_process)
            return None
        peer = self._peers.get(hello.identity)
        if peer is None and suspended:
            return None  # the sender tries again when it gets no answer
        links = self._links[principal.key] if peer is None else 0
        known = peer.principal if peer is not None else principal
        if refusal := admit_principal(hello, principal, known, links, self._worker_links()):
            self._answer(route, refusal, in_process)
            return None
        if peer is not None and hello.incarnation == peer.hello.incarnation and hello.epoch <= peer.hello.epoch:
            return None  # a late Hello of an epoch that is over
        answer = self._admit(hello)
        refused = answer if isinstance(answer, Refused) else self._refusal and self._refusal(hello, principal)
        if refused:
            self._answer(route, refused, in_process)
            return None
        assert isinstance(answer, Welcome)
        resumable = self._resumable(hello)
        if resumable is not None:
            peer = self._resume(resumable, route, hello, now)
        else:
            peer = self._join(route, hello, principal, now, in_process)
        resumed = resumable is not None
        self._welcome(peer, answer, resumed)
        return peer.identity, PeerJoined(hello, resumed)

    def _decode_hello(self, route: bytes, frames: list[bytes], in_process: bool) -> Hello | None:
        """Decode a Hello; None for another message. Raises ProtocolError for a malformed one.

        The sender of a malformed Hello is told what is wrong with it.
        """
        if len(frames[0]) != HEADER.size:
            raise ProtocolError(f"a header has {HEADER.size} bytes, not {len(frames[0])}")
        try:
            message = message_of(frames)
        except MalformedMessageError as error:
            if str(error.details.get("field", "")).startswith("Hello."):
                self._answer(route, Refused([str(error)]), in_process)
            raise
        self.received[type(message).__name__] += 1
        return message if isinstance(message, Hello) else None

    def _resumable(self, hello: Hello) -> LinkRecord | None:
        """The peer whose stream a new epoch continues: both sides must know the stream and each other's incarnation."""
        peer = self._peers.get(hello.identity)
        if peer is None or hello.incarnation != peer.hello.incarnation or hello.peer_incarnation != self._incarnation:
            return None
        return peer if peer.confirmed and hello.received <= peer.stream.sent else None

    def _resume(self, peer: LinkRecord, route: bytes, hello: Hello, now: float) -> LinkRecord:
        """Continue the stream of a known peer on a new route."""
        self._routes.pop(peer.route, None)
        self._cuts.append(peer.route)
        peer.route, peer.hello, peer.broken_at, peer.heard_at = route, hello, None, now
        peer.timeouts = self._timeouts(hello)
        peer.stream.acknowledge(hello.received)
        peer.stream.resumed()
        self._routes[route] = peer
        return peer

    def _join(self, route: bytes, hello: Hello, principal: Principal, now: float, in_process: bool) -> LinkRecord:
        """Begin a stream with a peer, in place of an earlier one with the same identity."""
        earlier = self._peers.get(hello.identity)
        if earlier is not None:
            self._forget(earlier)
            self._cuts.append(earlier.route)
        confirmed = hello.peer_incarnation != self._incarnation
        timeouts = self._timeouts(hello)
        peer = LinkRecord(hello, route, principal, timeouts, now, confirmed=confirmed, in_process=in_process)
        self._peers[hello.identity] = self._routes[route] = peer
        self._links[principal.key] += 1
        self._longest_heartbeat = min(self._longest_heartbeat, timeouts.silence / _HEARTBEATS_IN_SILENCE)
        self._heartbeats.append(peer)
        self._plan_tick()
        return peer

    def _welcome(self, peer: LinkRecord, answer: Welcome, resumed: bool) -> None:
        """Send Welcome, then the messages that the peer has not acknowledged."""
        hello = replace(peer.hello, session=answer.session or peer.hello.session)
        welcome = replace(
            answer,
            incarnation=self._incarnation,
            received=peer.stream.received,
            resumed=resumed,
            heartbeat_seconds=self.heartbeat_seconds,
            session_token=self._token(hello, peer.principal) if self._token is not None else b"",
        )
        self._write(peer, welcome)
        self._out += [(peer.route, frames) for frames in peer.stream.unacknowledged()]

    def _decode(self, peer: LinkRecord, frames: list[bytes]) -> Message:
        """Decode a message. A malformed numbered one ends the link, because its sender would wait for ever.

        The next tick reports the peer as lost.
        """
        try:
            return message_of(frames)
        except MalformedMessageError as error:
            if is_numbered(frames[0]):
                peer.fault = f"malformed message: {error}"
                self._write(peer, Refused([peer.fault]))
                self._break_off(peer, peer.fault)
            raise

    def _break_off(self, peer: LinkRecord, fault: str) -> None:
        """End the link of a peer that broke the protocol; further connections of its key must wait."""
        seconds = self._suspensions.suspend(peer.principal, peer.heard_at)
        waits = f"; new connections of the key {peer.principal.name} wait for {seconds:g} s" if seconds else ""
        self._end_link(peer, fault + waits)

    def _end_link(self, peer: LinkRecord, fault: str) -> None:
        """Receive nothing more of the peer; the next tick reports it as lost for this reason."""
        self._leave_route(peer)
        peer.stream.broken()
        peer.fault, peer.broken_at, peer.confirmed = fault, -math.inf, False
        self._watched[peer] = None

    def _ask_hello(self, route: bytes, in_process: bool) -> None:
        self._answer(route, NeedHello(), in_process)

    def _answer(self, route: bytes, message: Message, in_process: bool) -> None:
        """Write to a route without a peer, unless too many bytes are unread there."""
        frames = Stream(in_process=in_process).write(message)
        if self._count_unread(route, 0 if in_process else _UNNUMBERED_BYTES + sum(map(len, frames))):
            self._out.append((route, frames))

    def _count_unread(self, route: bytes, size: int) -> bool:
        """Count bytes that may be unread on a route without a peer; False if its connection is closed for that."""
        unread = self._unread.pop(route, 0) + size
        if unread > UNREAD_LIMIT:
            self._cuts.append(route)
            return False
        self._unread[route] = unread
        if len(self._unread) > _ROUTES_LIMIT:
            del self._unread[next(iter(self._unread))]
        return True

    def _write_unnumbered(self, peer: LinkRecord, message: Message) -> None:
        """Write a message that will not be acknowledged."""
        self._write(peer, message)
        peer.unnumbered += _UNNUMBERED_BYTES
        if peer.unread > UNREAD_LIMIT:
            self._watched[peer] = None

    def _write(self, peer: LinkRecord, message: Message) -> None:
        stream = peer.stream
        frames = stream.write(message)
        self.sent[type(message).__name__] += 1
        if peer.broken_at is None:
            self._out.append((peer.route, frames))
        if stream.kept_bytes > self.kept_limits.slow:
            self._watched[peer] = None
            if stream.backlog > self.kept_limits.most:
                self.tick_by = -math.inf

    def _leave_route(self, peer: LinkRecord) -> None:
        """Detach the peer from its route, where messages to it may be unread."""
        if self._routes.get(peer.route) is peer:
            del self._routes[peer.route]
            self._strays.forget(peer.route)
            self._count_unread(peer.route, peer.stream.kept_bytes + peer.unread)

    def _forget(self, peer: LinkRecord) -> None:
        self._leave_route(peer)
        if self._peers.get(peer.identity) is peer:
            del self._peers[peer.identity]
            self._links[peer.principal.key] -= 1
        self._watched.pop(peer, None)
        for owing in self._owing:
            owing.pop(peer, None)
