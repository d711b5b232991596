"""Write tests/conformance/services.json: how the accepting side of a link behaves, for services in any language.

`make api` runs it. A scenario is a conversation of peers with a service whose incarnation is the one in the file, step
by step; what the service says in it is recorded from `scaler_io.links.hub`. Steps:

- {"peer": type, "connection": number, "frame"}: a peer sends this frame, over another connection if the
  number is new.
- {"service": type, "connection", "sequence", "acknowledged", "fields"}: the service sends this next. Of Welcome and
  Heartbeat the fields are given that its link decides on, of Refused none.
- {"program": type, "fields", "frame"}: the service's program sends this message to the peer, here as sequence 0.
- {"joined": resumed}, {"lost": true}: the program is told that the peer has a connection, or is lost.
- {"delivered": type}: the program is given this message of the peer, and has not been given another one before.
- {"broken": number}: nothing can be written to this connection any more.

The service may send Acknowledge earlier than the scenario says, and Heartbeat (not an echo) at any time.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from scaler_io.links.admission import admit
from scaler_io.links.events import PeerJoined, PeerLost
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.links.streams import ACK_SECONDS, HEADER, join, message_of
from scaler_protocol.codec import encode
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Acknowledge, Goodbye, Heartbeat, Hello, Role, ServiceKind, Welcome
from scaler_protocol.messages import Cancel, Message, NeedTasks

ROOT = Path(__file__).resolve().parent.parent
VECTORS = ROOT / "tests" / "conformance" / "services.json"
SHOWN = {"Welcome": ("incarnation", "received", "resumed"), "Heartbeat": ("sent", "echo"), "Refused": ()}
SERVICE, ANOTHER = 0x5CA1E, 0x5CA1F
"""Incarnations of services."""
PEER = bytes(range(16))

fields = runpy.run_path(str(ROOT / "tools" / "conformance.py"))["fields"]
listed = runpy.run_path(str(ROOT / "tools" / "link_vectors.py"))["listed"]


class Conversation:
    """A service that talks with peers, and the steps so far."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self._now = 0.0
        welcome = Welcome(SERVICE)
        self._hub = Hub(
            SERVICE,
            admit=lambda hello: admit(hello, welcome, service=ServiceKind.SCHEDULER, roles=[Role.CLIENT], refusals=()),
            timeouts=lambda hello: PeerTimeouts(60.0, 60.0),
            heartbeat_seconds=3600.0,
        )

    def hello(self, connection: int, epoch: int = 1, incarnation: int = 7, **others: Any) -> None:
        """The peer greets over a connection, with the next epoch if it is another one."""
        self.peer(connection, Hello(Role.CLIENT, PEER, incarnation, epoch=epoch, session=3, **others))

    def peer(self, connection: int, message: Message, sequence: int = 0, acknowledged: int = 0) -> None:
        """The peer sends a message."""
        frames = [HEADER.pack(sequence, acknowledged), *map(bytes, encode(message))]
        self._receive(connection, type(message).__name__, frames)

    def malformed(self, connection: int, sequence: int) -> None:
        """The peer sends a frame whose columns are no message."""
        self._receive(connection, "malformed", [HEADER.pack(sequence, 0), b"\xff" * 16])

    def program(self, message: Message) -> None:
        """The program sends a message to the peer."""
        frame = join([HEADER.pack(0, 0), *encode(message)])
        self.steps.append({"program": type(message).__name__, "fields": fields(message), "frame": bytes(frame).hex()})
        self._hub.send(PEER, message)
        self._record()

    def wait(self) -> None:
        """No message carries an acknowledgement for as long as that may wait."""
        self._now += ACK_SECONDS
        self._tick()

    def breaks(self, connection: int) -> None:
        """Nothing can be written to a connection any more."""
        self.steps.append({"broken": connection})
        self._hub.unreachable(_route(connection), self._now)

    def _receive(self, connection: int, name: str, frames: list[bytes]) -> None:
        self.steps.append({"peer": name, "connection": connection, "frame": bytes(join(frames)).hex()})
        try:
            event = self._hub.receive(_route(connection), frames, self._now)
        except ProtocolError:
            event = None
        self._record()
        if event is not None:
            self._tell(event[1])
        self._tick()

    def _tick(self) -> None:
        for _, event in self._hub.tick(self._now):
            self._tell(event)
        self._record()

    def _tell(self, event: object) -> None:
        if isinstance(event, PeerJoined):
            self.steps.append({"joined": event.resumed})
        elif isinstance(event, PeerLost):
            self.steps.append({"lost": True})
        else:
            self.steps.append({"delivered": type(event).__name__})

    def _record(self) -> None:
        """Note what the service has to say."""
        for route, frames in self._hub.outgoing():
            sequence, acknowledged = HEADER.unpack(frames[0])
            message = message_of(frames)
            name, said = type(message).__name__, fields(message)
            said = {field: said[field] for field in SHOWN.get(name, said)}
            step = {"service": name, "connection": route[0], "sequence": str(sequence)}
            self.steps.append({**step, "acknowledged": str(acknowledged), "fields": said})


def _route(connection: int) -> bytes:
    return bytes([connection]) * 20


def welcomes(talk: Conversation) -> None:
    """Welcome answers Hello, and numbers begin at 1"""
    talk.hello(1)
    talk.program(NeedTasks([1]))
    talk.program(NeedTasks([2]))
    talk.peer(1, Cancel([1]), 1, 2)


def acknowledges(talk: Conversation) -> None:
    """the next message acknowledges, or after 50 ms Acknowledge does, which has no number"""
    talk.hello(1)
    talk.peer(1, Cancel([1]), 1)
    talk.program(NeedTasks([1]))
    talk.peer(1, Cancel([2]), 2)
    talk.wait()
    talk.program(NeedTasks([2]))


def drops_duplicates(talk: Conversation) -> None:
    """a duplicate is not delivered, but what it acknowledges counts"""
    talk.hello(1)
    talk.program(NeedTasks([1]))
    talk.peer(1, Cancel([1]), 1)
    talk.peer(1, Cancel([1]), 1, 1)
    talk.breaks(1)
    talk.hello(2, epoch=2, peer_incarnation=SERVICE, received=1)


def resumes(talk: Conversation) -> None:
    """a Hello of the same life resumes the stream: what the peer has not received is sent again, as it was"""
    talk.hello(1)
    for task in (1, 2, 3):
        talk.program(NeedTasks([task]))
    talk.peer(1, Cancel([1]), 1, 1)
    talk.breaks(1)
    talk.program(NeedTasks([4]))
    talk.hello(2, epoch=2, peer_incarnation=SERVICE, received=2)
    talk.peer(2, Cancel([2]), 2, 4)


def asks_after_gaps(talk: Conversation) -> None:
    """a missing message is answered with NeedHello, and the next epoch brings it"""
    talk.hello(1)
    talk.peer(1, Cancel([2]), 2)
    talk.hello(2, epoch=2, peer_incarnation=SERVICE)
    talk.peer(2, Cancel([1]), 1)
    talk.peer(2, Cancel([2]), 2)


def notices_false_acknowledgements(talk: Conversation) -> None:
    """the acknowledgement of what was not sent ends the stream"""
    talk.hello(1)
    talk.peer(1, Cancel([1]), 1, 5)
    talk.hello(2, epoch=2, peer_incarnation=SERVICE)
    talk.program(NeedTasks([1]))


def ignores_late_hellos(talk: Conversation) -> None:
    """a Hello whose epoch is not above the last one is not answered"""
    talk.hello(1, epoch=2)
    talk.hello(2, epoch=1)
    talk.hello(3, epoch=2)
    talk.program(NeedTasks([1]))


def begins_anew(talk: Conversation) -> None:
    """another life of the peer, and one that names another service, begins a new stream"""
    talk.hello(1)
    talk.program(NeedTasks([1]))
    talk.peer(1, Cancel([1]), 1)
    talk.hello(2, epoch=1, incarnation=8, peer_incarnation=SERVICE)
    talk.program(NeedTasks([2]))
    talk.peer(2, Cancel([2]), 1)
    talk.hello(3, epoch=2, incarnation=8, peer_incarnation=ANOTHER)
    talk.program(NeedTasks([3]))


def welcomes_again(talk: Conversation) -> None:
    """a new stream in which nothing was received begins anew with the next Hello, because Welcome may have been lost"""
    talk.hello(1, epoch=5, peer_incarnation=SERVICE, received=9)
    talk.program(NeedTasks([1]))
    talk.hello(2, epoch=6, peer_incarnation=SERVICE, received=9)
    talk.program(NeedTasks([2]))


def asks_strangers(talk: Conversation) -> None:
    """a message by an unknown route is answered with NeedHello"""
    talk.peer(1, Cancel([1]), 1)
    talk.hello(1)


def returns_heartbeats(talk: Conversation) -> None:
    """a heartbeat is returned, an echo is not"""
    talk.hello(1)
    talk.peer(1, Heartbeat(123456789))
    talk.peer(1, Heartbeat(1, echo=True))
    talk.peer(1, Acknowledge())


def refuses_malformed_messages(talk: Conversation) -> None:
    """a malformed message is dropped; if it is numbered, it is refused, and the peer is lost"""
    talk.hello(1)
    talk.malformed(1, 0)
    talk.peer(1, Cancel([1]), 1)
    talk.malformed(1, 2)


def drops_unnumbered_messages(talk: Conversation) -> None:
    """a message without a number that must have one is dropped"""
    talk.hello(1)
    talk.peer(1, Cancel([1]))
    talk.peer(1, Cancel([2]), 1)


def forgets_who_says_goodbye(talk: Conversation) -> None:
    """after Goodbye the peer is lost, and what it sends is answered with NeedHello"""
    talk.hello(1)
    talk.peer(1, Goodbye(), 1)
    talk.peer(1, Cancel([1]), 2)


def refuses(talk: Conversation) -> None:
    """a peer of another version, or without a session, is refused"""
    talk.hello(1, protocol=1)
    talk.peer(2, Hello(Role.CLIENT, PEER, 7, epoch=1))
    talk.hello(3)


SCENARIOS = (
    welcomes,
    acknowledges,
    drops_duplicates,
    resumes,
    asks_after_gaps,
    notices_false_acknowledgements,
    ignores_late_hellos,
    begins_anew,
    welcomes_again,
    asks_strangers,
    returns_heartbeats,
    refuses_malformed_messages,
    drops_unnumbered_messages,
    forgets_who_says_goodbye,
    refuses,
)


def text() -> str:
    """The file."""
    return f'{{"incarnation": "{SERVICE}", "services": {listed(SCENARIOS, Conversation)}}}\n'


if __name__ == "__main__":
    VECTORS.write_text(text(), "utf-8")
