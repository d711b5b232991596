"""Links within a process: beside those from outside, over the same listener."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterator

import pytest

if sys.platform != "linux":
    pytest.skip("servers run on Linux", allow_module_level=True)

from scaler_io.links.events import LinkUp, PeerLost, UplinkEvent
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.links.uplink import Uplink
from scaler_io.transport.in_process import InProcessDialer, InProcessListener
from scaler_io.transport.zeromq import Dialer
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import Goodbye, Hello, Role, Welcome
from scaler_protocol.messages import Cancel

DEADLINE = 10.0


class Served:
    """A hub behind a listener, and everybody who dials it."""

    def __init__(self) -> None:
        self.listener = InProcessListener(Address("127.0.0.1", 0))
        self.hub = Hub(1, admit=lambda hello: Welcome(1), timeouts=lambda hello: PeerTimeouts(1, 60))
        self.heard: list[tuple[bytes, object]] = []
        self.dialers: dict[InProcessDialer | Dialer, list[UplinkEvent]] = {}

    def dial(self, name: bytes, *, inside: bool) -> InProcessDialer | Dialer:
        """One more who dials."""
        uplink = Uplink(
            Hello(Role.CLIENT, name * 16, 5, session=1), time.monotonic(), timeout_seconds=60, in_process=inside
        )
        dialer = InProcessDialer(self.listener, uplink) if inside else Dialer(self.listener.address, uplink)
        self.dialers[dialer] = []
        return dialer

    def turn(self) -> None:
        """Everybody takes in and writes out."""
        now = time.monotonic()
        for route, frames in self.listener.receive():
            got = self.hub.receive(route, frames, now)
            if got is not None:
                self.heard.append(got)
        for route, written in self.hub.outgoing():
            assert self.listener.send(route, written)
        for dialer, events in self.dialers.items():
            events += dialer.turn(now)
            events += dialer.flush(now)

    def until(self, done: Callable[[], bool]) -> None:
        """Turns, as often as there is something to do."""
        deadline = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < deadline
            self.turn()
            if not any(end.readable() for end in (self.listener, *self.dialers)):
                watched = [self.listener.fileno(), *(at for dialer in self.dialers for at in dialer.filenos())]
                select.select(watched, (), (), 0.01)

    def close(self) -> None:
        """Those who dial first."""
        for dialer in self.dialers:
            dialer.close()
        self.listener.close()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def test_both_kinds_of_links_reach_the_same_hub_and_only_one_is_written(served: Served) -> None:
    inside, outside = served.dial(b"i", inside=True), served.dial(b"o", inside=False)
    served.until(lambda: all(served.dialers.values()))
    assert [type(events[0]) for events in served.dialers.values()] == [LinkUp, LinkUp]
    said = Cancel((7,))
    for dialer in (inside, outside):
        dialer.uplink.send(said)
    served.until(lambda: sum(event == said for _, event in served.heard) == 2)
    handed = {peer: event for peer, event in served.heard if event == said}
    assert handed[b"i" * 16] is said and handed[b"o" * 16] is not said
    answer = Cancel((8,))
    for peer in handed:
        served.hub.send(peer, answer)
    served.until(lambda: all(answer in events for events in served.dialers.values()))
    assert served.dialers[inside][-1] is answer


def test_whoever_waits_is_called_when_the_first_of_some_messages_arrives(served: Served) -> None:
    told: list[str] = []
    served.listener.call_on_arrival(lambda: told.append("listener"))
    inside = served.dial(b"i", inside=True)
    inside.call_on_arrival(lambda: told.append("dialer"))
    served.until(lambda: bool(served.dialers[inside]))
    served.until(lambda: not served.listener.readable() and not inside.readable())
    assert told == ["listener", "dialer"], "Hello and Welcome"
    for number in range(100):
        inside.uplink.send(Cancel((number,)))
    inside.flush(time.monotonic())
    assert told[2:] == ["listener"] and served.listener.readable()
    assert len(served.listener.receive(60)) == 60
    assert served.listener.readable(), "asked after each turn"
    assert len(served.listener.receive(60)) == 40
    assert not served.listener.readable()
    inside.uplink.send(Cancel((100,)))
    inside.flush(time.monotonic())
    assert told[2:] == ["listener"] * 2 and len(served.listener.receive(60)) == 1


def test_acknowledged_messages_are_let_go_and_a_farewell_arrives(served: Served) -> None:
    inside = served.dial(b"i", inside=True)
    served.until(lambda: bool(served.dialers[inside]))
    for number in range(1000):
        inside.uplink.send(Cancel((number,)))
    served.until(lambda: sum(isinstance(event, Cancel) for _, event in served.heard) == 1000)
    served.until(lambda: len(inside.uplink._stream._kept) < 1000)
    inside.uplink.send(Goodbye("done"))
    inside.close()
    del served.dialers[inside]
    served.until(lambda: any(isinstance(event, PeerLost) for _, event in served.heard))
    assert not served.listener.connections
    assert not served.listener.send(b"\x02" * 16, [b""])
