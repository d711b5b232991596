"""The core of the proxy agent: every run ends once, and the base concurrency is exceeded by deeper runs only."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scaler_io.links.events import LinkUp
from scaler_protocol.errors import restore
from scaler_protocol.handshake import Welcome
from scaler_protocol.ids import function_id
from scaler_protocol.messages import (
    Done,
    Functions,
    Group,
    NeedFunctions,
    Recall,
    Reconcile,
    Release,
    Resend,
    Returned,
    Run,
    Shutdown,
    Status,
    Withdraw,
)
from scaler_protocol.operations import Drain, ProfilePart, Resized, TakeProfile
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import NO_PROFILE
from scaler_worker.agent.core.draining import RELEASE_SECONDS
from scaler_worker.agent.core.events import EndAgent, SendToScheduler
from scaler_worker.agent.core.snapshot import HostStats
from scaler_worker.symphony.events import (
    CallEnded,
    OpenSession,
    SessionLost,
    SessionOpened,
    StartRun,
    StopRun,
    TaskFailed,
)
from scaler_worker.symphony.proxy_core import LONGEST_RETRY_SECONDS, ProxyConfig, ProxyCore
from scaler_worker.symphony.run_queue import depth_of
from support.examples import examples

BODY = b"a function"
FUNCTION = function_id(BODY)
BASE = 2


class Proxy:
    """A core, and what it has said."""

    def __init__(self, *, opened: bool = True) -> None:
        self.core = ProxyCore(ProxyConfig(BASE, "proxy", "host", 7, drain_timeout_seconds=20.0))
        self.now = 0.0
        self.started: dict[int, StartRun] = {}
        self.stopped: list[int] = []
        self.said: list[Any] = []
        self.ended: EndAgent | None = None
        self.attempts = 0
        self.next_run = 1
        if opened:
            self.hear(SessionOpened())

    def hear(self, event: Any) -> None:
        self.core.handle(event, self.now)
        self.settle()

    def settle(self) -> None:
        for effect in self.core.settle(self.now):
            if isinstance(effect, StartRun):
                self.started[effect.entry[0]] = effect
            elif isinstance(effect, StopRun):
                self.stopped.append(effect.run)
            elif isinstance(effect, SendToScheduler):
                self.said.append(effect.message)
            elif isinstance(effect, OpenSession):
                self.attempts += 1
            elif isinstance(effect, EndAgent):
                self.ended = self.ended or effect
        self.core.check()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    def run(self, count: int = 1, *, with_body: bool = True, **group: Any) -> list[int]:
        runs = list(range(self.next_run, self.next_run + count))
        self.next_run += count
        functions: dict[str, Any] = (
            {"functions": [FUNCTION], "names": ["f"], "bodies": Payloads([BODY])} if with_body else {}
        )
        tasks = [run << 8 for run in runs]
        self.hear(Run(runs[0], [Group(FUNCTION, **group)], tasks, Payloads([b"call"] * count), **functions))
        return runs

    def end(self, run: int, status: int = Status.VALUE, *, stored: bool = False) -> None:
        self.hear(CallEnded(self.started[run].entry, status, b"result", NO_PROFILE, stored))

    def outcomes(self) -> dict[int, list[int]]:
        """The statuses of each run, -1 if it was returned."""
        found: dict[int, list[int]] = {}
        for message in self.said:
            if isinstance(message, Done):
                for run, status in zip(message.runs, message.statuses, strict=True):
                    found.setdefault(run, []).append(status)
            elif isinstance(message, Returned):
                for run in message.runs:
                    found.setdefault(run, []).append(-1)
        return found

    def heard(self, kind: type) -> list[Any]:
        return [message for message in self.said if isinstance(message, kind)]


def test_runs_start_up_to_the_base_concurrency() -> None:
    proxy = Proxy()
    first, second, third = proxy.run(3)
    assert list(proxy.started) == [first, second]
    proxy.end(first)
    assert list(proxy.started) == [first, second, third]
    assert proxy.outcomes() == {first: [Status.VALUE]}


def test_a_deeper_run_exceeds_the_base_concurrency_whatever_its_priority() -> None:
    proxy = Proxy()
    proxy.run(BASE)
    urgent = proxy.run(1, priority=9)
    nested = proxy.run(2, depth=1, priority=-9)
    assert list(proxy.started)[BASE:] == nested[:1]
    deepest = proxy.run(1, depth=2)
    assert list(proxy.started)[BASE:] == [nested[0], *deepest]
    for run in (deepest[0], nested[0]):
        proxy.end(run)
    assert list(proxy.started)[-1] == nested[1]
    assert urgent[0] not in proxy.started


def test_a_missing_function_is_asked_for() -> None:
    proxy = Proxy()
    runs = proxy.run(2, with_body=False)
    assert not proxy.started and proxy.heard(NeedFunctions) == [NeedFunctions((FUNCTION,))]
    proxy.hear(Functions([FUNCTION], ["f"], Payloads([BODY])))
    assert list(proxy.started) == runs
    assert proxy.started[runs[0]].definition.body == BODY


def test_withdrawn_runs_are_stopped() -> None:
    proxy = Proxy()
    runs = proxy.run(3)
    proxy.hear(Withdraw(runs))
    assert proxy.stopped == runs[:2]
    assert proxy.outcomes() == {run: [Status.CANCELLED] for run in runs}
    proxy.end(runs[0])
    assert proxy.outcomes()[runs[0]] == [Status.CANCELLED]
    proxy.end(runs[1], stored=True)  # reported, so that the scheduler deletes the object
    assert proxy.outcomes()[runs[1]] == [Status.CANCELLED, Status.VALUE]


def test_a_run_is_stopped_at_its_timeout() -> None:
    proxy = Proxy()
    (run,) = proxy.run(1, timeout_seconds=5.0)
    assert proxy.core.due() == 5.0
    proxy.pass_time(5.0)
    assert proxy.stopped == [run] and proxy.outcomes() == {run: [Status.FAILED]}


def test_the_status_names_the_newest_run() -> None:
    proxy = Proxy()
    stats = HostStats(0.0, 0, 0, {}, {})
    assert proxy.core.take_status(stats).newest_run == 0
    runs = proxy.run(3)
    assert proxy.core.take_status(stats).newest_run == runs[-1]


def test_a_failure_of_symphony_is_a_lost_run() -> None:
    proxy = Proxy()
    (run,) = proxy.run()
    proxy.hear(TaskFailed(run, "the service has exited"))
    (done,) = proxy.heard(Done)
    assert list(done.statuses) == [Status.LOST]
    assert "the service has exited" in str(restore(done.results[0]))
    status = proxy.core.take_status(HostStats(0.0, 0, 0, {}, {}))
    assert len(status.deaths) == 1 and list(status.names) == ["proxy:0", "proxy:1"]
    assert not proxy.core.take_status(HostStats(0.0, 0, 0, {}, {})).deaths


def test_a_run_that_follows_another_one_is_returned() -> None:
    proxy = Proxy()
    message = Run(
        1,
        [Group(FUNCTION)],
        [256, 512],
        Payloads([b"a", b"b"]),
        dependents=[1],
        needs=[256],
        inputs=Payloads([b""]),
        inputs_awaited=[0],
        functions=[FUNCTION],
        names=["f"],
        bodies=Payloads([BODY]),
    )
    proxy.hear(message)
    assert list(proxy.started) == [1] and proxy.heard(Returned) == [Returned([2])]


def test_a_lost_session_is_opened_again_ever_later() -> None:
    proxy = Proxy()
    assert proxy.attempts == 1
    runs = proxy.run(3)
    proxy.hear(SessionLost("broken"))
    assert proxy.outcomes() == {runs[0]: [Status.LOST], runs[1]: [Status.LOST], runs[2]: [-1]}
    assert proxy.heard(Resized) == [Resized(0)]
    pause = 1.0
    while pause < LONGEST_RETRY_SECONDS:
        attempts = proxy.attempts
        proxy.pass_time(pause - 0.1)
        assert proxy.attempts == attempts
        proxy.pass_time(0.1)
        assert proxy.attempts == attempts + 1
        proxy.hear(SessionLost("still broken"))
        pause = min(2 * pause, LONGEST_RETRY_SECONDS)
    proxy.hear(SessionOpened())
    assert proxy.heard(Resized) == [Resized(0), Resized(BASE)]


def test_a_first_session_that_cannot_be_opened_ends_the_agent() -> None:
    proxy = Proxy(opened=False)
    assert not proxy.core.is_ready
    proxy.hear(SessionLost("no such application"))
    assert proxy.ended is not None and proxy.ended.code == 1 and "no such application" in proxy.ended.reasons[0]


def test_a_profile_is_answered_with_the_reason_why_there_is_none() -> None:
    proxy = Proxy()
    proxy.hear(TakeProfile(7, "", 1.0))
    assert proxy.heard(ProfilePart) == [ProfilePart(7, problem="tasks of Symphony are not sampled")]


def test_a_drain_returns_waiting_runs_and_waits_for_the_others() -> None:
    proxy = Proxy()
    runs = proxy.run(3)
    proxy.hear(Drain(0, 0))
    assert proxy.outcomes() == {runs[2]: [-1]} and proxy.heard(Resized) == [Resized(0)]
    for run in runs[:2]:
        proxy.end(run)
    assert proxy.ended is None
    proxy.hear(Release([run << 8 for run in runs[:2]]))
    assert proxy.ended is not None and proxy.ended.code == 0


def test_a_drain_ends_at_its_deadline_and_without_releases() -> None:
    proxy = Proxy()
    (run,) = proxy.run()
    proxy.hear(Drain(0, 0))
    assert proxy.core.due() == 20.0
    proxy.pass_time(20.0)
    assert proxy.ended is not None and "in time" in proxy.ended.reasons[0]
    proxy = Proxy()
    (run,) = proxy.run()
    proxy.end(run)
    proxy.hear(Drain(0, 0))
    assert proxy.ended is None and proxy.core.due() == RELEASE_SECONDS
    proxy.pass_time(RELEASE_SECONDS)
    assert proxy.ended is not None


def test_a_new_scheduler_learns_what_is_here() -> None:
    proxy = Proxy()
    welcome = LinkUp(Welcome(1), resumed=False)
    proxy.hear(welcome)
    assert not proxy.heard(Reconcile)
    runs = proxy.run(4)
    proxy.end(runs[0])
    proxy.hear(welcome)
    (message,) = proxy.heard(Reconcile)
    assert sorted(message.runs) == runs[1:] and list(message.finished) == [runs[0] << 8]
    proxy.hear(Resend(message.finished))
    assert proxy.outcomes()[runs[0]] == [Status.VALUE] * 2


def test_a_shutdown_ends_the_agent() -> None:
    proxy = Proxy()
    proxy.hear(Shutdown())
    assert proxy.ended is not None and proxy.ended.code == 0


class AnyEvents(RuleBasedStateMachine):
    """Whatever happens, a run ends once, and the limits hold."""

    def __init__(self) -> None:
        super().__init__()
        self.proxy = Proxy()
        self.is_open = True

    @rule(
        count=st.integers(1, 3),
        depth=st.integers(0, 3),
        priority=st.integers(-1, 1),
        timeout=st.sampled_from((0.0, 3.0)),
        with_body=st.booleans(),
    )
    def run(self, count: int, depth: int, priority: int, timeout: float, with_body: bool) -> None:
        self.proxy.run(count, depth=depth, priority=priority, timeout_seconds=timeout, with_body=with_body)

    @rule(data=st.data(), ends=st.sampled_from(("value", "failed", "withdrawn")))
    def end(self, data: st.DataObject, ends: str) -> None:
        if running := sorted(self.proxy.core.running):
            run = data.draw(st.sampled_from(running))
            if ends == "value":
                self.proxy.end(run)
            else:
                self.proxy.hear(TaskFailed(run, "x") if ends == "failed" else Withdraw([run]))

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        if self.proxy.next_run > 1:
            self.proxy.hear(Withdraw([data.draw(st.integers(1, self.proxy.next_run - 1))]))

    @rule(count=st.integers(1, 3))
    def recall(self, count: int) -> None:
        self.proxy.hear(Recall(count))

    @rule()
    def define(self) -> None:
        self.proxy.hear(Functions([FUNCTION], ["f"], Payloads([BODY])))

    @precondition(lambda self: self.is_open)
    @rule()
    def lose_session(self) -> None:
        self.is_open = False
        self.proxy.hear(SessionLost("broken"))

    @precondition(lambda self: not self.is_open)
    @rule()
    def open_session(self) -> None:
        self.is_open = True
        self.proxy.hear(SessionOpened())

    @rule(seconds=st.sampled_from((0.5, 4.0)))
    def pass_time(self, seconds: float) -> None:
        self.proxy.pass_time(seconds)

    @invariant()
    def limits(self) -> None:
        running = [call.entry for call in self.proxy.core.running.values()]
        assert len(running) <= BASE + max(map(depth_of, running), default=0)
        assert self.is_open or not running

    @invariant()
    def each_run_ends_once(self) -> None:
        outcomes, core = self.proxy.outcomes(), self.proxy.core
        here = {*core.running, *(e[0] for e in core.waiting), *(e[0] for e in core.functions.parked_entries())}
        for run in range(1, self.proxy.next_run):
            assert len(outcomes.get(run, ())) == (run not in here), run


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = settings(max_examples=examples(25), stateful_step_count=40, deadline=None)
