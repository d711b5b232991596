"""The network in memory: that it fails as told, equally for equal seeds, and that links survive whatever it does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scaler_io.links.events import LinkUp, PeerJoined, PeerLost
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.links.uplink import Uplink
from scaler_io.service.server_loop import ServiceTurn
from scaler_io.simulation.network import LATENCY_SECONDS, MemoryDialer, MemoryListener, MemoryNetwork
from scaler_io.transport.endpoint import ListenError
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import Hello, Role, Welcome
from scaler_protocol.messages import Cancel
from support.examples import examples

if TYPE_CHECKING:
    from conftest import MemoryRig

ADDRESS = Address("service", 1)


# --- the network itself ---------------------------------------------------------------------------------------------


def test_a_message_takes_its_latency_and_keeps_its_order(memory_rig: MemoryRig) -> None:
    client = memory_rig.client()
    began = memory_rig.now
    client.say(1, 2)
    memory_rig.until(lambda: memory_rig.heard(client) == [1, 2])
    assert memory_rig.now - began == pytest.approx(LATENCY_SECONDS)


def test_a_stall_holds_and_then_delivers_in_order(memory_rig: MemoryRig) -> None:
    client = memory_rig.client()
    client.say(1)
    memory_rig.run(0)
    client.connection.stall(0.5, down=False)  # type: ignore[attr-defined]
    client.say(2)
    memory_rig.run(0.49)
    assert memory_rig.heard(client) == []
    memory_rig.run(0.02)
    assert memory_rig.heard(client) == [1, 2]


def test_a_cut_loses_the_last_and_delivers_the_rest(memory_rig: MemoryRig) -> None:
    client = memory_rig.client()
    client.say(1, 2, 3)
    memory_rig.run(0)
    client.connection.cut(up_lost=2, down_lost=0)  # type: ignore[attr-defined]
    memory_rig.run(LATENCY_SECONDS * 1.5)
    assert memory_rig.heard(client) == [1]
    memory_rig.run(1)
    assert memory_rig.heard(client) == [1, 2, 3]


def test_stale_messages_arrive_after_the_next_epoch_began(memory_rig: MemoryRig) -> None:
    client = memory_rig.client()
    client.say(1, 2, 3)
    memory_rig.run(0)
    old = client.connection
    old.stall(0.4, down=False)  # type: ignore[attr-defined]
    old.cut(up_lost=0)  # type: ignore[attr-defined]
    memory_rig.until(lambda: memory_rig.heard(client) == [1, 2, 3])
    refused = memory_rig.service.hub.refused_frames
    memory_rig.run(0.5)
    assert memory_rig.service.hub.refused_frames >= refused + 3
    assert memory_rig.heard(client) == [1, 2, 3] and client.ups == [False, True]


def test_a_proxy_hands_old_connections_to_the_next_incarnation(memory_rig: MemoryRig) -> None:
    rig = memory_rig
    client = rig.client()
    assert rig.service.shell is not None
    rig.service.shell.alive = False
    rig.service.listener.replace()  # type: ignore[union-attr]
    rig.service = rig.serve(2)
    client.say(1)
    rig.until(lambda: client.ups == [False, False])
    assert rig.service.hub.refused_frames == 1 and rig.heard(client) == []


def test_a_killed_process_is_noticed_a_vanished_one_is_not(memory_rig: MemoryRig) -> None:
    rig = memory_rig
    killed, vanished = rig.client(b"k" * 16), rig.client(b"v" * 16)
    assert killed.shell is not None and vanished.shell is not None
    killed.shell.kill()
    vanished.shell.vanish()
    rig.run(2)
    assert rig.service.core.losses(killed.identity) == ["its connection is gone"]
    assert rig.service.core.losses(vanished.identity) == ["silent for 1 s"]


def test_a_vanished_service_is_silent(memory_rig: MemoryRig) -> None:
    client = memory_rig.client(timeout=0.5)
    assert memory_rig.service.shell is not None
    memory_rig.service.shell.vanish()
    memory_rig.run(0.45)
    assert client.uplink.epoch == 1
    memory_rig.run(2)
    assert client.uplink.epoch > 1


def test_what_was_written_last_arrives(memory_rig: MemoryRig) -> None:
    client = memory_rig.client()
    memory_rig.service.core.outbox = [(client.identity, Cancel((9,)))]
    memory_rig.service.service.turn(memory_rig.now)
    memory_rig.service.service.close()
    memory_rig.run(0.01)
    assert client.numbers == [9]
    client.say(1)
    client.dialer.close()


def test_an_address_is_taken_once(memory_rig: MemoryRig) -> None:
    with pytest.raises(ListenError, match="already in use"):
        memory_rig.serve(2)


def test_a_shell_that_spins_is_told_so() -> None:
    network = MemoryNetwork()
    network.attach(lambda now: now)
    with pytest.raises(RuntimeError, match="each turn asked for another one at once"):
        network.run(1)


def _history(seed: int) -> list[Any]:
    """A client and a service through an hour of accidents."""
    network, said = MemoryNetwork(seed), count()
    events: list[Any] = []

    class Core:
        def handle(self, peer: bytes, event: Any, now: float) -> None:
            events.append((now, event))

        def settle(self, now: float) -> list[Any]:
            return []

        def due(self) -> float | None:
            return None

    listener = MemoryListener(network, ADDRESS)
    hub = Hub(1, admit=lambda hello: Welcome(1), timeouts=lambda hello: PeerTimeouts(1, 5))
    network.attach(ServiceTurn("T", listener, hub, Core(), lambda: None, network.clock).turn, listener)
    hello = Hello(Role.CLIENT, b"i" * 16, 5)
    dialer = MemoryDialer(network, ADDRESS, Uplink(hello, network.now, timeout_seconds=5))

    def turn(now: float) -> float:
        dialer.turn(now)
        dialer.uplink.send(Cancel((next(said),)))
        dialer.flush(now)
        return min(dialer.uplink.due(), now + network.random.random())

    network.attach(turn, dialer)
    for _ in range(40):
        network.run(network.random.random() * 20)
        dialer.connection.cut(listener_notices=network.random.random() < 0.5)
    return events


def test_equal_seeds_give_equal_histories() -> None:
    history = _history(1)
    assert len(history) > 200
    assert history == _history(1) != _history(2)


# --- links under every fault ----------------------------------------------------------------------------------------

Sent = dict[tuple[int, int], list[int]]
"""What a process said, by process and by the stream it was said in."""
SECONDS = st.sampled_from([0.0, 0.0001, 0.0002, 0.0003, 0.01, 0.06, 0.3, 1.2, 4.0])
LOST = st.none() | st.integers(0, 3)


class LinkMachine(RuleBasedStateMachine):
    """Two identities and a service, through cuts, stalls, half-open connections, deaths and rebirths.

    A stream is what lies between two `resumed=False`. In each, what arrived is a beginning of what was said in one
    stream of one process of the other side, and nothing arrives in two of them; when all has calmed down it is all.
    """

    rig: MemoryRig
    rig_class: Any

    @initialize()
    def begin(self) -> None:
        self.rig = self.rig_class()
        self.rig.service.timeouts = PeerTimeouts(0.5, 2.0)
        self.numbers = count(1)
        self.said_up: Sent = {}
        self.said_down: Sent = {}
        self.services = [self.rig.service]
        self.lives = [self.rig.client(bytes([65 + i]) * 16, up=False) for i in range(2)]
        self.everybody = list(self.lives)

    @rule(who=st.integers(0, 1), times=st.integers(1, 4))
    def client_says(self, who: int, times: int) -> None:
        client = self.lives[who]
        for _ in range(times):
            number = next(self.numbers)
            self.said_up.setdefault((id(client), client.ups.count(False)), []).append(number)
            client.say(number)

    @rule(who=st.integers(0, 1), times=st.integers(1, 4))
    def service_says(self, who: int, times: int) -> None:
        """At once, as a core would: what is said to a peer that is lost goes nowhere."""
        service, identity = self.rig.service, self.lives[who].identity
        for _ in range(times):
            number = next(self.numbers)
            if identity in service.hub._peers:
                stream = service.core.joins(identity).count(False)
                self.said_down.setdefault((id(service) ^ who, stream), []).append(number)
                service.hub.send(identity, Cancel((number,)))
        service.say(identity)

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.rig.run(seconds)

    @rule(who=st.integers(0, 1), up=LOST, down=LOST, dialer=st.booleans(), listener=st.booleans())
    def cut(self, who: int, up: int | None, down: int | None, dialer: bool, listener: bool) -> None:
        dialed = self.lives[who].dialer
        assert isinstance(dialed, MemoryDialer)
        if dialed.connections:
            dialed.connection.cut(up_lost=up, down_lost=down, dialer_notices=dialer, listener_notices=listener)

    @rule(who=st.integers(0, 1), seconds=SECONDS, up=st.booleans(), down=st.booleans())
    def stall(self, who: int, seconds: float, up: bool, down: bool) -> None:
        dialed = self.lives[who].dialer
        assert isinstance(dialed, MemoryDialer)
        if dialed.connections:
            dialed.connection.stall(seconds, up=up, down=down)

    @rule(who=st.integers(0, 1), vanish=st.booleans())
    def client_is_reborn(self, who: int, vanish: bool) -> None:
        old = self.lives[who]
        assert old.shell is not None
        old.shell.vanish() if vanish else old.shell.kill()
        born = self.rig.client(old.identity, incarnation=100 + len(self.everybody), up=False)
        self.lives[who] = born
        self.everybody.append(born)

    @rule(how=st.sampled_from(["kill", "vanish", "proxied"]))
    def service_is_reborn(self, how: str) -> None:
        shell = self.rig.service.shell
        assert shell is not None
        if how == "proxied":
            shell.alive = False
            self.rig.service.listener.replace()  # type: ignore[union-attr]
        else:
            getattr(shell, how)()
        self.rig.service = self.rig.serve(1 + len(self.services))
        self.rig.service.timeouts = PeerTimeouts(0.5, 2.0)
        self.services.append(self.rig.service)

    @rule(who=st.integers(0, 2), seconds=SECONDS)
    def process_is_stopped(self, who: int, seconds: float) -> None:
        shell = [*(client.shell for client in self.lives), self.rig.service.shell][who]
        assert shell is not None
        shell.stop(seconds)

    def _heard_up(self) -> Iterator[list[int]]:
        """What services heard, stream by stream."""
        for service in self.services:
            for who in (b"A" * 16, b"B" * 16):
                known, stream = False, list[int]()
                for peer, event in service.core.events:
                    if peer != who:
                        continue
                    if isinstance(event, PeerJoined):
                        assert known or not event.resumed, "a peer that is lost can not resume"
                        known = True
                        if not event.resumed:
                            yield stream
                            stream = []
                    elif isinstance(event, PeerLost):
                        assert known, "a peer is lost twice"
                        known = False
                    elif isinstance(event, Cancel):
                        assert known, "a peer speaks before it has joined"
                        stream += event.tasks
                yield stream

    def _heard_down(self) -> Iterator[list[int]]:
        for client in self.everybody:
            stream: list[int] = []
            for event in client.events:
                if isinstance(event, LinkUp) and not event.resumed:
                    yield stream
                    stream = []
                elif isinstance(event, Cancel):
                    stream += event.tasks
            yield stream

    @invariant()
    def every_stream_is_the_beginning_of_one(self) -> None:
        for heard, said in ((self._heard_up(), self.said_up), (self._heard_down(), self.said_down)):
            begun = {numbers[0]: numbers for numbers in said.values()}
            seen = set()
            for stream in filter(None, heard):
                assert stream[0] in begun, "a stream does not begin with its first message, or is heard twice"
                assert begun[stream[0]][: len(stream)] == stream
                assert stream[0] not in seen
                seen.add(stream[0])

    @invariant()
    def the_hub_asks_for_its_tick_in_time(self) -> None:
        if hasattr(self, "lives"):
            hub = self.rig.service.hub
            due = hub.due()
            assert due is None or hub.tick_by <= due

    def teardown(self) -> None:
        """When all is well again, everything that was said in living streams has arrived."""
        if not hasattr(self, "lives"):
            return
        for shell in [*(client.shell for client in self.lives), self.rig.service.shell]:
            assert shell is not None
            shell.resume()
        self.rig.run(12)
        for client in self.lives:
            assert client.uplink.due() < math.inf and client.uplink.state.value == "up"
        self.every_stream_is_the_beginning_of_one()
        ups, downs = list(self._heard_up()), list(self._heard_down())
        for who, client in enumerate(self.lives):
            said = self.said_up.get((id(client), client.ups.count(False)), [])
            assert said in ups or not said
            stream = self.rig.service.core.joins(client.identity).count(False)
            said = self.said_down.get((id(self.rig.service) ^ who, stream), [])
            assert said in downs or not said
            assert client.uplink.kept_bytes == 0


@pytest.fixture
def _machine(memory_rig: MemoryRig) -> None:
    LinkMachine.rig_class = type(memory_rig)


@pytest.mark.usefixtures("_machine")
class TestLinkMachine(LinkMachine.TestCase):  # type: ignore[misc, valid-type]
    """Runs it."""

    settings = settings(
        max_examples=examples(30), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
