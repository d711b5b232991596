"""Any order of events keeps the scheduler's invariants, and every task ends exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scaler_io.links.events import PeerJoined, PeerLost
from scaler_protocol import messages
from scaler_protocol.errors import WorkerDiedError, describe
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import function_id
from scaler_protocol.messages import Group, Status, Submit
from scaler_protocol.objects import Reference
from scaler_protocol.operations import Resized
from scaler_protocol.payloads import Payloads
from scaler_protocol.result_sizes import class_of, limit_of
from support.examples import examples

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FUNCTION = function_id(b"body")
LONG = b"r" * 20_000
REFERENCE = Reference(b"o" * 16, len(LONG)).pack()
CREDIT = 3 * limit_of(class_of(len(LONG)))
CLIENTS = [b"a", b"b"]
AGENTS = [b"x", b"y", b"z"]


class AnyOrder(RuleBasedStateMachine):
    """Clients submit, cancel, leave; agents join, work, give back, block, die."""

    make_driver: type[SchedulerDriver]

    @initialize(monitored=st.booleans())
    def start(self, monitored: bool) -> None:
        self.driver = type(self).make_driver(monitored=monitored)
        self.wanted: dict[int, bytes] = {}
        self.told: dict[int, int] = {}
        self.held: dict[bytes, int] = {}
        """Bytes of long results that clients were sent and have not let go of."""
        self.dependents = 0
        self.runs: dict[bytes, dict[int, int]] = {}
        self.granted: set[int] = set()
        self.joined: set[bytes] = set()
        self.operator = b"o" * 16
        self.driver.feed(self.operator, PeerJoined(Hello(Role.OPERATOR, self.operator, 1, name="o"), False))

    def collect(self) -> None:
        """Runs reach the agents, outcomes the clients."""
        for agent, runs in self.runs.items():
            for run in self.driver.take(agent, messages.Run):
                for position, task in enumerate(run.tasks):
                    runs[run.first_run + position] = task
                self.granted.update(run.first_run + at for at, size in enumerate(run.result_sizes) if size)
            for withdraw in self.driver.take(agent, messages.Withdraw):
                gone = [run for run in withdraw.runs if run in runs]
                if gone:
                    self.report(agent, gone, Status.CANCELLED)
        for client in self.joined:
            for task, (status, result) in self.driver.outcomes(client).items():
                assert task in self.wanted and task not in self.told
                self.told[task] = status
                self.held[client] = self.held.get(client, 0) + (len(result) if len(result) == len(LONG) else 0)
            session = self.driver.core.state.sessions[client[0]]
            assert self.held.get(client, 0) <= session.result_bytes <= session.result_credit == CREDIT

    def report(self, agent: bytes, runs: list[int], status: int, *, long: bool = False) -> None:
        granted = self.granted.intersection(runs) if long else set()
        for some in (granted, set(runs) - granted):
            ended = {self.runs[agent].pop(run): run for run in some}
            payload = LONG if some is granted else REFERENCE if long else b"r"
            payload = describe(WorkerDiedError("killed")) if status == Status.LOST else payload
            stored = range(len(ended)) if payload is REFERENCE else ()
            if ended:
                self.driver.done(agent, ended, status, payload, seconds=0.003, stored=stored)

    @rule(name=st.sampled_from(CLIENTS))
    def client_joins(self, name: bytes) -> None:
        peer = name.ljust(16, b".")
        if peer not in self.joined:
            self.joined.add(self.driver.client(name, result_credit=CREDIT))

    @rule(name=st.sampled_from(AGENTS), workers=st.integers(1, 3), gpu=st.booleans())
    def agent_joins(self, name: bytes, workers: int, gpu: bool) -> None:
        if name.ljust(16, b".") not in self.runs:
            self.runs[self.driver.agent(name, workers, ["gpu"] if gpu else [])] = {}
            self.collect()

    @precondition(lambda self: self.joined)
    @rule(
        data=st.data(),
        count=st.integers(1, 20),
        gpu=st.booleans(),
        priority=st.integers(0, 2),
        speculate=st.booleans(),
        retries=st.integers(0, 1),
    )
    def submit(self, data: st.DataObject, count: int, gpu: bool, priority: int, speculate: bool, retries: int) -> None:
        client = data.draw(st.sampled_from(sorted(self.joined)))
        extra: dict[str, Any] = {"capability_names": ("gpu",), "capability_values": (-1,)} if gpu else {}
        for task in self.driver.submit(client, count, priority=priority, speculate=speculate, retries=retries, **extra):
            self.wanted[task] = client
        self.collect()

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def depend(self, data: st.DataObject) -> None:
        need = data.draw(st.sampled_from(sorted(self.wanted)))
        client = self.wanted[need]
        self.dependents += 1
        task = (client[0] << 32) + 2**30 + self.dependents
        self.wanted[task] = client
        submit = Submit((Group(FUNCTION),), (task,), Payloads([b"call"]), dependents=(0,), needs=(need,))
        self.driver.feed(client, submit)
        self.collect()

    def answer(self) -> None:
        """Clients answer what they are asked for."""
        for client in self.joined:
            for asked in self.driver.take(client, messages.NeedInputs):
                statuses = [self.told.get(need, Status.CANCELLED) for need in asked.needs]
                payloads = Payloads([b"r"] * len(statuses))
                self.driver.feed(client, messages.Inputs(asked.tasks, asked.needs, statuses, payloads))
        self.collect()

    @precondition(lambda self: any(self.runs.values()))
    @rule(
        data=st.data(),
        status=st.sampled_from([Status.VALUE, Status.VALUE, Status.RAISED, Status.LOST]),
        long=st.booleans(),
    )
    def work(self, data: st.DataObject, status: int, long: bool) -> None:
        agent = data.draw(st.sampled_from(sorted(agent for agent, runs in self.runs.items() if runs)))
        some = data.draw(st.lists(st.sampled_from(sorted(self.runs[agent])), min_size=1, unique=True))
        self.report(agent, some, status, long=long and status == Status.VALUE)
        self.collect()
        self.answer()

    @precondition(lambda self: self.joined)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.joined)))
        self.driver.feed(client, messages.Release((), freed=self.held.pop(client, 0)))

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.wanted)))
        client = self.wanted.pop(task)
        self.told.pop(task, None)
        self.driver.feed(client, messages.Cancel((task,)))
        self.collect()
        self.answer()

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def operator_cancels(self, data: st.DataObject) -> None:
        self.driver.feed(self.operator, messages.Cancel((data.draw(st.sampled_from(sorted(self.wanted))),)))
        self.collect()
        self.answer()

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), workers=st.integers(0, 2))
    def workers_are_drained(self, data: st.DataObject, workers: int) -> None:
        agent = data.draw(st.sampled_from(sorted(self.runs)))
        self.driver.feed(agent, Resized(min(workers, self.driver.core.state.agents[agent].workers)))
        self.collect()

    @precondition(lambda self: any(self.runs.values()))
    @rule(data=st.data(), blocked=st.booleans())
    def block(self, data: st.DataObject, blocked: bool) -> None:
        agent = data.draw(st.sampled_from(sorted(agent for agent, runs in self.runs.items() if runs)))
        run = data.draw(st.sampled_from(sorted(self.runs[agent])))
        self.driver.feed(agent, messages.Blocked((run,), (blocked,)))
        self.collect()

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        for agent in sorted(self.runs):
            for recall in self.driver.take(agent, messages.Recall):
                runs = sorted(self.runs[agent])[-recall.count :]
                for run in runs:
                    del self.runs[agent][run]
                self.driver.feed(agent, messages.Returned(runs))
        self.collect()

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def agent_dies(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from(sorted(self.runs)))
        del self.runs[agent]
        self.driver.inboxes.pop(agent, None)
        self.driver.feed(agent, PeerLost("killed"))
        self.collect()
        self.answer()

    @precondition(lambda self: self.joined)
    @rule(data=st.data())
    def client_leaves(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.joined)))
        self.joined.discard(client)
        self.held.pop(client, None)
        self.wanted = {task: owner for task, owner in self.wanted.items() if owner != client}
        self.driver.feed(client, PeerLost("left"))
        self.driver.inboxes.pop(client, None)
        self.collect()

    @precondition(lambda self: self.joined)
    @rule(data=st.data())
    def client_reconnects(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.joined)))
        self.driver.feed(client, PeerJoined(Hello(Role.CLIENT, client, 1, session=client[0], epoch=2), True))

    @rule(seconds=st.floats(0.001, 2.0))
    def time_passes(self, seconds: float) -> None:
        self.driver.later(seconds)
        self.collect()

    @invariant()
    def holds(self) -> None:
        self.driver.core.check()

    def teardown(self) -> None:
        """With one able agent that does everything, every task that is still wanted ends."""
        if not hasattr(self, "driver"):
            return
        able = self.driver.agent(b"able", 4, ["gpu"])
        self.runs[able] = {}
        for _ in range(10_000):
            self.collect()
            self.answer()
            busy = [agent for agent, runs in self.runs.items() if runs]
            for agent in busy:
                self.report(agent, list(self.runs[agent]), Status.VALUE)
            if not busy:
                break
            self.driver.later(0.01)
        self.collect()
        assert set(self.wanted) <= set(self.told), "a task never ended"
        assert self.driver.core.state.waiting.count == 0
        for client in self.joined:
            tasks = [task for task, owner in self.wanted.items() if owner == client]
            if tasks:
                self.driver.feed(client, messages.Release(tasks))
        self.driver.later(1.0)
        assert not any(session.tasks for session in self.driver.core.state.sessions.values()), "an id leaked"


def test_any_order(make_driver: type[SchedulerDriver], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaler_scheduler.core.session_ends.TASKS", 2)  # clients leave more than that
    AnyOrder.make_driver = make_driver
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        AnyOrder,
        settings=settings(
            max_examples=examples(40), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
