"""ServerLoop on real loops: nothing is overlooked, nobody starves, timers keep coming."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest
import zmq

from scaler_io.links.effects import Effect, Log, Send, Stop
from scaler_io.links.events import HubEvent, PeerJoined, SendFailed
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.links.streams import HEADER, Frames, cut, join
from scaler_io.service.event_loops import run
from scaler_io.service.server_loop import ServerLoop, ServiceTurn
from scaler_io.simulation.network import MemoryListener, MemoryNetwork
from scaler_io.transport.endpoint import TURN_MESSAGES
from scaler_io.transport.zeromq import Listener
from scaler_protocol.addresses import Address
from scaler_protocol.coalescing import told_load
from scaler_protocol.codec import decode, encode
from scaler_protocol.handshake import Acknowledge, Heartbeat, Hello, Role, Welcome
from scaler_protocol.messages import Cancel, Message, Shutdown

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE = 20.0
LOOPBACK = Address("127.0.0.1", 0)


class SlowCore:
    """A core that takes its time, echoes what it is told, and asks to be woken."""

    def __init__(self, settle_seconds: float = 0.0) -> None:
        self.numbers: list[int] = []
        self.turns: list[int] = []
        self.wakes = 0
        self.wake_at: float | None = None
        self.effects: list[Effect] = []
        self._seconds = settle_seconds
        self._in_turn = 0

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        self._in_turn += 1
        if isinstance(event, Cancel):
            self.numbers += event.tasks
            self.effects.append(Send(peer, event))

    def settle(self, now: float) -> list[Effect]:
        until = time.perf_counter() + self._seconds
        while self._seconds and self._in_turn and time.perf_counter() < until:
            pass
        if self._in_turn:
            self.turns.append(self._in_turn)
        self._in_turn = 0
        if self.wake_at is not None and now >= self.wake_at:
            self.wakes += 1
            self.wake_at = now + 0.01
        said, self.effects = self.effects, []
        return said

    def due(self) -> float | None:
        return self.wake_at


class PlainPeer:
    """A DEALER in a thread of the test, without our Dialer."""

    def __init__(self, address: Address, identity: bytes) -> None:
        self._context = zmq.Context[zmq.Socket[bytes]]()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(str(address))
        self._sequence = 0
        self.identity = identity
        self.beats = 0
        self.echoes: list[int] = []

    def say(self, message: Message, *, numbered: bool = True) -> None:
        self._sequence += numbered
        self.socket.send(join([HEADER.pack(self._sequence * numbered, 0), *encode(message)]))

    def greet(self) -> None:
        self.say(Hello(Role.CLIENT, self.identity, 1, epoch=1, session=1), numbered=False)
        assert isinstance(self.next(), Welcome)

    def next(self, seconds: float = DEADLINE) -> Message:
        """The next message; raises TimeoutError."""
        if not self.socket.poll(int(seconds * 1000)):
            raise TimeoutError
        message = decode(cut(self.socket.recv())[1:])
        self.beats += isinstance(message, Heartbeat)
        if isinstance(message, Cancel):
            self.echoes += message.tasks
        return message

    def listen(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < deadline
            with contextlib.suppress(TimeoutError):
                self.next(0.1)

    def close(self) -> None:
        self._context.destroy(linger=0)


@contextlib.asynccontextmanager
async def serving(
    core: SlowCore, address: Address = LOOPBACK, heartbeat: float = 1.0
) -> AsyncIterator[tuple[ServerLoop, Address, asyncio.Event]]:
    listener = Listener(address)
    hub = Hub(
        1, admit=lambda hello: Welcome(1), timeouts=lambda hello: PeerTimeouts(5, 60), heartbeat_seconds=heartbeat
    )
    stopped = asyncio.Event()
    reception = ServerLoop("Test", listener, hub, core, stopped.set)
    try:
        yield reception, listener.address, stopped
    finally:
        reception.close()


@pytest.fixture(params=["builtin", "uvloop"])
def loop_kind(request: pytest.FixtureRequest) -> str:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return str(request.param)


@pytest.fixture
def peers() -> Iterator[Callable[[Address], PlainPeer]]:
    made: list[PlainPeer] = []

    def make(address: Address) -> PlainPeer:
        made.append(PlainPeer(address, bytes([len(made) + 1]) * 16))
        return made[-1]

    yield make
    for peer in made:
        peer.close()


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_no_message_is_overlooked(
    loop_kind: str, transport: str, tmp_path: Path, peers: Callable[[Address], PlainPeer]
) -> None:
    """The next message comes while the core is at work, and the descriptor's edge is gone by then."""
    core = SlowCore(settle_seconds=0.004)
    address = LOOPBACK if transport == "tcp" else Address(path=str(tmp_path / "s"))

    def talk(address: Address) -> None:
        peer = peers(address)
        peer.greet()
        for number in range(0, 60, 3):
            peer.say(Cancel((number,)))
            time.sleep(0.001)  # let the turn begin
            peer.say(Cancel((number + 1, number + 2)))
            peer.listen(lambda number=number: len(peer.echoes) == number + 3)  # type: ignore[misc]

    async def main() -> None:
        async with serving(core, address, heartbeat=1000) as (_, bound, _):
            await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(None, talk, bound), DEADLINE)

    run(main, loop_kind)
    assert core.numbers == list(range(60))


class EdgeAcceptMonitor:
    """Its descriptor tells nothing either."""

    def __init__(self, descriptor: int, calls: list[str]) -> None:
        self._descriptor, self._calls = descriptor, calls

    def fileno(self) -> int:
        return self._descriptor

    def process_events(self) -> None:
        self._calls.append("look")


class EdgeListener:
    """Its descriptor tells nothing: what has come is found only by asking after the last send of a turn."""

    arrivals = None

    def __init__(self, descriptor: int, accept_monitor: int) -> None:
        self.calls: list[str] = []
        self.watched = (EdgeAcceptMonitor(accept_monitor, self.calls),)
        self.arriving: list[Message] = [Hello(Role.CLIENT, b"i" * 16, 1, epoch=1), Cancel((1,)), Cancel((2,))]
        self._descriptor = descriptor
        self._sequence = 0

    def call_on_arrival(self, arrived: Callable[[], object]) -> None:
        """Nothing arrives without the descriptor."""

    def fileno(self) -> int:
        return self._descriptor

    def receive(self, limit: int) -> list[tuple[bytes, list[bytes]]]:
        self.calls.append("receive")
        if not self.arriving:
            return []
        frames = [bytes(frame) for frame in encode(self.arriving.pop(0))]
        header = HEADER.pack(self._sequence, 0)
        self._sequence += 1
        return [(b"route", [header, *frames])]

    def send(self, route: bytes, frames: object) -> bool:
        self.calls.append("send")
        return True

    def cut(self, route: bytes) -> None:
        raise AssertionError("nobody is to be cut off")

    def revoked(self) -> set[bytes]:
        return set()

    def readable(self) -> bool:
        self.calls.append("readable")
        return bool(self.arriving)

    def close(self) -> None:
        self.calls.append("close")


def test_the_socket_is_asked_again_after_the_last_send(loop_kind: str) -> None:
    descriptors = [*os.pipe(), *os.pipe()]
    listener, core = EdgeListener(descriptors[0], descriptors[2]), SlowCore()

    async def main() -> None:
        hub = Hub(1, admit=lambda hello: Welcome(1), timeouts=lambda hello: PeerTimeouts(5, 60), heartbeat_seconds=1000)
        reception = ServerLoop("Test", cast(Listener, listener), hub, core, lambda: None)
        for _ in range(6):
            await asyncio.sleep(0)
        reception.close()

    run(main, loop_kind)
    for descriptor in descriptors:
        os.close(descriptor)
    assert core.numbers == [1, 2]
    assert listener.calls == ["look"] + ["receive", "send", "readable"] * 3 + ["close"]


def test_a_flood_does_not_starve_timers_or_peers(loop_kind: str, peers: Callable[[Address], PlainPeer]) -> None:
    core = SlowCore()
    flood = (
        "import sys, zmq\n"
        "dealer = zmq.Context().socket(zmq.DEALER)\n"
        "dealer.set_hwm(0)\n"
        "dealer.connect(sys.argv[1])\n"
        "message = bytes.fromhex(sys.argv[2])\n"
        "while True:\n"
        "    dealer.send(message)\n"
    )
    garbage = join([HEADER.pack(0, 0), *encode(Shutdown())]).hex()

    gaps: list[float] = []

    async def main() -> None:
        async with serving(core) as (reception, bound, _):
            loop = asyncio.get_running_loop()
            process = subprocess.Popen([sys.executable, "-c", flood, str(bound), garbage])
            try:
                while reception._service._hub.refused_frames < 1000:
                    await asyncio.sleep(0.001)
                peer = peers(bound)
                talking = loop.run_in_executor(None, talk, peer)
                last = loop.time()
                while not talking.done():
                    await asyncio.sleep(0.005)
                    gaps.append(loop.time() - last)
                    last = loop.time()
                await talking
            finally:
                process.kill()
                process.wait()

    def talk(peer: PlainPeer) -> None:
        peer.greet()
        for number in range(1000):
            peer.say(Cancel((number,)))
            peer.listen(lambda number=number: len(peer.echoes) == number + 1)  # type: ignore[misc]
            if number >= 10 and len(gaps) >= 3:
                return

    run(main, loop_kind)
    assert core.numbers == list(range(len(core.numbers))) and len(gaps) >= 3
    assert max(gaps) < 2
    assert max(core.turns, default=0) <= TURN_MESSAGES


def test_a_turn_takes_in_a_bounded_number(peers: Callable[[Address], PlainPeer]) -> None:
    core = SlowCore(settle_seconds=0.05)

    async def main() -> None:
        async with serving(core) as (_, bound, _):
            await asyncio.get_running_loop().run_in_executor(None, talk, bound)

    def talk(bound: Address) -> None:
        peer = peers(bound)
        peer.greet()
        for number in range(2000):
            peer.say(Cancel((number,)))
        peer.listen(lambda: len(peer.echoes) == 2000)

    run(main)
    assert core.numbers == list(range(2000)) and max(core.turns) <= TURN_MESSAGES


def test_a_turn_takes_bounded_time() -> None:
    """Messages that are hard to digest end the turn sooner."""
    network = MemoryNetwork()
    listener = MemoryListener(network, Address("s", 1))
    times = iter(range(1000))
    taken: list[int] = []

    class Hard(MemoryListener):
        def __init__(self) -> None:
            pass

        def receive(self, limit: int = TURN_MESSAGES) -> list[tuple[bytes, list[bytes]]]:
            taken.append(limit)
            return [(b"r", [b"x"])] * limit

        def send(self, route: bytes, frames: object) -> bool:
            return True

    hub = Hub(1, admit=lambda hello: Welcome(1), timeouts=lambda hello: PeerTimeouts(1, 1))
    turn = ServiceTurn("T", Hard(), hub, SlowCore(), lambda: None, lambda: next(times) * 0.004)
    turn.turn(0.0)
    assert sum(taken) == 32 < TURN_MESSAGES and turn.malformed == 2
    turn.turn(0.0)
    assert sum(taken) == 32 and turn.malformed == 4, "the others come with the next turns"
    listener.close()


def test_a_service_tells_its_core_and_its_peers_how_busy_it_is() -> None:
    listener, clock, told = MemoryListener(MemoryNetwork(), Address("s", 1)), 0.0, list[float]()

    class Settling(SlowCore):
        def settle(self, now: float) -> list[Effect]:
            nonlocal clock
            clock += 0.25
            return super().settle(now)

    hub = Hub(1, admit=lambda hello: Welcome(1), timeouts=lambda hello: PeerTimeouts(1, 1))
    turn = ServiceTurn(
        "T", listener, hub, Settling(settle_seconds=0.0), lambda: None, lambda: clock, tell_busy=told.append
    )
    for pause in (0.75, 0.75, 0.0, 0.0, 0.0, 0.0, 0.0):
        turn.turn(clock)
        clock += pause
    expected = [told_load(0.0, 0.4, 1.25)]
    expected.append(told_load(expected[-1], 0.25, 1.0))
    expected.append(told_load(expected[-1], 1.0, 1.0))
    assert told == pytest.approx(expected) and hub.busy == told[-1]
    listener.close()


def test_a_flood_of_messages_that_take_long_does_not_delay_other_peers() -> None:
    """Once it is known that they take long, few of them are received before the others' turn comes."""
    arrived, handled = {b"flood": 1000, b"other": 0}, list[bytes]()
    times = iter(range(100_000))

    class Fair(Deaf):
        def receive(self, limit: int = TURN_MESSAGES) -> list[tuple[bytes, list[bytes]]]:
            received: list[tuple[bytes, list[bytes]]] = []
            while len(received) < limit and any(arrived.values()):
                for route in [route for route, left in arrived.items() if left][: limit - len(received)]:
                    arrived[route] -= 1
                    received.append((route, [b"x"]))
            return received

    class SlowHub(Hub):
        def receive(self, route: bytes, frames: list[bytes], now: float) -> None:
            handled.append(route)

    hub = SlowHub(1, admit=lambda hello: Welcome(1), timeouts=lambda hello: PeerTimeouts(1, 1))
    turn = ServiceTurn("T", Fair(), hub, SlowCore(), lambda: None, lambda: next(times) * 0.004)
    for _ in range(40):
        turn.turn(0.0)
    for _ in range(10):
        before = len(handled)
        arrived[b"other"] = 1
        while b"other" not in handled[before:]:
            turn.turn(0.0)
        assert len(handled) - before <= 6


class Deaf:
    """A listener that takes what is sent to all routes but some."""

    def __init__(self, broken: Sequence[bytes] = ()) -> None:
        self.sent: list[tuple[bytes, Message]] = []
        self.cuts: list[bytes] = []
        self._broken = broken

    def receive(self, limit: int = TURN_MESSAGES) -> list[tuple[bytes, list[bytes]]]:
        return []

    def send(self, route: bytes, frames: Frames) -> bool:
        if route in self._broken:
            raise OSError("the transport fails")
        self.sent.append((route, decode([bytes(frame) for frame in frames[1:]])))
        return True

    def cut(self, route: bytes) -> None:
        self.cuts.append(route)

    def readable(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def numbers(self, route: bytes) -> list[int]:
        """Numbers that were sent this way."""
        return [
            number
            for to, message in self.sent
            if to == route and isinstance(message, Cancel)
            for number in message.tasks
        ]


UNWRITABLE = Cancel((-1,))
FAULTS: list[Effect] = [Send(b"x" * 16, UNWRITABLE), Log(logging.INFO, None), Stop("told")]  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda effect: type(effect).__name__)
@pytest.mark.parametrize("broken", [(), (b"x",)], ids=["", "broken route"])
def test_an_effect_that_fails_costs_no_other(fault: Effect, broken: Sequence[bytes]) -> None:
    def stop() -> None:
        raise RuntimeError("it cannot be stopped")

    failed: list[object] = []

    class Telling(SlowCore):
        def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
            if isinstance(event, SendFailed):
                failed.append((peer, event.message))
                self.effects.append(Send(b"y" * 16, Cancel((7,))))

    hub = Hub(1, admit=lambda hello: Welcome(1), timeouts=lambda hello: PeerTimeouts(1, 1))
    for route in (b"x", b"y"):
        hello = Hello(Role.CLIENT, route * 16, 1, epoch=1, session=1)
        hub.receive(route, [HEADER.pack(0, 0), *map(bytes, encode(hello))], 0.0)
    core, listener = Telling(), Deaf(broken)
    turn = ServiceTurn("T", listener, hub, core, stop)
    core.effects = [Send(b"x" * 16, Cancel((1,))), fault, Send(b"x" * 16, Cancel((2,))), Send(b"y" * 16, Cancel((3,)))]
    due = turn.turn(0.0)
    is_told = isinstance(fault, Send)
    assert failed == ([(b"x" * 16, UNWRITABLE)] if is_told else [])
    assert not is_told or due <= 0.0
    turn.turn(0.0)
    assert listener.numbers(b"y") == [3, *[7] * is_told]
    assert listener.numbers(b"x") == ([] if broken else [1, 2])
    again = Hello(Role.CLIENT, b"x" * 16, 1, epoch=2, peer_incarnation=1, session=1)
    hub.receive(b"z", [HEADER.pack(0, 0), *map(bytes, encode(again))], 0.0)
    turn.turn(0.0)
    assert listener.numbers(b"z") == [1, 2], "numbers have no gap"
    assert listener.cuts == [b"x"], "one connection each"


def test_beats_and_acknowledgements_keep_coming(loop_kind: str, peers: Callable[[Address], PlainPeer]) -> None:
    """Timers of some loops fire a little early: the next one has to be there nevertheless."""
    core = SlowCore()

    def talk(bound: Address) -> bool:
        peer = peers(bound)
        peer.greet()
        peer.listen(lambda: peer.beats >= 40)
        peer.say(Shutdown())
        while not isinstance(peer.next(), Acknowledge | Heartbeat):
            pass
        return True

    async def main() -> bool:
        async with serving(core, heartbeat=0.0131) as (_, bound, _):
            core.wake_at = time.monotonic()
            return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(None, talk, bound), DEADLINE)

    assert run(main, loop_kind)
    assert core.wakes >= 20


def test_effects_are_done(caplog: pytest.LogCaptureFixture, peers: Callable[[Address], PlainPeer]) -> None:
    core = SlowCore()
    core.effects = [Log(logging.WARNING, "careful"), Stop("enough")]

    async def main() -> None:
        async with serving(core) as (_, _, stopped):
            await asyncio.wait_for(stopped.wait(), DEADLINE)

    caplog.set_level(logging.INFO, logger="scaler")
    run(main)
    assert caplog.messages[-2:] == ["Test: careful", "Test: ending, enough"]


def test_a_core_that_fails_to_decide_does_not_stop_the_socket(peers: Callable[[Address], PlainPeer]) -> None:
    class Failing(SlowCore):
        failures = 0

        def settle(self, now: float) -> list[Effect]:
            if 1 in self.numbers and not self.failures:
                self.failures += 1
                raise ZeroDivisionError("a core has a bug")
            return super().settle(now)

    core = Failing()
    problems: list[object] = []

    def talk(bound: Address) -> None:
        peer = peers(bound)
        peer.greet()
        for number in (1, 2):
            peer.say(Cancel((number,)))
        peer.listen(lambda: peer.echoes == [1, 2])

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context["exception"]))
        async with serving(core) as (_, bound, _):
            await asyncio.wait_for(loop.run_in_executor(None, talk, bound), DEADLINE)

    run(main)
    assert [type(problem) for problem in problems] == [ZeroDivisionError]


def test_garbage_is_counted_and_told_of_sparingly(
    caplog: pytest.LogCaptureFixture, peers: Callable[[Address], PlainPeer]
) -> None:
    core = SlowCore()

    def talk(bound: Address, reception: ServerLoop) -> None:
        good, bad = peers(bound), peers(bound)
        good.greet()
        for _ in range(1000):
            bad.socket.send(join([b"x" * 16, b"garbage"]))
        good.say(Cancel((1,)))
        good.listen(lambda: good.echoes == [1] and reception.malformed == 1000)

    async def main() -> None:
        async with serving(core) as (reception, bound, _):
            await asyncio.get_running_loop().run_in_executor(None, talk, bound, reception)

    run(main)
    assert len(caplog.messages) == 12  # 1 to 9, 10, 100, 1000
    assert caplog.messages[-1].startswith("Test: malformed message number 1000 from ")


def test_what_was_said_last_goes_before_the_address_is_freed(peers: Callable[[Address], PlainPeer]) -> None:
    core = SlowCore()
    made: list[PlainPeer] = []

    async def main() -> Address:
        async with serving(core) as (reception, bound, _):
            made.append(peers(bound))
            await asyncio.get_running_loop().run_in_executor(None, made[0].greet)
            core.effects = [Send(made[0].identity, Cancel((77,)))]
            reception.turn()
            return bound

    Listener(run(main)).close()
    made[0].listen(lambda: made[0].echoes == [77])


def test_joins_are_told_to_the_core(peers: Callable[[Address], PlainPeer]) -> None:
    seen: list[HubEvent] = []

    class Noting(SlowCore):
        def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
            seen.append(event)

    async def main() -> None:
        async with serving(Noting()) as (_, bound, _):
            await asyncio.get_running_loop().run_in_executor(None, peers(bound).greet)

    run(main)
    assert [type(event) for event in seen] == [PeerJoined]


class Ring(NamedTuple):
    """An effect that only the core of a test has."""

    times: int


def test_a_service_performs_effects_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    class Ringing(SlowCore):
        def settle(self, now: float) -> list[Effect]:
            return [Ring(2), Log(logging.INFO, "between"), Ring(0)]  # type: ignore[list-item]

    rung: list[float] = []
    hub = Hub(1, admit=lambda hello: Welcome(1), timeouts=lambda hello: PeerTimeouts(1, 1))
    perform: dict[type, Callable[[Any], object]] = {Ring: lambda effect: rung.append(1 / effect.times)}
    ServiceTurn("T", Deaf(), hub, Ringing(), lambda: None, perform=perform).turn(0.0)
    assert rung == [0.5] and "Ring could not be performed" in caplog.text
