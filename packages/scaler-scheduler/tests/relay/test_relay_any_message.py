"""Whatever well-formed messages agents of a relay send, it goes on, and what it passes on can be sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from scaler_io.links.effects import Send
from scaler_io.links.events import LinkUp, PeerJoined, PeerLost
from scaler_protocol.capacity import ListProcesses
from scaler_protocol.codec import decode, encode
from scaler_protocol.errors import ProtocolError, ScalerError
from scaler_protocol.handshake import Hello, Role, Welcome
from scaler_protocol.ids import first_run, first_task
from scaler_protocol.messages import Functions, Group, Recall, Release, Resend, Run, Withdraw
from scaler_protocol.operations import Drain, TakeProfile
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.relay.core import PERMITTED, RelayCore, SendUp
from support.any_messages import FUNCTION, any_message

TASKS = [first_task(session) + at for session in (120, 121) for at in range(6)]
SCHEDULER = first_run(7)
some_tasks = st.lists(st.sampled_from(TASKS), max_size=3, unique=True)


class RelayPlay:
    """A relay, the scheduler above it, which says what it may, and agents, which say anything."""

    def __init__(self, data: st.DataObject) -> None:
        hello = Hello(Role.AGENT, b"r" * 16, 3, name="relay", host="here", python="3.12.1", queue_size=10, relay=True)
        self.data, self.now, self.runs = data, 1.0, 0
        self.core = RelayCore(hello, "tcp://127.0.0.1:2345", SchedulerConfig())
        self.hear(LinkUp(Welcome(7), resumed=False))
        self.present: set[bytes] = set()
        self.acts: list[Callable[[], object]] = [
            *[self.speak] * 8, self.join, self.leave, self.lease, self.lease, *[self.order] * 3, self.report,
        ]  # fmt: skip
        self.join()

    def settle(self) -> None:
        self.can_be_sent(self.core.settle(self.now))
        self.core.check()

    @staticmethod
    def can_be_sent(effects: Sequence[object]) -> None:
        for effect in effects:
            if isinstance(effect, Send | SendUp):
                encode(effect.message)

    def hear(self, event: object) -> None:
        note(f"the scheduler: {event}")
        self.core.hear(event, self.now)
        self.settle()

    def speak(self) -> None:
        """An agent says something."""
        if not self.present:
            return
        peer, message = self.data.draw(st.sampled_from(sorted(self.present))), self.data.draw(any_message())
        if type(message) not in PERMITTED[Role.AGENT]:
            return
        try:
            message = decode([bytes(frame) for frame in encode(message)])
        except ScalerError:
            return  # the codec lets nobody say this, nor hear it
        note(f"{peer[:1]!r}: {message}")
        try:
            self.core.handle(peer, message, self.now)
        except ProtocolError as error:
            note(str(error))
        self.settle()

    def join(self) -> None:
        """An agent says Hello, for the first time or again."""
        identity, before = (
            self.data.draw(st.sampled_from([b"a", b"b"])) * 16,
            self.data.draw(st.sampled_from([0, 3, 9])),
        )
        hello = Hello(
            Role.AGENT, identity, 3, session=self.data.draw(st.sampled_from([97, 120])), name="a", host="there",
            python="3.12.1", workers=2, queue_size=10, peer_incarnation=before,
        )  # fmt: skip
        if isinstance(self.core.admit(hello), Welcome):
            resumed = identity in self.present and self.data.draw(st.booleans())
            note(f"{hello} {resumed=}")
            self.core.handle(identity, PeerJoined(hello, resumed), self.now)
            self.present.add(identity)
            self.settle()

    def leave(self) -> None:
        """An agent is lost."""
        if self.present:
            peer = self.data.draw(st.sampled_from(sorted(self.present)))
            self.present.discard(peer)
            note(f"{peer[:1]!r} leaves")
            self.core.handle(peer, PeerLost("left", farewell=self.data.draw(st.booleans())), self.now)
            self.settle()

    def lease(self) -> None:
        """The scheduler has tasks for the relay, of which the first may need the result of another."""
        tasks = self.data.draw(st.lists(st.sampled_from(TASKS), min_size=1, max_size=3, unique=True))
        needs = [first_task(120) + 99] * self.data.draw(st.integers(0, 1))
        self.hear(
            Run(
                SCHEDULER + self.runs, [Group(FUNCTION)], tasks, Payloads([b"c"] * len(tasks)),
                dependents=[0] * len(needs), needs=needs, inputs=Payloads([b"i"] * len(needs)),
                functions=[FUNCTION], names=["n"], bodies=Payloads([b"body"]),
            )
        )  # fmt: skip
        self.runs += len(tasks)

    def order(self) -> None:
        """The scheduler has an order, or is another one."""
        runs = st.sampled_from([SCHEDULER + at for at in range(self.runs + 1)])
        orders = st.one_of(
            st.lists(runs, max_size=3, unique=True).map(Withdraw),
            some_tasks.map(Release),
            some_tasks.map(Resend),
            st.integers(0, 3).map(Recall),
            st.builds(LinkUp, st.sampled_from([7, 8]).map(Welcome), st.booleans()),
            st.sampled_from(
                [
                    Functions([FUNCTION], ["n"], Payloads([b"body"])),
                    ListProcesses(5),
                    TakeProfile(5, "", 1.0, 4096),
                    Drain(1, 3),
                ]
            ),
        )
        self.hear(self.data.draw(orders))

    def report(self) -> None:
        """The relay reports what its agents have reported."""
        encode(self.core.status())


@pytest.mark.parametrize("examples", [50, pytest.param(1_000, marks=pytest.mark.soak)])
def test_any_message_from_agents(examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        play = RelayPlay(data)
        for _ in range(data.draw(st.integers(1, 25))):
            data.draw(st.sampled_from(play.acts))()
            play.now += data.draw(st.sampled_from([0.0, 0.02, 1.0, 6.0, 25.0]))
            play.settle()

    check()
