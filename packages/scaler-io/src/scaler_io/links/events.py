"""What a link tells the core behind it. Pure, no IO."""

from __future__ import annotations

from dataclasses import dataclass

from scaler_protocol.handshake import Hello, Welcome
from scaler_protocol.messages import Message


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
    """A peer is gone for good; with `farewell` it has said so itself."""

    reason: str
    farewell: bool = False


@dataclass(frozen=True, slots=True)
class SendFailed:
    """A message to a peer could not be written: the peer will never have it, and the link is as it was."""

    message: Message
    reason: str


UplinkEvent = Message | LinkUp | LinkDown | LinkLost | LinkRefused
HubEvent = Message | PeerJoined | PeerLost | SendFailed
