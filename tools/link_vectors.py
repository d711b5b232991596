"""Write tests/conformance/links.json: how the connecting side of a link behaves, for links in any language.

`make api` runs it. A scenario is a conversation with a service, step by step; what the peer says in it is recorded from
`scaler_io.links.uplink`, and other implementations are held against it. Steps:

- {"peer": type, "sequence", "acknowledged", "fields"}: the peer sends this next. Of Hello and Heartbeat the fields are
  given that a link decides on.
- {"service": type, "frame"}: the service sends this frame.
- {"program": type, "fields", "frame"}: the program that uses the link sends this message, here as sequence 0.
- {"delivered": type}: the program is given this message of the service, and has not been given another one before.
- {"connection": "lost"}: the connection breaks; the peer makes another one.
- {"refused": true}: the program is told that the service refuses this peer for good; no connection follows.

The peer may send Acknowledge earlier than the scenario says, and Heartbeat (not an echo) at any time.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from scaler_io.links.events import LinkDown, LinkLost, LinkRefused, LinkUp, UplinkEvent
from scaler_io.links.streams import ACK_SECONDS, HEADER, join, message_of
from scaler_io.links.uplink import LAST_RETRY_SECONDS, Uplink
from scaler_protocol.codec import encode
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Acknowledge, Heartbeat, Hello, NeedHello, Refused, Role, Welcome
from scaler_protocol.messages import Cancel, Message, NeedTasks, Shutdown

ROOT = Path(__file__).resolve().parent.parent
VECTORS = ROOT / "tests" / "conformance" / "links.json"
SHOWN = {"Hello": ("epoch", "peerIncarnation", "received"), "Heartbeat": ("sent", "echo")}
"""The fields of a peer's message that its link decides on; of other messages all."""
SERVICE, ANOTHER = 0x5CA1E, 0x5CA1F
"""Incarnations of services."""

fields = runpy.run_path(str(ROOT / "tools" / "conformance.py"))["fields"]


class Conversation:
    """A link that talks with a service, and the steps so far."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self._now = 0.0
        hello = Hello(Role.CLIENT, bytes(range(16)), 7, session=3)
        self._uplink = Uplink(hello, self._now, timeout_seconds=60.0)
        self._connect()

    def welcome(self, *, resumed: bool = False, received: int = 0, incarnation: int = SERVICE) -> None:
        """The service accepts the peer."""
        self.service(Welcome(incarnation, received, resumed))

    def service(self, message: Message, sequence: int = 0, acknowledged: int = 0) -> None:
        """The service sends a message."""
        self._receive(type(message).__name__, [HEADER.pack(sequence, acknowledged), *map(bytes, encode(message))])

    def malformed(self) -> None:
        """The service sends a frame whose columns are no message."""
        self._receive("malformed", [HEADER.pack(0, 0), b"\xff" * 16])

    def program(self, message: Message) -> None:
        """The program sends a message."""
        frame = join([HEADER.pack(0, 0), *encode(message)])
        self.steps.append({"program": type(message).__name__, "fields": fields(message), "frame": bytes(frame).hex()})
        self._uplink.send(message)
        self._record()

    def wait(self) -> None:
        """No message carries an acknowledgement for as long as that may wait."""
        self._now += ACK_SECONDS
        self._notice(self._uplink.tick(self._now))

    def lose(self) -> None:
        """The connection breaks."""
        self.steps.append({"connection": "lost"})
        self._notice(self._uplink.broken("the vectors say so", self._now))

    def _receive(self, name: str, frames: list[bytes]) -> None:
        self.steps.append({"service": name, "frame": bytes(join(frames)).hex()})
        try:
            events = self._uplink.receive(frames, self._now)
        except ProtocolError as error:
            events = self._uplink.broken(str(error), self._now)
        self._notice(events)

    def _notice(self, events: list[UplinkEvent]) -> None:
        self._record()
        for event in events:
            if isinstance(event, LinkRefused):
                self.steps.append({"refused": True})
            elif isinstance(event, LinkDown):
                self._now += LAST_RETRY_SECONDS
                self._connect()
            elif not isinstance(event, LinkUp | LinkLost):
                self.steps.append({"delivered": type(event).__name__})

    def _connect(self) -> None:
        assert self._uplink.wants_connection(self._now)
        self._uplink.opened(self._now)
        self._record()

    def _record(self) -> None:
        """Note what the peer has to say."""
        for frames in self._uplink.outgoing():
            sequence, acknowledged = HEADER.unpack(frames[0])
            message = message_of(frames)
            name, said = type(message).__name__, fields(message)
            said = {field: said[field] for field in SHOWN.get(name, said)}
            self.steps.append(
                {"peer": name, "sequence": str(sequence), "acknowledged": str(acknowledged), "fields": said}
            )


def greets(talk: Conversation) -> None:
    """nothing follows Hello before Welcome, and numbers begin at 1"""
    talk.program(Cancel([1]))
    talk.welcome()
    for task in (1, 2, 3):
        talk.program(Cancel([task]))


def acknowledges_with_others(talk: Conversation) -> None:
    """what the peer sends acknowledges what it has received"""
    talk.welcome()
    talk.service(NeedTasks([1]), 1)
    talk.service(NeedTasks([2]), 2)
    talk.program(Cancel([1]))
    talk.service(Heartbeat(5), acknowledged=1)


def acknowledges_alone(talk: Conversation) -> None:
    """if no other message carries an acknowledgement the peer sends Acknowledge, which has no number"""
    talk.service(Welcome(SERVICE, heartbeat_seconds=10.0))
    talk.service(NeedTasks([1]), 1)
    talk.wait()
    talk.program(Cancel([1]))


def drops_duplicates(talk: Conversation) -> None:
    """a duplicate is not delivered, but what it acknowledges counts"""
    talk.welcome()
    talk.program(Cancel([1]))
    talk.service(NeedTasks([1]), 1)
    talk.service(NeedTasks([1]), 1, 1)
    talk.service(NeedTasks([2]), 2)
    talk.lose()
    talk.welcome(resumed=True)
    talk.program(Cancel([2]))


def resumes(talk: Conversation) -> None:
    """after a lost connection the peer sends again what the service has not received, with the same numbers"""
    talk.welcome()
    for task in (1, 2, 3):
        talk.program(Cancel([task]))
    talk.service(NeedTasks([1]), 1, 1)
    talk.lose()
    talk.welcome(resumed=True, received=2)
    talk.program(Cancel([4]))
    talk.service(NeedTasks([2]), 2, 4)


def keeps_what_is_sent_meanwhile(talk: Conversation) -> None:
    """what the program sends while there is no connection follows what was sent before, once the stream is resumed"""
    talk.welcome()
    talk.program(Cancel([1]))
    talk.lose()
    talk.program(Cancel([2]))
    talk.program(Cancel([3]))
    talk.welcome(resumed=True)
    talk.program(Cancel([4]))


def resumes_twice(talk: Conversation) -> None:
    """a connection that breaks before Welcome changes nothing"""
    talk.welcome()
    talk.program(Cancel([1]))
    talk.lose()
    talk.lose()
    talk.welcome(resumed=True)
    talk.lose()
    talk.welcome(resumed=True, received=1)
    talk.program(Cancel([2]))


def begins_anew(talk: Conversation) -> None:
    """without `resumed` nothing of the old stream is sent again, and both sides count from 1"""
    talk.welcome()
    talk.program(Cancel([1]))
    talk.service(NeedTasks([1]), 1)
    talk.lose()
    talk.welcome(incarnation=ANOTHER)
    talk.program(Cancel([2]))
    talk.service(NeedTasks([2]), 1, 1)
    talk.lose()


def mistrusts_another_service(talk: Conversation) -> None:
    """another incarnation cannot resume the stream, whatever it says"""
    talk.welcome()
    talk.program(Cancel([1]))
    talk.lose()
    talk.welcome(resumed=True, incarnation=ANOTHER)
    talk.program(Cancel([2]))


def notices_gaps(talk: Conversation) -> None:
    """a missing message ends the connection, and the next one asks for it"""
    talk.welcome()
    talk.service(NeedTasks([1]), 1)
    talk.service(NeedTasks([3]), 3)
    talk.welcome(resumed=True)
    talk.service(NeedTasks([2]), 2)
    talk.service(NeedTasks([3]), 3)


def notices_false_acknowledgements(talk: Conversation) -> None:
    """the acknowledgement of what was not sent ends the stream: the next Hello names no service"""
    talk.welcome()
    talk.program(Cancel([1]))
    talk.service(NeedTasks([1]), 1, 2)
    talk.welcome()
    talk.program(Cancel([2]))


def returns_heartbeats(talk: Conversation) -> None:
    """a heartbeat is returned, an echo is not"""
    talk.welcome()
    talk.service(Heartbeat(123456789, seconds=5.0))
    talk.service(Heartbeat(1, echo=True))
    talk.service(Heartbeat(987654321))


def greets_again(talk: Conversation) -> None:
    """after NeedHello the peer makes a new connection, which resumes the stream"""
    talk.welcome()
    talk.program(Cancel([1]))
    talk.service(NeedHello())
    talk.welcome(resumed=True)


def leaves_malformed_messages(talk: Conversation) -> None:
    """a malformed message ends the connection; so does one without a number that must have one"""
    talk.welcome()
    talk.malformed()
    talk.welcome(resumed=True)
    talk.service(NeedTasks([1]))
    talk.welcome(resumed=True)
    talk.service(NeedTasks([1]), 1)


def acknowledges_what_it_does_not_expect(talk: Conversation) -> None:
    """a message that the program does not expect is received all the same"""
    talk.welcome()
    talk.service(Shutdown(), 1)
    talk.service(Acknowledge())
    talk.program(Cancel([1]))


def is_refused(talk: Conversation) -> None:
    """Refused ends the link"""
    talk.service(Refused(["another version"]))


SCENARIOS = (
    greets,
    acknowledges_with_others,
    acknowledges_alone,
    drops_duplicates,
    resumes,
    keeps_what_is_sent_meanwhile,
    resumes_twice,
    begins_anew,
    mistrusts_another_service,
    notices_gaps,
    notices_false_acknowledgements,
    returns_heartbeats,
    greets_again,
    leaves_malformed_messages,
    acknowledges_what_it_does_not_expect,
    is_refused,
)


def listed(scenarios: Iterable[Callable[[Any], None]], begin: Callable[[], Any]) -> str:
    """What is said in these scenarios, each with a conversation of its own, as JSON."""
    found = []
    for scenario in scenarios:
        talk = begin()
        scenario(talk)
        steps = ",\n  ".join(json.dumps(step, ensure_ascii=False) for step in talk.steps)
        found.append(f'{{"name": {json.dumps(scenario.__doc__)}, "steps": [\n  {steps}\n]}}')
    return "[\n" + ",\n".join(found) + "\n]"


def text() -> str:
    """The file."""
    return f'{{"links": {listed(SCENARIOS, Conversation)}}}\n'


if __name__ == "__main__":
    VECTORS.write_text(text(), "utf-8")
