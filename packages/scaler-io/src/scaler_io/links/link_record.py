"""LinkRecord: what a hub knows of the link to one peer, and when that peer is lost. Pure, no IO."""

from __future__ import annotations

import math
from collections import deque

from scaler_io.links.admission import role_name
from scaler_io.links.streams import STUCK_SECONDS, Stream
from scaler_io.security.keyring import Principal
from scaler_protocol.handshake import Hello
from scaler_protocol.lazy_dataclass import dataclass

UNREAD_LIMIT = 1024 * 1024
"""Bytes of unnumbered messages that a peer may leave unread before its connection is closed.

A peer that reads confirms this about once per heartbeat interval, and needs only a few such messages meanwhile.
"""
_HEARTBEATS = 16


@dataclass(frozen=True, slots=True)
class PeerTimeouts:
    """Seconds after which a peer is lost: `grace` with a broken route, `silence` without a message."""

    grace: float
    silence: float


@dataclass(frozen=True, slots=True)
class KeptLimits:
    """Bytes that a peer may leave unacknowledged, without the largest message.

    Beyond `slow` it must acknowledge some within STUCK_SECONDS, beyond `most` it is lost at once.
    """

    slow: int
    most: int


@dataclass(frozen=True, slots=True)
class LinkFigures:
    """One peer's link: seconds since its last message, whether its route is broken, bytes that wait for the peer.

    `kept` are bytes that it has not acknowledged, `unread` those of unnumbered messages that it may not have read.
    """

    name: str
    host: str
    role: str
    silent: float
    broken: bool
    kept: int
    unread: int
    round_trip: float


class LinkRecord:
    """One peer's link, as the hub has it."""

    __slots__ = (
        "broken_at",
        "confirmed",
        "fault",
        "fault_bytes",
        "faults",
        "heard_at",
        "heartbeat_at",
        "heartbeats",
        "hello",
        "identity",
        "principal",
        "read",
        "round_trip",
        "route",
        "stream",
        "stuck",
        "timeouts",
        "unnumbered",
    )  # fmt: skip

    def __init__(
        self,
        hello: Hello,
        route: bytes,
        principal: Principal,
        timeouts: PeerTimeouts,
        now: float,
        *,
        confirmed: bool,
        in_process: bool,
    ) -> None:
        self.identity, self.hello, self.route, self.timeouts = hello.identity, hello, route, timeouts
        self.principal = principal
        """The holder of the key that the peer has proved; as long as the peer lives, its identity is bound to it."""
        self.stream = Stream(in_process=in_process)
        self.heard_at = self.heartbeat_at = now
        self.heartbeats: deque[tuple[int, int]] = deque(maxlen=_HEARTBEATS)
        """The last heartbeats that the peer has not returned: time in ns, and `unnumbered` before it was written.

        A peer that returns one has read what came before it, for nobody can guess our clock.
        """
        self.broken_at: float | None = None
        self.confirmed = confirmed
        """Whether the peer knows this stream.

        A peer with an earlier stream to this hub may have missed the Welcome that began the new one, until it sends a
        message in the new one.
        """
        self.round_trip = 0.0
        self.stuck: tuple[int, float] | None = None
        """While too many bytes wait for the peer: the oldest unacknowledged message, and since when it is that."""
        self.unnumbered = self.read = 0
        """Bytes of unnumbered messages that were written, and of those that the peer has read."""
        self.faults = self.fault_bytes = 0
        """Messages that were not allowed since the peer last returned a heartbeat, and their bytes."""
        self.fault = ""
        """Why the link was ended: a malformed message."""

    @property
    def unread(self) -> int:
        """Bytes of unnumbered messages that the peer may not have read."""
        return self.unnumbered - self.read

    def returned(self, sent: int, now: float) -> None:
        """The peer has returned the heartbeat of this time, in ns; does nothing if it has already, or never got it."""
        if all(time != sent for time, _ in self.heartbeats):
            return
        while (heartbeat := self.heartbeats.popleft())[0] != sent:
            pass
        self.read, self.round_trip = heartbeat[1], now - sent / 1e9
        self.faults = self.fault_bytes = 0

    def is_behind(self, limits: KeptLimits, now: float) -> bool:
        """Whether too many bytes wait for the peer; `stuck` records since when it has acknowledged nothing."""
        if self.stream.backlog <= limits.slow:
            self.stuck = None
        elif self.stuck is None or self.stuck[0] != self.stream.oldest:
            self.stuck = self.stream.oldest, now
        return self.stuck is not None

    def loss(self, limits: KeptLimits, now: float) -> str:
        """Why the peer is lost; empty if it is not."""
        if self.broken_at is not None and now >= self.broken_at + self.timeouts.grace:
            return self.fault or "its connection is gone"
        if now >= self.heard_at + self.timeouts.silence:
            return f"silent for {self.timeouts.silence:g} s"
        if self._is_too_slow(limits, now):
            return f"too slow: {self.stream.kept_bytes:,} bytes wait for it"
        if self.unread > UNREAD_LIMIT:
            return "it does not read its messages"
        return ""

    def _is_too_slow(self, limits: KeptLimits, now: float) -> bool:
        if not self.is_behind(limits, now) or self.stuck is None:
            return False
        return self.stream.backlog > limits.most or now >= self.stuck[1] + STUCK_SECONDS

    def loss_due(self, limits: KeptLimits) -> float:
        """When a peer that every tick examines will be lost, unless it is heard of; infinity if it need not be.

        A silent peer is noticed with its next heartbeat.
        """
        if self.stream.backlog > limits.most or self.unread > UNREAD_LIMIT:
            return -math.inf
        if self.broken_at is not None:
            return self.broken_at + self.timeouts.grace
        return self.stuck[1] + STUCK_SECONDS if self.stuck is not None else math.inf

    def exclude(self, seconds: float) -> None:
        """Do not count so much time against the peer."""
        self.heard_at += seconds
        if self.broken_at is not None:
            self.broken_at += seconds
        if self.stuck is not None:
            self.stuck = self.stuck[0], self.stuck[1] + seconds

    def figures(self, now: float) -> LinkFigures:
        """The link as operators are shown it."""
        return LinkFigures(
            name=self.hello.name or self.identity.hex(),
            host=self.hello.host,
            role=role_name(self.hello.role),
            silent=now - self.heard_at,
            broken=self.broken_at is not None,
            kept=self.stream.kept_bytes,
            unread=self.unread,
            round_trip=self.round_trip,
        )
