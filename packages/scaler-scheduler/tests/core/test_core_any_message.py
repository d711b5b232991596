"""Whatever well-formed messages strangers send, tables and totals stay right and the tasks of others end properly,
and whoever listens is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from scaler_io.links.events import PeerJoined, PeerLost
from scaler_protocol import messages
from scaler_protocol.codec import encode
from scaler_protocol.errors import ProtocolError, ScalerError
from scaler_protocol.handshake import Hello, Role, Welcome
from scaler_protocol.messages import Status
from scaler_protocol.payloads import Payloads
from support.any_messages import FUNCTION, SAFE, SESSIONS, any_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import SchedulerDriver

STRANGERS = (b"s" * 16, b"t" * 16, b"u" * 16)


@st.composite
def any_hello(draw: st.DrawFn) -> Hello:
    """A greeting of a stranger."""
    return Hello(
        draw(st.sampled_from([Role.CLIENT, Role.AGENT, Role.OPERATOR])),
        draw(st.sampled_from(STRANGERS)),
        draw(st.integers(1, 2)),
        session=draw(st.sampled_from(SESSIONS)),
        workers=draw(st.integers(0, 3)),
        queue_size=draw(st.integers(0, 5)),
        python=draw(st.sampled_from(["", "3.11.2"])),
        cloudpickle="3.0",
        peer_incarnation=draw(st.sampled_from([0, 0, 7])),
    )


class Honest:
    """A client and an agent that do as they should."""

    def __init__(self, driver: SchedulerDriver) -> None:
        self.driver = driver
        self.client, self.agent = driver.client(b"h"), driver.agent(b"honest", 2, [SAFE])
        self.wanted: list[int] = []
        self.told: dict[int, tuple[int, bytes]] = {}
        self.runs: dict[int, int] = {}

    def submit(self) -> None:
        self.wanted += self.driver.submit(self.client, 2, capability_names=(SAFE,), capability_values=(-1,))

    def work(self) -> bool:
        """Answer everything and end what runs; whether there was anything to do."""
        driver, agent = self.driver, self.agent
        for withdraw in driver.take(agent, messages.Withdraw):
            gone = {task: run for task, run in self.runs.items() if run in withdraw.runs}
            for task in gone:
                del self.runs[task]
            driver.done(agent, gone, Status.CANCELLED)
        for recall in driver.take(agent, messages.Recall):
            back = list(self.runs.items())[-recall.count :]
            for task, _ in back:
                del self.runs[task]
            driver.feed(agent, messages.Returned([run for _, run in back]))
        for needed in driver.take(self.client, messages.NeedFunctions):
            ids = [function for function in needed.functions if function == FUNCTION]
            bodies = Payloads([b"body"] * len(ids))
            driver.feed(self.client, messages.Functions(ids, ["n"] * len(ids), bodies))
        given = driver.runs(agent)
        self.runs |= given
        done, self.runs = self.runs, {}
        for task, run in done.items():
            driver.done(agent, {task: run}, result=b"honest")
        self.told |= driver.outcomes(self.client)
        return bool(done)


class Strangers:
    """A client and an agent, and what comes after them; they say anything."""

    def __init__(self, driver: SchedulerDriver, data: st.DataObject) -> None:
        self.driver, self.data = driver, data
        self.present = {driver.client(STRANGERS[0], session=120), driver.agent(STRANGERS[1], 2)}
        self.acts: list[Callable[[], object]] = [*[self.speak] * 10, self.join, self.join, self.leave]

    def speak(self) -> None:
        """Somebody says something."""
        if not self.present:
            return
        peer, message = self.data.draw(st.sampled_from(sorted(self.present))), self.data.draw(any_message())
        if isinstance(message, messages.Cancel) and peer in self.driver.core._operators:
            return  # an operator may cancel anything
        note(f"{peer[:1]!r}: {message}")
        try:
            encode(message)
        except ScalerError:
            return  # the codec lets nobody say this, nor hear it
        try:
            self.driver.feed(peer, message)
        except ProtocolError as error:
            note(str(error))
            self.driver.settle()

    def join(self) -> None:
        """Somebody says Hello, for the first time or again."""
        hello = self.data.draw(any_hello())
        if isinstance(self.driver.core.admit(hello), Welcome):
            resumed = hello.identity in self.present and self.data.draw(st.booleans())
            note(f"{hello} {resumed=}")
            self.driver.feed(hello.identity, PeerJoined(hello, resumed))
            self.present.add(hello.identity)

    def leave(self) -> None:
        """Somebody is lost."""
        if self.present:
            peer = self.data.draw(st.sampled_from(sorted(self.present)))
            self.present.discard(peer)
            self.driver.feed(peer, PeerLost("left", farewell=self.data.draw(st.booleans())))


def play(make_driver: type[SchedulerDriver], data: st.DataObject) -> None:
    """Strangers say anything, and what the honest ones want is done nevertheless."""
    driver = make_driver(monitored=data.draw(st.booleans()))
    honest, strangers = Honest(driver), Strangers(driver, data)
    for _ in range(data.draw(st.integers(1, 25))):
        act = data.draw(st.sampled_from([honest.submit, honest.work, *strangers.acts]))
        act()
        if data.draw(st.booleans()):
            driver.later(data.draw(st.sampled_from([0.01, 1.0, 6.0])))
    honest.submit()
    for _ in range(100):
        busy = honest.work()
        driver.later(0.02)
        if not busy and len(honest.told) == len(honest.wanted):
            break
    assert honest.told == dict.fromkeys(honest.wanted, (Status.VALUE, b"honest"))


@pytest.mark.parametrize("examples", [50, pytest.param(3_000, marks=pytest.mark.soak)])
def test_any_message_from_anybody(make_driver: type[SchedulerDriver], examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        play(make_driver, data)

    check()
