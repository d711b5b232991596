"""RelayCore: what agents can do to it that say what is not so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scaler_io.links.effects import Send
from scaler_io.links.events import LinkLost, LinkUp, PeerJoined, PeerLost
from scaler_protocol.codec import encode
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Hello, Refused, Role, Welcome
from scaler_protocol.ids import first_run, first_task, function_id
from scaler_protocol.messages import (
    AgentStatus,
    Done,
    Group,
    Message,
    Output,
    Reconcile,
    Release,
    Resend,
    Run,
    Shutdown,
    Status,
    Withdraw,
    WorkerState,
)
from scaler_protocol.operations import Drain, Resized
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import NO_PROFILE
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.relay.absent_clients import CLAIMED_SESSIONS, SWEEP_SECONDS
from scaler_scheduler.relay.core import EndRelay, RelayCore, SendUp

SCHEDULER, OTHER = first_run(7_000), first_run(9_000)
"""Where the run ids of the scheduler begin, and of a lost relay."""
TASKS = [0x1122_3344_0000_0001 + at for at in range(4)]
FUNCTION = function_id(b"body")


class Relay:
    """A connected relay, and what it does."""

    def __init__(self) -> None:
        hello = Hello(
            Role.AGENT, b"r" * 16, 8_000, name="relay", host="here", python="3.12.1", queue_size=10, relay=True
        )  # fmt: skip
        self.core = RelayCore(hello, "tcp://127.0.0.1:2345", SchedulerConfig())
        self.core.hear(LinkUp(Welcome(7_000), resumed=False), 0.0)
        self.settle()

    def settle(self) -> list[object]:
        effects: list[object] = list(self.core.settle(1.0))
        self.core.check()
        return effects

    def hello(self, letter: bytes = b"a", **differences: object) -> Hello:
        known = {"name": letter.decode(), "host": "there", "python": "3.12.1", "workers": 2, "queue_size": 10}
        return Hello(Role.AGENT, letter * 16, 3, **(known | differences))  # type: ignore[arg-type]

    def joins(self, letter: bytes, peer_incarnation: int = 0) -> bytes:
        hello = self.hello(letter, peer_incarnation=peer_incarnation)
        assert isinstance(self.core.admit(hello), Welcome)
        self.core.handle(hello.identity, PeerJoined(hello, resumed=False), 0.0)
        self.settle()
        return hello.identity

    def says(self, agent: bytes, message: Message) -> list[object]:
        self.core.handle(agent, message, 1.0)
        return self.settle()

    def hears(self, message: object) -> list[object]:
        self.core.hear(message, 1.0)
        return self.settle()

    def runs(self, count: int, first: int = SCHEDULER) -> dict[bytes, dict[int, int]]:
        """Lease so many tasks; returns the runs of each agent by task."""
        group = Group(FUNCTION, stream_output=True)
        sent = self.hears(Run(first, [group], TASKS[:count], Payloads([b"c"] * count), functions=[FUNCTION],
                              names=["f"], bodies=Payloads([b"body"])))  # fmt: skip
        runs: dict[bytes, dict[int, int]] = {}
        for effect in sent:
            if isinstance(effect, Send) and isinstance(effect.message, Run):
                numbers = enumerate(effect.message.tasks, effect.message.first_run)
                runs.setdefault(effect.to, {}).update({task: run for run, task in numbers})
        return runs


def sent_up(effects: Sequence[object], kind: type[Message]) -> list[Message]:
    return [each.message for each in effects if isinstance(each, SendUp) and isinstance(each.message, kind)]


@pytest.fixture
def relay() -> Relay:
    return Relay()


@pytest.mark.parametrize("peer_incarnation", [0, 9_000])
@pytest.mark.parametrize(
    ("running", "runs"),
    [
        (TASKS[:2], [OTHER, OTHER]),  # one run of two tasks
        (TASKS[:1] * 2, [OTHER, OTHER + 1]),  # two runs of one task
        ([5], [OTHER]),  # there is no session 0
    ],
)
def test_claims_that_contradict_each_other(
    relay: Relay, running: Sequence[int], runs: Sequence[int], peer_incarnation: int
) -> None:
    agent = relay.joins(b"a", peer_incarnation)
    claimed = sent_up(relay.says(agent, Reconcile(running, runs)), Reconcile)
    honest = 1 if peer_incarnation and running != [5] else 0
    assert [(each.running, each.runs) for each in claimed if isinstance(each, Reconcile)] == [
        (TASKS[:1], [OTHER])
    ] * honest
    relay.hears(Withdraw([OTHER]))
    relay.hears(Release(TASKS))


def test_an_agent_begins_only_so_many_sessions_until_they_are_forgotten(relay: Relay) -> None:
    """One message of a megabyte could begin 65,536, which take 5 s and 340 MB."""
    agent, most = relay.joins(b"a", 9_000), CLAIMED_SESSIONS
    for first in (1, most):
        tasks = [first_task(session) for session in range(first, first + most)]
        claimed = sent_up(relay.says(agent, Reconcile(tasks, range(OTHER + first, OTHER + first + most))), Reconcile)
        assert [each.running for each in claimed if isinstance(each, Reconcile)] == ([tasks] if first == 1 else [])
        assert relay.core.leases.sessions.total() == most
    relay.hears(Withdraw(range(OTHER, OTHER + most + 1)))
    for now in (SWEEP_SECONDS, 2 * SWEEP_SECONDS):
        relay.core.settle(1.0 + now)
    assert sent_up(relay.says(agent, Reconcile([first_task(most + 1)], [OTHER - 1])), Reconcile)


def test_a_run_that_was_leased_to_the_relay_is_not_claimed_for_another_task(relay: Relay) -> None:
    relay.joins(b"a")
    relay.runs(1)
    thief = relay.joins(b"b", 9_000)
    assert not sent_up(relay.says(thief, Reconcile([TASKS[1]], [SCHEDULER])), Reconcile)
    assert relay.core.leases.task_of(SCHEDULER) == TASKS[0]


def test_only_the_agent_that_runs_a_task_writes_its_output(relay: Relay) -> None:
    owner, other = relay.joins(b"a"), relay.joins(b"b")
    ran = relay.runs(1)
    (owner,) = ran
    (other,) = {owner, other, b"a" * 16, b"b" * 16} - {owner}
    line = Output(TASKS[:1], [1], Payloads([b"hello"]))
    assert not sent_up(relay.says(other, line), Output)
    assert sent_up(relay.says(owner, line), Output) == [line]


def test_a_task_that_has_ended_runs_again_where_the_scheduler_leases_it_again(relay: Relay) -> None:
    """It has dispatched the task before it took the outcome, which it does not want any more."""
    agent = relay.joins(b"a")
    for first in (SCHEDULER, SCHEDULER + 1):
        runs = relay.runs(1, first)[agent]
        done = Done(TASKS[:1], [Status.VALUE], Payloads([b"r"]), list(runs.values()), profiles=NO_PROFILE)
        relay.core.handle(agent, done, 2.0)
        (sent,) = sent_up(list(relay.core.settle(2.0 + first)), Done)
        assert isinstance(sent, Done) and list(sent.runs) == [first]


def test_only_the_agent_that_was_asked_gives_an_outcome_again(relay: Relay) -> None:
    relay.joins(b"a")
    relay.joins(b"b")
    ((owner, runs),) = relay.runs(1).items()
    (other,) = {b"a" * 16, b"b" * 16} - {owner}

    def outcome(result: bytes) -> Done:
        return Done(TASKS[:1], [Status.VALUE], Payloads([result]), [runs[TASKS[0]]], profiles=NO_PROFILE)

    assert len(sent_up(relay.says(owner, outcome(b"true")), Done)) == 1
    assert Send(owner, Resend(TASKS[:1])) in relay.hears(Resend(TASKS[:1]))
    assert not sent_up(relay.says(other, outcome(b"false")), Done)
    (again,) = sent_up([*relay.says(owner, outcome(b"true")), *relay.core.settle(2.0)], Done)
    assert isinstance(again, Done)
    assert (list(again.results), list(again.runs)) == ([b"true"], [SCHEDULER])


def test_only_the_scheduler_counts_and_repeats_runs_that_are_lost_with_a_worker(relay: Relay) -> None:
    relay.joins(b"a")
    relay.joins(b"b")
    ((owner, runs),) = relay.runs(1).items()
    (other,) = {b"a" * 16, b"b" * 16} - {owner}
    lost = Done(TASKS[:1], [Status.LOST], Payloads([b""]), [runs[TASKS[0]]], profiles=NO_PROFILE)
    assert not sent_up(relay.says(other, lost), Done), "it does not have the run"
    said = relay.says(owner, lost)
    (told,) = sent_up(said, Done)
    assert isinstance(told, Done) and (list(told.statuses), list(told.runs)) == ([Status.LOST], [SCHEDULER])
    assert not [each for each in said if isinstance(each, Send) and isinstance(each.message, Run)]
    assert list(relay.runs(1)) != [], "it may come again"


def test_an_outcome_that_is_given_twice_is_once_in_a_message(relay: Relay) -> None:
    """A message that names a run twice is malformed, and its relay would have to end."""
    agent = relay.joins(b"a")
    run, _ = relay.runs(2)[agent].values()
    outcome = Done(TASKS[:1], [Status.VALUE], Payloads([b"r"]), [run], profiles=NO_PROFILE)
    relay.says(agent, outcome)
    for _ in range(2):
        relay.hears(Resend(TASKS[:1]))
        relay.says(agent, outcome)
    (again,) = sent_up(list(relay.core.settle(2.0)), Done)
    assert isinstance(again, Done) and list(again.runs) == [SCHEDULER]


@pytest.mark.parametrize(
    ("differences", "reason"),
    [
        ({"identity": bytes(12) + b"\x11\x22\x33\x44"}, "an identity is random"),
        ({"identity": bytes(16)}, "an identity is random"),
        ({"manager": "native", "unit": "1"}, "the scheduler counts the units of worker managers"),
    ],
)
def test_agents_that_a_relay_refuses(relay: Relay, differences: dict[str, object], reason: str) -> None:
    answer = relay.core.admit(replace(relay.hello(), **differences))  # type: ignore[arg-type]
    assert isinstance(answer, Refused)
    assert any(each.startswith(reason) for each in answer.reasons)


def status(pid: int) -> AgentStatus:
    return AgentStatus(0.0, 0, 0, 0, ["w"], [pid], [WorkerState.IDLE], [0], [0.0], [0], [0])


def test_a_worker_is_drained_only_where_its_process_is_meant(relay: Relay) -> None:
    one, two = relay.joins(b"a"), relay.joins(b"b")
    relay.says(one, status(11))
    relay.says(two, status(12))
    orders = [each for each in relay.hears(Drain(1, 12)) if isinstance(each, Send)]
    assert [(each.to, type(each.message)) for each in orders] == [(two, Drain)]
    relay.says(one, status(12))
    effects = relay.hears(Drain(1, 12))
    assert not any(isinstance(each, Send) for each in effects)
    assert any("process 12 is a worker of a, b" in str(each) for each in effects)


def test_a_relay_that_is_drained_ends_with_its_last_host(relay: Relay) -> None:
    agent = relay.joins(b"a")
    assert any(isinstance(each, Send) and isinstance(each.message, Drain) for each in relay.hears(Drain(1, 0)))
    late = relay.hello(b"b")
    relay.core.handle(late.identity, PeerJoined(late, resumed=False), 1.0)
    assert any(isinstance(each, Send) and each.to == late.identity for each in relay.settle()), "it drains, too"
    for identity in (agent, late.identity):
        assert not any(isinstance(each, EndRelay) for each in relay.settle())
        relay.core.handle(identity, PeerLost("it stops", farewell=True), 1.0)
    assert EndRelay("all of its hosts were drained", failed=False) in relay.settle()


def test_a_cluster_that_is_shut_down_ends_its_relays_well(relay: Relay) -> None:
    agent = relay.joins(b"a")
    effects = relay.hears(Shutdown())
    assert Send(agent, Shutdown()) in effects
    assert EndRelay("the scheduler shuts the cluster down", failed=False) in effects


def test_deaths_of_workers_are_passed_on_once_with_their_hosts(relay: Relay) -> None:
    below = relay.joins(b"a")
    relay.says(below, AgentStatus(deaths=["Worker[1] was killed"], death_hosts=["another host"]))
    status = relay.core.status()
    assert (status.deaths, status.death_hosts) == (["a: Worker[1] was killed"], ["there"])
    assert not relay.core.status().deaths


def test_what_agents_report_fits_into_one_message(relay: Relay) -> None:
    for letter in (b"a", b"b"):
        most = replace(status(11), cpu=1e9, rss=2**64 - 1, queued=2**32 - 1, names=["w" * 256], deaths=["d" * 4096] * 9)
        relay.says(relay.joins(letter), most)
    above = relay.core.status()
    encode(above)
    assert (above.cpu, above.rss, above.queued) == (1e9, 2**64 - 1, 2**32 - 1)


def test_workers_of_hosts_with_long_names_keep_their_own(relay: Relay) -> None:
    hello = relay.hello(name="host" * 100)
    relay.core.handle(hello.identity, PeerJoined(hello, resumed=False), 0.0)
    relay.says(hello.identity, replace(status(11), names=["Worker[3]"]))
    (name,) = relay.core.status().names
    assert (len(name.encode()), name[:8], name[-11:]) == (256, "hosthost", "… Worker[3]")


def test_as_many_workers_are_told_as_an_agent_may_have(relay: Relay) -> None:
    told: list[int] = []
    for letter in (b"a", b"b", b"c"):
        hello = relay.hello(letter, workers=40_000)
        relay.core.handle(hello.identity, PeerJoined(hello, resumed=False), 0.0)
        told += [each.workers for each in sent_up(relay.settle(), Resized) if isinstance(each, Resized)]
    relay.core.handle(b"a" * 16, PeerLost("it stops", farewell=True), 1.0)
    relay.core.handle(b"b" * 16, PeerLost("it stops", farewell=True), 1.0)
    told += [each.workers for each in sent_up(relay.settle(), Resized) if isinstance(each, Resized)]
    assert told == [40_000, 65_535, 40_000]


def test_a_refused_report_claims_nothing(relay: Relay) -> None:
    agent = relay.joins(b"a", 9_000)
    with pytest.raises(ProtocolError, match="one of clients"):
        relay.says(agent, Reconcile(TASKS[:1], [OTHER], wanted=TASKS[1:2]))
    assert not sent_up(relay.settle(), Reconcile)
    assert not relay.core.leases.runs


def test_an_outcome_that_is_given_again_names_its_run(relay: Relay) -> None:
    relay.joins(b"a")
    ((owner, runs),) = relay.runs(1).items()
    relay.says(owner, Done(TASKS[:1], [Status.VALUE], Payloads([b"r"]), [runs[TASKS[0]]], profiles=NO_PROFILE))
    relay.hears(Resend(TASKS[:1]))
    with pytest.raises(ProtocolError, match="a run and a profile for every task"):
        relay.says(owner, Done(TASKS[:1], [Status.VALUE], Payloads([b"r"])))


def test_hosts_are_told_another_address_of_the_scheduler_than_the_relay_uses() -> None:
    hello = Hello(Role.AGENT, b"r" * 16, 8_000, name="relay", host="here", relay=True)
    core = RelayCore(hello, "tcp://127.0.0.1:2345", SchedulerConfig(), "tcp://10.0.0.1:2345")
    answers = [core.admit(Hello(role, b"a" * 16, 3, workers=1, queue_size=1)) for role in (Role.AGENT, Role.CLIENT)]
    assert isinstance(answers[0], Welcome) and answers[0].fallback_address == "tcp://10.0.0.1:2345"
    assert (
        isinstance(answers[1], Refused) and "connect to the scheduler at tcp://10.0.0.1:2345" in answers[1].reasons[0]
    )
    core.hear(LinkLost("no connection for 1 s"), 1.0)
    assert EndRelay("no scheduler at tcp://127.0.0.1:2345: no connection for 1 s", failed=True) in core.settle(1.0)
