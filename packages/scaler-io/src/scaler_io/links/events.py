"""Events: what a link reports to its core. Pure, no IO."""

from __future__ import annotations

from scaler_io.links.streams import Frames
from scaler_protocol.handshake import Hello, Welcome
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Message


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The peer sent Welcome; unless `resumed`, it knows nothing of earlier messages."""

    welcome: Welcome
    resumed: bool


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The connection broke; the link goes on trying to make a new one."""

    reason: str


@dataclass(frozen=True, slots=True)
class LinkLost:
    """There has been no connection on which the service said anything valid for longer than the timeout."""

    reason: str


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """The peer refused the connection; the link does not try again."""

    reasons: tuple[str, ...]
    in_use: bool = False

    def reason(self, address: object) -> str:
        """The reasons on one line behind the name of the service at this address, which is `it` in them."""
        return "; ".join(self.reasons).replace(f"the service at {address}", "it")


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """A peer sent Hello and is welcome; unless `resumed`, it is new or has lost its state."""

    hello: Hello
    resumed: bool


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A peer is gone for good; `farewell` if it sent Goodbye."""

    reason: str
    farewell: bool = False
    unwritten: tuple[Frames, ...] = ()
    """Messages, each behind its header, that no connection has taken: the peer cannot have received them."""
    objects_left: int = 0
    """As its Goodbye said."""


@dataclass(frozen=True, slots=True)
class SendFailed:
    """A message to a peer could not be encoded: the peer never receives it, and the link is unchanged."""

    message: Message
    reason: str


UplinkEvent = Message | LinkUp | LinkDown | LinkLost | LinkRefused
HubEvent = Message | PeerJoined | PeerLost | SendFailed
