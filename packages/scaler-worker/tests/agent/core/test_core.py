"""AgentCore over a model of its host: workers that read, run, write, block and die at any moment."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scaler_io.links.effects import Log
from scaler_io.links.events import LinkLost, LinkUp
from scaler_protocol.capacity import ListProcesses, ProcessList
from scaler_protocol.errors import NestingLimitError, restore
from scaler_protocol.handshake import Welcome
from scaler_protocol.ids import function_id, worker_id
from scaler_protocol.messages import (
    Blocked,
    Cancel,
    Done,
    Functions,
    Group,
    NeedFunctions,
    NeedTasks,
    Recall,
    Reconcile,
    Release,
    Resend,
    Returned,
    Run,
    Status,
    Submit,
    Withdraw,
    WorkerState,
)
from scaler_protocol.objects import REFERENCE_BYTES
from scaler_protocol.operations import Drain, Resized
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import LONGEST_RUN_US, NO_PROFILE, profile_at
from scaler_protocol.storage import DeleteObjects
from scaler_worker.agent.core import events
from scaler_worker.agent.core.core import AgentCore
from scaler_worker.agent.core.events import SCHEDULER
from scaler_worker.agent.core.in_flight import READ_BYTES, STILL_SECONDS
from scaler_worker.agent.core.records import GROUP, NO_RUN, AgentConfig, WorkerRecord, run_ids
from scaler_worker.ipc.frames import (
    DatagramReturned,
    FunctionMissing,
    InputMissing,
    OutputWritten,
    RunsEnded,
    WorkerReady,
    WorkerRetired,
    result_name,
)
from support.examples import examples

SESSION = 7 << 32
OTHER_SESSION = 8 << 32
F, G, H = map(function_id, (b"f", b"g", b"h"))
BODIES = {F: b"f", G: b"g", H: b"h"}


class ModelWorker:
    """What a worker process does: reads datagrams in order, runs their tasks in order."""

    def __init__(self, ran: set[int]) -> None:
        self.ran = ran
        """Runs that a worker has executed."""
        self.unread: list[events.SendTasks] = []
        self.current: events.SendTasks | None = None
        self.at = 0
        self.revoked = 0
        self.alive = True
        self.ready = False
        self.word = NO_RUN
        self.knows: set[int] = set()
        self.pending: list[int] = []
        """Revocations whose RunRead is due."""
        self.unsaid: list[Any] = []
        """What is said when storage has an outcome, and what stands behind that."""

    def begin(self) -> None:
        """Read on, if there is something; afterwards the word names the run it is in."""
        if self.current is None and self.unread:
            self.current, self.at = self.unread.pop(0), 0
        if self.current is not None:
            self.word = self.current.entries[self.at][0]

    @property
    def has_revoked(self) -> bool:
        """Whether it does not run its next run, because that is revoked."""
        return self.current is not None and self.revoked >= self.current.sequence and self.at > 0

    def note_executing(self) -> None:
        """The worker dies: note the run that it executes."""
        if self.current is not None and not self.has_revoked:
            run, _, group, *_ = self.current.entries[self.at]
            if run == self.word and group.kind.handle in self.knows:
                self.ran.add(run)

    def step(self, soon: bool = False) -> Any:
        """End the current run, or give back what is revoked; the event of it, if it is said at once and not `soon`."""
        event = self.next_event()
        if event is not None and (soon or self.unsaid):
            self.unsaid.append(event)
            return None
        return event

    def next_event(self) -> Any:
        self.begin()
        if self.current is None:
            return None
        entry = self.current.entries[self.at]
        if self.has_revoked:
            sequence, self.current = self.current.sequence, None
            return DatagramReturned(entry[0], sequence)
        self.at += 1
        if self.at == len(self.current.entries):
            self.current = None
        if entry[2].kind.handle not in self.knows:
            return FunctionMissing(entry[0])
        assert entry[0] not in self.ran, "a run is executed twice"
        self.ran.add(entry[0])
        return RunsEnded([entry[0]], [Status.VALUE], [5], [NO_PROFILE], [b"result"], [])


class Host:
    """An agent's core, and the world around it."""

    def __init__(
        self, workers: int = 2, secret: bytes = b"", unstartable: str = "", gpus: tuple[str, ...] = ()
    ) -> None:
        self.unstartable = unstartable
        """Why no worker can be started."""
        self.started: list[str] = []
        self.failing: set[type] = set()
        """Effects of these types fail, once."""
        has = (("license", 1), ("gpu", len(gpus) or 1))
        self.core = AgentCore(AgentConfig(workers, "agent", "host", secret=secret, consumables=has, gpus=gpus))
        self.now = 100.0
        self.workers: dict[int, ModelWorker] = {}
        self.ran: set[int] = set()
        self.sent: list[Any] = []
        self.logs: list[str] = []
        self.outcomes: Counter[int] = Counter()
        self.tasks_ended: set[int] = set()
        """Tasks without a run that has not ended."""
        self.status: dict[int, int] = {}
        self.returned: set[int] = set()
        self.stopped: list[events.EndAgent] = []
        self.resizes: list[events.ResizeDone] = []
        self.next = 1
        self.chargeable: set[int] = set()
        """Runs whose workers have died in them."""
        self.charged: set[int] = set()
        self.shares_turn = False
        """Whether the next event is handled in one turn with the one after it."""
        self.reads_meanwhile = False
        """Whether the next recall meets an idle worker that reads a datagram after the agent has taken the first."""
        self.handle(SCHEDULER, LinkUp(Welcome(1), False))

    def handle(self, peer: int, event: Any) -> None:
        self.core.handle(peer, event, self.now)
        if self.shares_turn:
            self.shares_turn = False
        else:
            self.settle()

    def settle(self) -> None:
        while effects := self.core.settle(self.now):
            for effect in effects:
                self.perform(effect)
            self.core.check()
        self.core.check()

    def perform(self, effect: Any) -> None:
        if type(effect) in self.failing:
            self.failing.discard(type(effect))
            self.core.handle(SCHEDULER, events.EffectFailed(effect, "OSError: no"), self.now)
        elif isinstance(effect, events.SendToScheduler):
            self.hear(effect.message)
        elif isinstance(effect, events.StartWorker):
            assert effect.worker not in self.workers
            if self.unstartable:
                self.core.handle(SCHEDULER, events.EffectFailed(effect, self.unstartable), self.now)
            else:
                self.workers[effect.worker] = ModelWorker(self.ran)
        elif isinstance(effect, events.EndAgent):
            self.stopped.append(effect)
        elif isinstance(effect, events.ResizeDone):
            self.resizes.append(effect)
        elif isinstance(effect, Log):
            (self.logs if effect.level >= logging.WARNING or "is killed" in effect.text else self.started).append(
                effect.text
            )
        elif not isinstance(effect, events.Relay):
            self.perform_on(self.workers[effect.worker], effect)

    def perform_on(self, worker: ModelWorker, effect: Any) -> None:
        if isinstance(effect, events.Define):
            worker.knows.add(effect.definition.handle)
        elif isinstance(effect, events.SendTasks):
            assert worker.ready and worker.alive
            assert {entry[GROUP].pid for entry in effect.entries} <= {0, 1000 + effect.worker}
            worker.unread.append(events.SendTasks(effect.worker, effect.sequence, list(effect.entries)))
            self.check_shares()
        elif isinstance(effect, events.RecallTail):
            self.recall(effect.worker, worker)
        elif isinstance(effect, events.ReadRun):
            worker.revoked = effect.sequence
            worker.pending.append(effect.sequence)
        elif isinstance(effect, events.ReadCpu):
            self.core.handle(effect.worker, events.CpuRead(0), self.now)
        else:
            # Of a revoked datagram it does nothing more but say so.
            unsaid = [event for event in worker.unsaid if not isinstance(event, DatagramReturned)]
            busy = unsaid or (worker.current is not None and worker.revoked < worker.current.sequence)
            assert isinstance(effect, events.KillWorker) or not (busy or worker.unread)
            worker.alive = False

    def check_shares(self) -> None:
        """No more is taken than there is; runs that need a GPU have one each."""
        flying = [(each, entry[GROUP].takes) for each in self.core.workers for entry in each.entries()]
        assert sum(takes == (("license", 1),) for _, takes in flying) <= 1
        with_gpu = [each for each, takes in flying if takes == (("gpu", 1),)]
        if self.core.workers.gpus:
            assert len({each.gpu for each in with_gpu} - {""}) == len(with_gpu)
        else:
            assert len(with_gpu) <= 1

    def recall(self, number: int, worker: ModelWorker) -> None:
        """Read back what is unread: the agent and the worker read the same socket."""
        recalled: list[events.SendTasks] = []
        replies: list[Any] = []
        if self.reads_meanwhile and worker.current is None and len(worker.unread) > 1:
            self.reads_meanwhile = False
            recalled.append(worker.unread.pop(0))
            if (reply := worker.step()) is not None:
                replies.append(reply)
        recalled += worker.unread
        worker.unread = []
        self.core.handle(number, events.TailRecalled(tuple(each.sequence for each in recalled), ()), self.now)
        run = worker.word
        for reply in replies:
            self.core.handle(number, reply, self.now)
        self.core.handle(number, events.RunSeen(run), self.now)

    def wait_until_due(self) -> None:
        self.now = max(self.now, self.core.due())
        self.settle()

    def hear(self, message: Any) -> None:
        self.sent.append(message)
        if isinstance(message, Done):
            self.outcomes.update(message.runs)
            self.tasks_ended.update(message.tasks)
            self.status.update(zip(message.runs, message.statuses, strict=True))
            for run, status, payload in zip(message.runs, message.statuses, message.results, strict=True):
                if status == Status.LOST and restore(payload).details.get("charged", True):
                    self.charged.add(run)
        elif isinstance(message, Returned):
            self.returned.update(message.runs)

    def run(
        self, count: int, with_body: bool = True, tasks: Sequence[int] = (), call: bytes = b"call", **group: Any
    ) -> range:
        """The scheduler sends runs, of new tasks unless `tasks` are given."""
        count = len(tasks) or count
        runs = range(self.next, self.next + count)
        self.next += count
        function, session = group.pop("function", F), group.pop("session", SESSION)
        body = ([function], ["f"], Payloads([BODIES[function]])) if with_body else ([], [], Payloads([]))
        message = Run(
            runs.start,
            [Group(function, **group)],
            list(tasks) or [session + run for run in runs],
            Payloads([call] * count),
            functions=body[0],
            names=body[1],
            bodies=body[2],
        )
        self.handle(SCHEDULER, message)
        return runs

    def ready(self, number: int) -> None:
        self.workers[number].ready = True
        self.handle(number, WorkerReady(1000 + number))

    def ready_all(self) -> None:
        for number, worker in list(self.workers.items()):
            if worker.alive and not worker.ready:
                self.ready(number)

    def step(self, number: int, soon: bool = False) -> None:
        if event := self.workers[number].step(soon):
            self.handle(number, event)

    def say(self, number: int) -> None:
        """Storage has what the worker puts there."""
        worker = self.workers[number]
        while worker.alive and worker.unsaid:
            self.handle(number, worker.unsaid.pop(0))

    def die(self, number: int) -> None:
        worker = self.workers.pop(number)
        if worker.alive:
            self.chargeable.add(worker.word)
        worker.note_executing()
        self.handle(number, events.WorkerDied("was killed by SIGKILL", worker.word, 5 << 20))
        assert self.charged <= self.chargeable

    def read_run(self, number: int) -> None:
        worker = self.workers[number]
        sequence = worker.pending.pop(0)
        worker.begin()
        self.handle(number, events.RunRead(sequence, worker.word))

    def drain(self) -> None:
        """Let everything come to its end."""
        for _ in range(100_000):
            moved = False
            for number, worker in list(self.workers.items()):
                if not worker.alive:
                    self.die(number)
                elif not worker.ready:
                    self.ready(number)
                elif worker.current is not None or worker.unread:
                    self.step(number)
                elif worker.unsaid:
                    self.say(number)
                else:
                    continue
                moved = True
            if not moved:
                return
        raise AssertionError("no end")


def test_small_runs_go_in_chunks_and_long_ones_alone() -> None:
    host = Host(2)
    host.ready_all()
    runs = host.run(100)
    assert [len(w.unread) for w in host.workers.values()] == [1, 1]
    assert all(len(w.unread[0].entries) == 1 for w in host.workers.values())
    host.step(0)
    assert len(host.workers[0].unread[0].entries) > 40
    host.drain()
    assert host.outcomes == Counter(runs)


def _with_measured_runs(workers: int, micros: int, runs: int) -> Host:
    """A host whose workers are idle but for one, and know how long runs take."""
    host = Host(workers)
    host.ready_all()
    host.run(workers)
    for number, worker in host.workers.items():
        ended = worker.step()
        ended.durations[:] = [micros]
        host.handle(number, ended)
    host.run(runs)
    return host


@pytest.mark.parametrize(("before", "runs", "most"), [(4, 16, 4), (3, 8, 3)])
def test_no_worker_is_sent_much_while_others_end_soon(before: int, runs: int, most: int) -> None:
    host = _with_measured_runs(4, 500, before)
    host.run(runs)
    lengths = [len(each.entries) for worker in host.workers.values() for each in worker.unread]
    assert max(lengths) <= most and sum(lengths) > before, "8 ms of work would be 16 runs"


def _with_a_reclaimed_run(**group: Any) -> tuple[Host, int]:
    """A host whose first worker has returned a run that it is to run all the same, in its next datagram; the run."""
    host = Host(2)
    host.ready_all()
    host.run(2)
    host.drain()
    host.run(100, **group)
    host.workers[0].begin()
    while host.workers[1].unread or host.workers[1].current:
        host.step(1)
    host.now += 1.0
    host.settle()  # worker 0 is overdue and worker 1 is idle
    for _ in range(2):  # worker 1 has as much as it may before the runs of worker 0 are reclaimed
        host.run(1)
    host.read_run(0)
    host.step(0)
    reclaimed = host.workers[0].unread[0].entries[0][0]
    returned = host.workers[0].step()
    assert returned == DatagramReturned(reclaimed, 2)
    host.handle(0, returned)
    return host, reclaimed


def test_a_late_answer_about_a_revoked_datagram_does_not_return_the_next_one() -> None:
    host, _ = _with_a_reclaimed_run()
    host.drain()
    assert host.outcomes == Counter(range(1, host.next)) and not host.logs


def test_a_run_that_a_worker_has_returned_and_runs_now_is_stopped_after_its_timeout() -> None:
    host, run = _with_a_reclaimed_run(timeout_seconds=5.0)
    host.workers[0].begin()
    assert host.workers[0].word == run
    host.now += 5.0
    host.settle()
    assert not host.workers[0].alive
    host.drain()
    assert host.status[run] == Status.FAILED and host.outcomes == Counter(range(1, host.next))


def test_only_the_running_task_is_charged() -> None:
    host = Host(1)
    host.ready_all()
    host.run(1)
    host.step(0)
    runs = host.run(20)
    host.workers[0].begin()
    host.step(0)
    host.workers[0].begin()
    host.die(0)
    assert host.status[runs[1]] == Status.LOST
    done = next(m for m in host.sent if isinstance(m, Done) and Status.LOST in m.statuses)
    error = restore(done.results[0])
    assert "SIGKILL" in str(error) and error.details["peak_memory"] == 5 << 20
    host.drain()
    assert host.outcomes == Counter(range(1, host.next))
    assert Counter(host.status.values())[Status.LOST] == 1


@pytest.mark.parametrize("has_read", [False, True])
@pytest.mark.parametrize("timeout", [0.0, 0.01, 2.0])
def test_a_worker_that_begins_nothing_is_replaced(timeout: float, has_read: bool) -> None:
    """It is stopped, say. Its runs have no part in that, so they are not charged, and run elsewhere."""
    host = Host(1)
    host.ready(0)
    begun = host.now
    runs = host.run(3, timeout_seconds=timeout)
    if has_read:
        host.workers[0].current = host.workers[0].unread.pop(0)
    while host.workers[0].alive:
        host.wait_until_due()
        assert host.now < begun + 3 * STILL_SECONDS
    assert host.now - begun >= 2 * STILL_SECONDS
    assert "is replaced: it has begun no task for 1" in host.logs[-1]
    host.drain()
    assert host.ran == set(runs) and not host.charged and set(host.status.values()) == {Status.VALUE}


def test_a_worker_that_reads_a_long_call_is_given_the_time_for_it() -> None:
    host = Host(1)
    host.ready(0)
    begun = host.now
    host.run(1, call=bytes(5 * READ_BYTES))
    host.workers[0].current = host.workers[0].unread.pop(0)
    while host.workers[0].alive:
        host.wait_until_due()
        assert host.now < begun + 4 * STILL_SECONDS
    assert host.now - begun >= 3 * STILL_SECONDS
    host.drain()
    assert len(host.ran) == 1 and not host.charged


def test_a_worker_that_stands_still_between_two_runs_of_a_datagram_is_replaced() -> None:
    host = Host(1)
    host.ready(0)
    host.run(1)
    host.step(0)
    runs = host.run(3)
    host.step(0)
    ended = host.now
    assert len(_in_flight(host, 0)) == 2 and host.workers[0].current is not None
    while host.workers[0].alive:
        host.wait_until_due()
        assert host.now < ended + 3 * STILL_SECONDS
    host.drain()
    assert host.ran >= set(runs) and not host.charged and set(host.status.values()) == {Status.VALUE}


def test_a_worker_waits_for_storage_as_long_as_that_takes() -> None:
    """Its cell shows a run that it has returned; the result of the one before is in transit."""
    host = Host(2)
    host.ready_all()
    host.run(2)
    host.drain()
    host.run(100)
    host.workers[0].begin()
    while host.workers[1].unread or host.workers[1].current:
        host.step(1)
    host.now += 1.0
    host.settle()
    host.read_run(0)
    host.workers[1].begin()
    host.step(0, soon=True)
    host.step(0)
    assert [type(event) for event in host.workers[0].unsaid] == [RunsEnded, DatagramReturned]
    for _ in range(10):
        host.now += STILL_SECONDS
        host.settle()
    assert host.workers[0].alive and not host.logs
    host.drain()
    assert host.outcomes == Counter(range(1, host.next))


def test_a_worker_that_reads_late_goes_on() -> None:
    host = Host(1)
    host.ready(0)
    for _ in range(5):
        host.run(1)
        host.now += 1.5 * STILL_SECONDS  # the agent was paused as well
        host.settle()
        host.workers[0].begin()
        host.now += 10 * STILL_SECONDS
        host.settle()
        host.step(0)
    assert host.workers[0].alive and len(host.ran) == 5 and not host.logs


def test_a_long_task_keeps_nothing_back() -> None:
    host = Host(2)
    host.ready_all()
    host.run(2)
    host.drain()
    runs = host.run(60)
    host.workers[0].begin()
    while host.workers[1].current or host.workers[1].unread:
        host.step(1)
    host.now += 1.0
    host.settle()
    while host.workers[0].pending:
        host.read_run(0)
    while host.workers[1].current or host.workers[1].unread:
        host.step(1)
    assert len(host.outcomes) == 2 + 59
    host.drain()
    assert host.outcomes == Counter(range(1, runs.stop))


def _in_flight(host: Host, number: int) -> list[int]:
    """The runs that a worker has, as the agent knows."""
    return [entry[0] for entry in host.core.workers.by_number[number].entries()]


def test_a_long_run_of_another_worker_does_not_prolong_the_patience() -> None:
    host = Host(2)
    host.ready_all()
    host.run(2)
    host.drain()
    host.run(100)
    for worker in host.workers.values():
        worker.begin()
    host.now += 0.004
    host.handle(1, RunsEnded([host.workers[1].word], [Status.VALUE], [4_000], [NO_PROFILE], [b"result"], []))
    host.workers[1].at += 1
    host.now += 0.002  # 6 ms are too long for runs that were given as short ones
    host.settle()
    host.read_run(0)
    assert _in_flight(host, 0) == [host.workers[0].word]


def test_runs_behind_an_overdue_one_are_reclaimed_although_no_worker_is_idle() -> None:
    host = Host(2)
    host.ready_all()
    host.run(2)
    host.drain()
    host.run(100)
    for worker in host.workers.values():
        worker.begin()
    words = [worker.word for worker in host.workers.values()]
    host.now += 0.02
    host.settle()
    for number in (0, 1):
        host.read_run(number)
    assert [_in_flight(host, number) for number in (0, 1)] == [[word] for word in words]
    assert host.core.in_flight.waiting.count == 98
    host.run(1)
    assert [_in_flight(host, number) for number in (0, 1)] == [[word] for word in words], "both may take long"
    host.step(1)
    assert len(_in_flight(host, 1)) > 1, "it has ended its run"
    host.drain()
    assert host.outcomes == Counter(range(1, host.next))


def test_nothing_is_given_to_a_worker_behind_a_run_that_takes_long() -> None:
    host = Host(1)
    host.ready_all()
    host.run(1)
    host.drain()
    [long] = host.run(1)
    host.workers[0].begin()
    host.now += 1.0
    host.run(1)
    assert _in_flight(host, 0) == [long]
    host.drain()
    assert host.outcomes == Counter(range(1, host.next))


def test_a_timeout_stops_the_run_it_is_meant_for() -> None:
    host = Host(1)
    host.ready_all()
    runs = host.run(3, timeout_seconds=1.0)
    host.workers[0].begin()
    host.now += 0.5
    host.settle()
    assert host.workers[0].alive
    host.now += 0.6
    host.settle()
    assert not host.workers[0].alive
    host.die(0)
    assert host.status == {runs[0]: Status.FAILED}
    host.drain()
    assert host.outcomes == Counter(runs)


def test_priority_then_depth_then_arrival() -> None:
    host = Host(1)
    low, deep, high = host.run(2), host.run(2, depth=3), host.run(2, priority=1)
    host.ready_all()
    host.drain()
    assert list(host.outcomes) == [*high, *deep, *low]


def busy_host(workers: int) -> tuple[Host, range]:
    """Workers that are in a run of about 10 ms, with another one sent ahead to each; more wait. All are of SESSION."""
    host = Host(workers)
    host.ready_all()
    host.core.functions.groups([Group(F)])[0].kind.estimate = 10_000.0
    runs = host.run(4 * workers)
    for worker in host.workers.values():
        worker.begin()
        assert len(worker.unread) == 1
    return host, runs


def sent_ahead(host: Host) -> list[int]:
    """The runs that workers have not read yet."""
    return [entry[0] for worker in host.workers.values() for sent in worker.unread for entry in sent.entries]


@pytest.mark.parametrize("group", [{"priority": 1}, {"session": OTHER_SESSION}], ids=["priority", "client"])
def test_a_single_call_goes_before_what_was_sent_ahead(group: dict[str, Any]) -> None:
    host, _ = busy_host(2)
    host.now += 0.001
    host.step(1)  # so worker 0 ends its run first
    host.workers[1].begin()
    [single] = host.run(1, **group)
    assert [sent.entries[0][0] for sent in host.workers[0].unread] == [single]
    host.step(0)
    host.step(0)
    assert host.outcomes[single] == 1
    host.drain()
    assert set(host.outcomes.values()) == {1}


def test_what_was_sent_ahead_stays_for_a_client_that_has_runs_here_already() -> None:
    host, runs = busy_host(2)
    first, second = host.run(2, session=OTHER_SESSION)
    assert (first in sent_ahead(host), second in sent_ahead(host)) == (True, False)
    before = sent_ahead(host)
    host.now += 0.001
    host.settle()
    assert sent_ahead(host) == before
    host.drain()
    assert host.outcomes == Counter([*runs, first, second])


def test_clients_that_have_one_run_each_do_not_push_each_other_aside() -> None:
    host = Host(1)
    host.ready_all()
    host.core.functions.groups([Group(F)])[0].kind.estimate = 10_000.0
    runs = [host.run(1, session=number << 32)[0] for number in range(10, 14)]
    host.drain()
    assert list(host.outcomes) == runs


def test_a_client_goes_before_no_nested_run_that_was_sent_ahead() -> None:
    host, _ = busy_host(2)
    nested = host.run(2, depth=1)
    host.step(0)
    host.step(1)
    for worker in host.workers.values():
        worker.begin()
    assert set(nested) <= set(sent_ahead(host))
    [single] = host.run(1, session=OTHER_SESSION)
    assert set(nested) <= set(sent_ahead(host))
    host.drain()
    assert host.outcomes[single] == 1


def test_clients_take_turns() -> None:
    host = Host(1)
    host.core.functions.groups([Group(F)])[0].kind.estimate = 10_000.0
    flood, late = host.run(6), host.run(2, session=OTHER_SESSION)
    host.ready_all()
    host.drain()
    assert list(host.outcomes) == [flood[0], late[0], flood[1], late[1], *flood[2:]]


def test_a_blocked_parent_gives_its_place_and_its_tail_away() -> None:
    host = Host(1)
    host.ready_all()
    [parent] = host.run(1)
    host.workers[0].begin()
    host.handle(0, Submit([Group(b"g" * 16)], [9 << 32], Payloads([b""]), parent=parent))
    host.handle(0, Blocked((parent,), (True,)))
    assert any(isinstance(m, Blocked) for m in host.sent)
    assert len(host.workers) == 3
    host.ready_all()
    child = host.run(1, depth=1)
    host.step(1)
    host.step(2)
    assert host.outcomes[child[0]] == 1
    host.handle(0, Blocked((parent,), (False,)))
    host.step(0)
    assert host.outcomes[parent] == 1
    host.now += 11.0
    host.settle()
    assert sum(worker.alive for worker in host.workers.values()) == 1


@pytest.mark.parametrize("reported", [True, False])
def test_a_parent_whose_predecessor_s_reply_is_held_back_gives_its_place_away(reported: bool) -> None:
    """The worker has begun the parent, whose messages overtake the reply."""
    host = Host(1)
    host.ready_all()
    host.run(10)
    host.drain()
    first, parent = host.run(2)
    worker, child, other = host.workers[0], 9 << 32, (9 << 32) + 1
    assert worker.step(soon=True) is None
    worker.begin()
    assert worker.word == parent
    host.handle(0, Submit([Group(b"g" * 16)], [child, other], Payloads([b"", b""]), parent=parent))
    host.handle(SCHEDULER, Done([other], [0], Payloads([b"x"])))
    if reported:
        host.handle(0, Blocked((parent,), (True,)))
    assert not any(isinstance(m, Blocked) for m in host.sent)
    host.handle(0, worker.unsaid.pop(0))
    assert host.outcomes[first] == 1
    for _ in range(3):
        host.now += 0.06
        host.settle()
    assert [list(m.runs) for m in host.sent if isinstance(m, Blocked)] == [[parent]]
    record = host.core.workers.by_number[0]
    assert record.blocked and record.children == {child} and not record.early
    assert len(host.workers) == 3, "another worker is started for the child"


def test_a_parent_that_waits_without_saying_so_is_found_out() -> None:
    host = Host(1)
    host.ready_all()
    [parent] = host.run(1)
    host.workers[0].begin()
    host.handle(0, Submit([Group(b"g" * 16)], [9 << 32], Payloads([b""]), parent=parent))
    for _ in range(3):
        host.now += 0.06
        host.settle()
    assert [list(m.runs) for m in host.sent if isinstance(m, Blocked)] == [[parent]]


def test_too_many_blocked_parents() -> None:
    host = Host(1)
    host.core.handle(SCHEDULER, events.MemoryRead(True), host.now)
    host.ready_all()
    [parent] = host.run(1)
    host.workers[0].begin()
    host.handle(0, Blocked((parent,), (True,)))
    assert not host.workers[0].alive
    host.die(0)
    done = next(m for m in host.sent if isinstance(m, Done))
    assert type(restore(done.results[0])).__name__ == "NestingLimitError"


def test_nested_outcomes_find_their_worker() -> None:
    host = Host(1)
    host.ready_all()
    [parent] = host.run(1)
    host.workers[0].begin()
    task = 9 << 32
    host.handle(0, Submit([Group(b"g" * 16)], [task], Payloads([b""]), parent=parent))
    host.core.handle(SCHEDULER, Done([task], [0], Payloads([b"x"])), host.now)
    effects = host.core.settle(host.now)
    assert [effect.worker for effect in effects if isinstance(effect, events.Relay)] == [0]
    host.die(0)
    host.core.handle(SCHEDULER, Done([task], [0], Payloads([b"x"])), host.now)
    assert not [effect for effect in host.core.settle(host.now) if isinstance(effect, events.Relay)]


def test_a_message_that_can_not_be_taken_in_fails_its_runs_alone() -> None:
    host = Host(1)
    host.ready_all()
    host.handle(SCHEDULER, Run(900, [Group(b"f")], [SESSION + 1], Payloads([b"call"]), task_groups=[7]))
    assert host.status == {900: Status.FAILED}
    runs = host.run(2)
    host.drain()
    assert host.outcomes == Counter([900, *runs])


def test_workers_that_never_get_ready_end_the_agent() -> None:
    host = Host(1)
    for _ in range(5):
        host.die(next(iter(host.workers)))
        host.wait_until_due()
    assert host.stopped[0].code == 1


def test_workers_that_do_not_get_ready_any_more_are_started_again_and_again() -> None:
    host = Host(2)
    host.ready_all()
    runs = host.run(3)
    host.workers[0].begin()
    for _ in range(20):
        for number in list(host.workers):
            host.die(number)
        host.wait_until_due()
    assert not host.stopped and sum("cannot be started" in line for line in host.logs) == 1
    host.ready_all()
    assert "can be started again" in host.started[-1]
    host.drain()
    assert set(host.outcomes) == set(runs)


def test_a_worker_that_can_not_be_started_is_tried_again_later_each_time() -> None:
    host = Host(2, unstartable="Too many open files")
    asked = []
    for _ in range(12):
        asked.append(host.now)
        assert host.workers == {} and not host.stopped
        host.wait_until_due()
    pauses = [later - sooner for sooner, later in itertools.pairwise(asked)]
    assert pauses == sorted(pauses) and pauses[0] < 0.1 and pauses[-1] == pytest.approx(5.0)
    assert len(host.logs) == 1 and "Too many open files" in host.logs[0]
    host.unstartable = ""
    runs = host.run(4)
    host.wait_until_due()
    host.ready_all()
    host.drain()
    assert host.outcomes == Counter(runs)


def test_no_parent_is_ended_because_workers_can_not_be_started_for_a_moment() -> None:
    """As when a template has died, and the next one is there soon."""
    host = Host(1)
    host.ready_all()
    [parent] = host.run(1)
    host.workers[0].begin()
    host.unstartable = "the template ended"
    host.handle(0, Blocked((parent,), (True,)))
    [child] = host.run(1, depth=1)
    for _ in range(3):
        host.wait_until_due()
    host.unstartable = ""
    assert host.workers[0].alive
    host.wait_until_due()
    host.ready_all()
    host.drain()
    assert host.outcomes == Counter([parent, child])


def test_where_no_worker_can_be_started_for_children_their_parent_is_ended() -> None:
    host = Host(1)
    host.ready_all()
    [parent] = host.run(1)
    host.workers[0].begin()
    host.unstartable = "Too many open files"
    host.handle(0, Blocked((parent,), (True,)))
    [child] = host.run(1, depth=1)
    since = host.now
    while host.workers[0].alive:
        host.wait_until_due()
    assert host.now < since + 10
    host.unstartable = ""
    host.die(0)
    done = next(m for m in host.sent if isinstance(m, Done))
    error = restore(done.results[0])
    assert isinstance(error, NestingLimitError) and "Too many open files" in str(error)
    while not host.workers:
        host.wait_until_due()
    host.ready_all()
    host.drain()
    assert host.outcomes == Counter([parent, child])


def test_output_is_sent_ahead_of_the_outcome() -> None:
    host = Host(1)
    host.ready_all()
    [run] = host.run(1, stream_output=1)
    host.workers[0].begin()
    host.core.handle(0, OutputWritten(run, 1, b"hello"), host.now)
    host.step(0)
    kinds = [type(message).__name__ for message in host.sent]
    assert kinds.index("Output") < kinds.index("Done")


def test_lost_for_good() -> None:
    host = Host(1)
    host.handle(SCHEDULER, LinkLost("silence"))
    assert host.stopped[0].code == 1 and "silence" in host.stopped[0].reasons[0]


def test_kept_until_released() -> None:
    host = Host(1)
    host.ready_all()
    runs = host.run(3)
    host.drain()
    host.handle(SCHEDULER, Release([SESSION + runs[0]]))
    host.handle(SCHEDULER, LinkUp(Welcome(5), False))
    [resume] = [message for message in host.sent if isinstance(message, Reconcile)]
    assert set(resume.finished) == {SESSION + runs[1], SESSION + runs[2]} and not resume.running
    host.handle(SCHEDULER, Resend([SESSION + run for run in runs]))
    assert host.outcomes == Counter({runs[0]: 1, runs[1]: 2, runs[2]: 2})


def test_an_outcome_that_waits_for_company_is_not_in_its_message_again() -> None:
    """A message that names a run twice is malformed, and its agent would have to end."""
    host = Host(1)
    host.ready_all()
    [run] = host.run(1)
    host.core.handle(0, RunsEnded([run], [Status.VALUE], [5], [NO_PROFILE], [b"result"], []), host.now)
    for _ in range(2):
        host.core.handle(SCHEDULER, Resend([SESSION + run]), host.now)
    host.settle()
    assert host.outcomes == Counter([run])


def test_an_object_that_nobody_wants_is_told_of_all_the_same() -> None:
    host = Host(1)
    host.ready_all()
    runs = host.run(2)
    host.workers[0].begin()
    host.handle(SCHEDULER, Withdraw(list(runs)))
    assert host.outcomes == Counter(runs)
    [given, *_] = host.workers[0].current.entries if host.workers[0].current else []
    reference = bytes(REFERENCE_BYTES)
    ended = RunsEnded([given[0]], [Status.VALUE], [5], [NO_PROFILE], [reference], [0])
    host.handle(0, ended)
    done = host.sent[-1]
    assert isinstance(done, Done) and (done.runs, done.stored, list(done.results)) == ([given[0]], [0], [reference])


def test_an_outcome_is_not_kept_when_the_task_runs_again() -> None:
    host = Host(1)
    host.ready_all()
    [first] = host.run(1)
    host.drain()
    [again] = host.run(1, tasks=[SESSION + first])
    host.handle(SCHEDULER, Resend([SESSION + first]))
    assert host.outcomes == Counter([first])
    host.drain()
    host.handle(SCHEDULER, Resend([SESSION + first]))
    assert host.outcomes == Counter([first, again, again])


def test_the_outcome_of_a_withdrawn_run_does_not_replace_that_of_a_newer_run() -> None:
    host = Host(2)
    host.ready_all()
    [old] = host.run(1)
    [number] = [number for number, worker in host.workers.items() if worker.unread]
    host.workers[number].begin()
    host.handle(SCHEDULER, Withdraw([old]))
    [new] = host.run(1, tasks=[SESSION + old])
    host.step(1 - number)
    reference = bytes(REFERENCE_BYTES)
    host.handle(number, RunsEnded([old], [Status.VALUE], [5], [NO_PROFILE], [reference], [0]))
    done = host.sent[-1]
    assert isinstance(done, Done) and done.runs == [old], "its object is to be deleted"
    host.handle(SCHEDULER, Resend([SESSION + old]))
    done = host.sent[-1]
    assert isinstance(done, Done) and (done.runs, list(done.results)) == ([new], [b"result"])


@pytest.mark.parametrize("ended", [0, 1])
@pytest.mark.parametrize("word", [0, 77, 2**64 - 1])
def test_a_run_that_wrote_over_its_word_is_charged(ended: int, word: int) -> None:
    host = Host(1)
    host.ready_all()
    for _ in range(ended):
        host.run(1)
        host.step(0)
    (run,) = host.run(1)
    worker = host.workers.pop(0)
    worker.begin()
    host.handle(0, events.WorkerDied("was killed by SIGSEGV", word, 0))
    assert host.status[run] == Status.LOST


@pytest.mark.parametrize("stopped", [False, True])
def test_runs_that_ended_and_were_not_reported_are_lost_with_their_worker_and_not_charged(stopped: bool) -> None:
    """Their results were in transit to storage: another run of each is another attempt, which the scheduler counts."""
    host = Host(1, secret=b"secret")
    host.ready_all()
    host.run(1)
    host.drain()  # they are known to be short
    runs = host.run(4)
    host.step(0, soon=True)
    host.step(0)
    host.workers[0].begin()
    assert host.workers[0].word == runs[2] and not host.outcomes.keys() & set(runs)
    if stopped:
        host.core.in_flight.corrupted(host.core.workers.by_number[0], None, host.now)
        host.settle()
    host.die(0)
    assert [host.status[run] for run in runs[:3]] == [Status.LOST] * 3
    assert host.charged == (set() if stopped else {runs[2]})
    unsaid = [message for message in host.sent if isinstance(message, DeleteObjects)]
    assert [message.objects for message in unsaid] == [
        (result_name(b"secret", SESSION + run, run, 1000),) for run in runs[:3]
    ]
    host.drain()
    assert host.status[runs[3]] == Status.VALUE, "it was behind the one in which the worker died"


def test_runs_before_a_revoked_one_are_lost_with_their_worker() -> None:
    host = Host(1)
    host.ready_all()
    host.run(1)
    host.drain()
    runs = host.run(4)
    worker = host.workers[0]
    worker.begin()
    host.now += 1.0
    host.settle()
    host.read_run(0)
    assert worker.step(soon=True) is None
    worker.begin()
    assert worker.word == runs[1] and worker.has_revoked and not worker.unread
    host.die(0)
    assert host.status[runs[0]] == Status.LOST and not host.charged
    host.drain()
    assert [host.status[run] for run in runs[1:]] == [Status.VALUE] * 3


def test_a_run_that_is_stored_does_not_end_the_one_behind_it() -> None:
    host = Host(1)
    host.ready_all()
    host.run(1)
    host.drain()
    first, second = host.run(2, timeout_seconds=1.0)
    host.step(0, soon=True)
    host.workers[0].begin()
    host.now += 2.0
    host.settle()
    host.handle(SCHEDULER, Withdraw([first]))
    host.now += 2.0
    host.settle()
    assert host.workers[0].alive and host.status[first] == Status.CANCELLED and second not in host.status
    host.say(0)
    host.now += 2.0
    host.settle()
    assert not host.workers[0].alive
    host.drain()
    assert host.status[second] == Status.FAILED


def test_what_a_dead_worker_may_have_stored_is_named() -> None:
    host = Host(1, secret=b"secret")
    host.ready_all()
    runs = host.run(2)
    host.workers[0].begin()
    host.die(0)
    [unsaid] = [message for message in host.sent if isinstance(message, DeleteObjects)]
    assert unsaid == DeleteObjects((result_name(b"secret", SESSION + runs[0], runs[0], 1000),), SESSION >> 32)


@pytest.mark.parametrize("moment", ["waiting", "parked", "given"])
def test_withdrawn_anywhere_is_cancelled_at_once(moment: str) -> None:
    host = Host(1)
    if moment != "waiting":
        host.ready_all()
    runs = host.run(3, with_body=moment != "parked")
    if moment == "given":
        host.workers[0].begin()
    host.handle(SCHEDULER, Withdraw(list(runs)))
    assert host.outcomes == Counter(runs) and set(host.status.values()) == {Status.CANCELLED}
    host.drain()
    assert host.outcomes == Counter(runs)


@pytest.mark.parametrize("limited", [False, True])
def test_a_withdrawn_run_says_how_long_it_has_occupied_its_worker(limited: bool) -> None:
    """The time counts for the share of its client. Those behind it have not begun."""
    host = Host(1)
    host.ready_all()
    (first,), (second,) = host.run(1, **(LIMITED if limited else {})), host.run(1)
    host.workers[0].begin()
    host.now += 3.0
    host.handle(SCHEDULER, Withdraw([first, second]))
    host.drain()
    durations = {
        run: profile_at(done.profiles, at).duration_us
        for done in host.sent
        if isinstance(done, Done)
        for at, run in enumerate(done.runs)
    }
    assert durations == {first: 3_000_000, second: 0}


def test_a_cancelled_run_of_a_function_that_is_usually_quick_is_stopped() -> None:
    host = Host(1)
    host.ready_all()
    for _ in range(3):
        host.run(1)
        host.step(0)
    (run,) = host.run(1)
    host.workers[0].begin()
    host.handle(SCHEDULER, Withdraw([run]))
    assert host.workers[0].alive, "it may be about to end"
    for _ in range(3):
        host.now = max(host.now, host.core.due())
        host.settle()
    assert not host.workers[0].alive


def test_a_spare_worker_does_not_hide_that_a_parent_waits() -> None:
    host = Host(1)
    host.ready_all()
    (first,) = host.run(1)
    host.workers[0].begin()
    host.handle(0, Blocked((first,), (True,)))
    host.ready_all()
    (second,) = host.run(1)
    (number,) = [number for number, worker in host.workers.items() if number and worker.unread]
    host.workers[number].begin()
    host.handle(number, Submit((Group(b"f" * 16),), [8 << 32], Payloads([b"call"]), parent=second))
    host.core.workers.by_number[5] = spare = WorkerRecord(5, "spare")
    host.core.workers.ready(spare, 1005, host.now)
    for _ in range(3):
        host.now += 0.06
        host.settle()
    assert host.core.workers.by_number[number].blocked


def test_another_scheduler_is_told_who_is_blocked_and_asked_for_functions() -> None:
    host = Host(2)
    host.ready_all()
    (parent,) = host.run(1)
    (number,) = [number for number, worker in host.workers.items() if worker.unread]
    host.workers[number].begin()
    host.handle(number, Blocked((parent,), (True,)))
    host.run(1, with_body=False, function=G)
    host.sent.clear()
    host.handle(SCHEDULER, LinkUp(Welcome(2), True))
    assert not host.sent, "the scheduler knows"
    host.handle(SCHEDULER, LinkUp(Welcome(2), False))
    resume, blocked, need = host.sent
    assert isinstance(resume, Reconcile) and parent in resume.runs
    assert blocked == Blocked([parent], [True])
    assert isinstance(need, NeedFunctions) and need.functions == (G,)


def test_runs_of_a_function_that_is_replaced_fail_alone() -> None:
    host = Host(2)
    host.ready_all()
    replaced, honest = host.run(1, with_body=False), host.run(1, with_body=False, function=G)
    host.handle(SCHEDULER, Functions([F], ["f"], Payloads([b"another"])))
    assert host.status == {replaced[0]: Status.FAILED}
    host.handle(SCHEDULER, Functions([G], ["f"], Payloads([BODIES[G]])))
    host.drain()
    assert host.status[honest[0]] == Status.VALUE


def test_runs_that_bring_another_function_fail() -> None:
    host = Host(1)
    host.ready_all()
    forged = Run(
        900, [Group(F)], [SESSION + 1], Payloads([b"call"]), functions=[F], names=["f"], bodies=Payloads([b"x"])
    )
    host.handle(SCHEDULER, forged)
    assert host.status == {900: Status.FAILED}
    assert not host.core.functions.parked_entries()


def test_orphans_are_given_up() -> None:
    host = Host(1)
    host.handle(SCHEDULER, Done((9 << 32,), (Status.VALUE,), Payloads([b"r"])))
    host.handle(SCHEDULER, NeedTasks((9 << 32,)))
    assert host.sent == [Release((9 << 32,)), Cancel((9 << 32,))]


def test_nothing_is_asked_of_a_worker_that_has_just_died() -> None:
    host = Host(1)
    host.ready_all()
    (run,) = host.run(1)
    host.workers[0].begin()
    host.core.handle(SCHEDULER, Withdraw([run]), host.now)
    host.core.handle(0, events.WorkerDied("was killed by SIGKILL", run), host.now)
    del host.workers[0]
    host.settle()
    assert host.status[run] == Status.CANCELLED


def test_a_drained_worker_ends_its_run_and_gives_back_the_rest() -> None:
    host = Host(2)
    host.ready_all()
    warm = host.run(2)
    host.drain()
    runs = host.run(100)
    for worker in host.workers.values():
        worker.begin()
    host.handle(SCHEDULER, Drain(1, 1000))
    host.handle(SCHEDULER, Drain(1, 1000))  # once is enough
    host.handle(SCHEDULER, Drain(1, 77))
    assert [message.workers for message in host.sent if isinstance(message, Resized)] == [1]
    current = host.workers[0].word
    host.read_run(0)
    assert [entry[0] for entry in host.core.workers.by_number[0].entries()] == [current]
    host.drain()
    assert list(host.workers) == [1] and set(host.outcomes) == {*warm, *runs} and not host.returned
    host.sent.clear()
    host.handle(SCHEDULER, LinkUp(Welcome(5), False))
    assert Resized(1) in host.sent


def pinned(pid: int) -> dict[str, Any]:
    """The group of runs that only this process may run."""
    return {"worker": worker_id(bytes(16), pid)}


def test_a_pinned_run_is_the_next_one_of_its_worker_and_of_no_other() -> None:
    host = Host(2)
    host.ready_all()
    host.run(2)
    host.drain()
    others = host.run(40, priority=5)
    for worker in host.workers.values():
        worker.begin()
    busy = host.workers[1].word
    [mine] = host.run(1, function=G, **pinned(1001))
    host.read_run(1)
    assert [entry[0] for entry in host.core.workers.by_number[1].entries()] == [busy]
    before = set(host.outcomes)
    while mine not in host.outcomes:
        host.step(1)
    assert set(host.outcomes) - before == {busy, mine}, "it goes before all that waits, whatever its priority"
    host.drain()
    assert {run: host.status[run] for run in (mine, *others)} == dict.fromkeys((mine, *others), Status.VALUE)


def test_a_pinned_run_fails_with_its_worker() -> None:
    host = Host(2)
    host.ready_all()
    [first] = host.run(1, **pinned(1000))
    [second] = host.run(1, **pinned(1000))
    [unknown] = host.run(1, **pinned(77))
    assert host.status == {unknown: Status.FAILED}
    host.workers[0].begin()
    host.die(0)
    assert host.status == {unknown: Status.FAILED, first: Status.LOST, second: Status.FAILED}
    host.ready_all()
    runs = [*host.run(1, **pinned(1001)), *host.run(1, **pinned(1001))]
    host.workers[1].begin()
    host.handle(SCHEDULER, Drain(1, 1001))
    assert host.status[runs[1]] == Status.FAILED, "its worker takes no more runs"
    host.drain()
    assert host.status[runs[0]] == Status.VALUE


def test_a_pinned_run_behind_a_blocked_one_takes_no_slot() -> None:
    """The scheduler would find no room for the children that the blocked one waits for."""
    host = Host(1)
    host.ready_all()
    [parent] = host.run(1)
    host.workers[0].begin()
    [early] = host.run(1, **pinned(1000))
    assert not any(isinstance(message, Blocked) for message in host.sent)
    host.handle(0, Blocked((parent,), (True,)))
    [late] = host.run(1, **pinned(1000))
    assert told_blocked(host) == {parent: True, early: True, late: True}
    host.sent.clear()
    host.handle(SCHEDULER, LinkUp(Welcome(5), False))
    assert told_blocked(host) == {parent: True, early: True, late: True}
    host.sent.clear()
    host.handle(0, Blocked((parent,), (False,)))
    host.step(0)
    assert told_blocked(host) == {parent: False, early: False}, "the worker has begun with the first one"
    host.drain()
    assert told_blocked(host)[late] is False
    assert {run: host.status[run] for run in (parent, early, late)} == dict.fromkeys(
        (parent, early, late), Status.VALUE
    )


def told_blocked(host: Host) -> dict[int, bool]:
    """What the scheduler was told last of each run."""
    told = [message for message in host.sent if isinstance(message, Blocked)]
    return {run: flag for message in told for run, flag in zip(message.runs, message.blocked, strict=True)}


def test_a_pinned_run_is_withdrawn_parked_and_told_to_another_scheduler() -> None:
    host = Host(1)
    host.ready_all()
    [busy] = host.run(1)
    [withdrawn, parked] = [*host.run(1, **pinned(1000)), *host.run(1, function=G, with_body=False, **pinned(1000))]
    host.handle(SCHEDULER, Withdraw((withdrawn,)))
    assert host.status == {withdrawn: Status.CANCELLED}
    host.handle(SCHEDULER, LinkUp(Welcome(5), False))
    assert [m.runs for m in host.sent if isinstance(m, Reconcile)] == [[busy, parked]]
    host.drain()
    host.handle(SCHEDULER, Functions([G], ["g"], Payloads([BODIES[G]])))
    host.drain()
    assert host.status[parked] == Status.VALUE


# --- what the host has a quantity of --------------------------------------------------------------------------------

LIMITED: dict[str, Any] = {"capability_names": ("license",), "capability_values": (1,)}
NEEDING_GPU: dict[str, Any] = {"capability_names": ("gpu",), "capability_values": (1,)}


def running(host: Host) -> set[int]:
    """The runs that are at workers."""
    return {run for worker in host.core.workers for run in run_ids(worker.entries())}


def test_a_run_waits_until_what_it_takes_is_free_and_others_do_not() -> None:
    host = Host(3)
    host.ready_all()
    first, second = host.run(2, **LIMITED)
    others = host.run(2)
    assert running(host) == {first, *others}
    for worker in host.workers.values():
        worker.begin()
    host.handle(SCHEDULER, Withdraw((first,)))
    assert not host.status, "the process of the first one is not gone yet"
    assert second not in running(host)
    host.handle(SCHEDULER, LinkUp(Welcome(5), False))
    [told] = [message for message in host.sent if isinstance(message, Reconcile)]
    assert first not in told.runs
    takers = zip(told.takers, told.taken_names, told.taken_values, strict=True)
    assert sorted(takers) == [(first, "license", 1), (second, "license", 1)]
    killed = next(number for number, worker in host.workers.items() if not worker.alive)
    host.die(killed)
    assert host.status == {first: Status.CANCELLED}
    host.ready_all()
    assert second in running(host)
    host.drain()
    assert host.status[second] == Status.VALUE


def test_what_takes_of_the_cluster_only_starts_at_once_and_is_not_over_before_its_process() -> None:
    host = Host(2)
    host.ready_all()
    runs = host.run(2, capability_names=("seat",), capability_values=(3,))
    assert running(host) == set(runs)
    host.workers[0].begin()
    host.handle(SCHEDULER, Withdraw(runs))
    assert len(host.status) == 1, "one was not read by its worker yet"
    host.die(0)
    assert host.status == dict.fromkeys(runs, Status.CANCELLED)


def test_a_worker_is_kept_free_for_a_run_whose_share_is_free() -> None:
    host = Host(1)
    host.ready_all()
    host.run(1)
    host.drain()
    short = [*host.run(1), *host.run(1), *host.run(1), *host.run(1)]
    assert running(host) == set(short[:2]), "one is sent ahead"
    [limited] = host.run(1, **LIMITED)
    while limited not in host.outcomes:
        host.step(0)
    assert not set(short[2:]) & set(host.outcomes), "it waits for what the worker has been sent, and for nothing else"
    host.drain()
    assert set(short) <= set(host.outcomes)


def test_a_run_that_waits_for_its_share_is_returned_withdrawn_parked_and_told_to_another_scheduler() -> None:
    host = Host(2)
    host.ready_all()
    [begun] = host.run(1, function=G, with_body=False, **LIMITED)
    host.handle(SCHEDULER, Functions([G], ["g"], Payloads([BODIES[G]])))
    withdrawn, told, last = host.run(3, **LIMITED)
    assert running(host) == {begun}
    host.handle(SCHEDULER, Withdraw((withdrawn,)))
    host.handle(SCHEDULER, LinkUp(Welcome(5), False))
    assert [m.runs for m in host.sent if isinstance(m, Reconcile)] == [[begun, told, last]]
    host.handle(SCHEDULER, Recall(1))
    assert host.returned == {last}
    host.handle(SCHEDULER, Drain(1, 0))
    assert host.returned == {last, told}
    host.drain()
    assert host.status == {withdrawn: Status.CANCELLED, begun: Status.VALUE}


def gpus(host: Host) -> list[str]:
    """What the living workers see, by number."""
    return [worker.gpu for worker in host.core.workers if host.workers[worker.number].alive]


def test_workers_see_a_gpu_each_and_those_beyond_none() -> None:
    host = Host(4, gpus=("2", "GPU-a"))
    assert gpus(host) == ["2", "GPU-a", "", ""]
    host.ready_all()
    plain = [*host.run(1), *host.run(1)]
    assert {worker.gpu for worker in host.core.workers if worker.datagrams} == {""}, "the others are left to those"
    [first], [second], [third] = host.run(1, **NEEDING_GPU), host.run(1, **NEEDING_GPU), host.run(1, **NEEDING_GPU)
    assert running(host) == {*plain, first, second}
    host.workers[0].begin()
    host.die(0)
    assert gpus(host)[-1] == "2", "the next worker sees what the last one saw"
    host.drain()
    assert host.status[third] == Status.VALUE


def test_a_resized_agent_keeps_the_workers_that_see_a_gpu() -> None:
    host = Host(4, gpus=("0", "1"))
    host.ready_all()
    host.handle(SCHEDULER, events.ResizeRequested(2))
    assert gpus(host) == ["0", "1"]


def test_a_child_has_the_gpu_that_its_parent_only_sees() -> None:
    host = Host(1, gpus=("0",))
    host.ready_all()
    [parent] = host.run(1)
    host.workers[0].begin()
    host.handle(0, Blocked((parent,), (True,)))
    host.ready_all()
    [child] = host.run(1, depth=1, **NEEDING_GPU)
    assert running(host) == {parent, child}
    host.drain()
    assert host.status[child] == Status.VALUE


def test_another_worker_is_started_where_no_idle_one_sees_the_gpu() -> None:
    host = Host(2, gpus=("0",))
    host.ready_all()
    other, parent = [*host.run(1), *host.run(1)]
    host.workers[1].begin()
    host.handle(1, Blocked((other,), (True,)))
    host.ready_all()
    host.handle(1, Blocked((other,), (False,)))
    host.step(1)
    host.workers[0].begin()
    host.handle(0, Blocked((parent,), (True,)))
    assert [worker.number for worker in host.core.workers if worker.gpu] == [0], "enough workers are idle"
    [child] = host.run(1, depth=1, **NEEDING_GPU)
    host.ready_all()
    assert child in running(host)
    host.drain()
    host.handle(0, Blocked((parent,), (False,)))
    host.drain()
    host.now += 11.0
    host.settle()
    assert sorted(gpus(host)) == ["", "0"], "of two that see one GPU one is ended"


def test_processes_are_listed_once_each_slot_has_one() -> None:
    host = Host(2)
    host.handle(SCHEDULER, ListProcesses(9))
    host.ready(0)
    assert not any(isinstance(message, ProcessList) for message in host.sent)
    host.ready(1)
    assert ProcessList(9, [1000, 1001], ["Worker[0]", "Worker[1]"]) in host.sent
    host.handle(0, WorkerRetired("it was asked to"))
    host.handle(SCHEDULER, ListProcesses(10))
    assert not any(message.request == 10 for message in host.sent if isinstance(message, ProcessList))
    host.unstartable = "no memory"
    host.die(0)
    assert ProcessList(10, [1001], ["Worker[1]"]) in host.sent, "no other can be started"


def test_processes_are_listed_once_others_have_taken_the_places_of_those_that_end() -> None:
    host = Host(2)
    host.ready_all()
    host.handle(SCHEDULER, ListProcesses(1, [worker_id(b"a" * 16, 1000)]))
    host.handle(SCHEDULER, ListProcesses(2, [worker_id(b"a" * 16, 77)]))
    assert [message.request for message in host.sent if isinstance(message, ProcessList)] == [2]
    host.die(0)
    assert [message.request for message in host.sent if isinstance(message, ProcessList)] == [2], "one is missing"
    host.ready_all()
    assert [message.request for message in host.sent if isinstance(message, ProcessList)] == [2, 1]


@pytest.mark.parametrize("was_asked", [True, False])
def test_a_worker_that_was_asked_to_end_has_not_died(was_asked: bool) -> None:
    host = Host(1)
    host.ready_all()
    host.handle(0, WorkerRetired("ann restarts the workers", was_asked))
    host.die(0)
    assert len(host.core.workers.deaths) == (not was_asked)
    said = [any("ann restarts the workers" in text for text in texts) for texts in (host.started, host.logs)]
    assert said == [was_asked, not was_asked]


def test_an_agent_whose_last_worker_is_drained_gives_back_what_waits_and_ends() -> None:
    host = Host(1)
    host.ready_all()
    first = host.run(1)
    rest = host.run(10, function=G, with_body=False)
    more = host.run(3)
    host.workers[0].begin()
    host.handle(SCHEDULER, Drain(1, 1000))
    assert host.returned == {*rest, *more} and not host.stopped
    late = host.run(2)
    host.drain()
    assert host.returned == {*rest, *more, *late} and set(host.outcomes) == set(first)
    host.handle(SCHEDULER, Release(tuple(host.core.in_flight.kept)))
    assert host.stopped[0] == events.EndAgent(0, ("all workers were drained",))


def test_an_agent_that_drains_hands_over_and_ends() -> None:
    host = Host(2)
    host.ready_all()
    runs = host.run(6)
    for worker in host.workers.values():
        worker.begin()
    host.handle(SCHEDULER, Drain(1, 0))
    host.handle(SCHEDULER, Drain(1, 0))  # once is enough
    assert [message.workers for message in host.sent if isinstance(message, Resized)] == [0]
    host.drain()
    assert host.returned | set(host.outcomes) == set(runs) and host.outcomes and not host.stopped
    host.handle(SCHEDULER, Release(tuple(host.core.in_flight.kept)))
    assert host.stopped == [events.EndAgent(0, ("all workers were drained",))]


def test_a_draining_agent_waits_for_releases_and_for_runs_only_so_long() -> None:
    for deadline, run_ends in ((2.0, True), (25.0, False)):
        host = Host(1)
        host.ready_all()
        host.run(1)
        host.workers[0].begin()
        host.handle(SCHEDULER, events.DrainRequested("SIGTERM"))
        if run_ends:
            host.drain()
        assert not host.stopped
        host.now += deadline - 0.1
        host.settle()
        assert not host.stopped
        host.now += 0.2
        host.settle()
        assert [end.code for end in host.stopped] == [0]
        warning = "1 run did not end within 25 s; the scheduler repeats it"
        assert (warning in host.logs) == (not run_ends)


def sizes(host: Host) -> list[int]:
    """What the scheduler was told, once each."""
    found = [message.workers for message in host.sent if isinstance(message, Resized)]
    host.sent.clear()
    return found


def test_an_agent_is_resized_up_and_down_and_stays_without_workers() -> None:
    host = Host(2)
    host.ready_all()
    first = host.run(6)
    for worker in host.workers.values():
        worker.begin()
    host.handle(SCHEDULER, events.ResizeRequested(4))
    assert sizes(host) == [4] and len(host.workers) == 4 and len(host.resizes) == 0
    host.ready_all()
    assert len(host.resizes) == 1
    host.handle(SCHEDULER, events.ResizeRequested(4))
    assert sizes(host) == [] and len(host.resizes) == 2
    host.handle(SCHEDULER, events.ResizeRequested(0))
    assert sizes(host) == [0] and len(host.resizes) == 2, "two workers still run"
    late = host.run(1)
    host.drain()
    assert len(host.resizes) == 3 and not host.workers
    assert set(host.outcomes) | host.returned == {*first, *late} and {*late} <= host.returned
    host.now += 60.0
    host.settle()
    assert not host.stopped
    host.handle(SCHEDULER, LinkUp(Welcome(5), False))
    assert sizes(host) == [0], "a new scheduler has heard of 2 in Hello"
    host.handle(SCHEDULER, events.ResizeRequested(2))
    assert sizes(host) == [2]
    host.ready_all()
    again = host.run(3)
    host.drain()
    assert len(host.resizes) == 4 and {*again} <= set(host.outcomes)


def test_workers_that_do_nothing_are_drained_first() -> None:
    host = Host(4)
    host.ready_all()
    host.run(1)
    busy = next(number for number, worker in host.workers.items() if worker.unread)
    host.workers[busy].begin()
    host.handle(SCHEDULER, events.ResizeRequested(1))
    for number in [number for number, worker in host.workers.items() if not worker.alive]:
        host.die(number)
    assert list(host.workers) == [busy] and len(host.resizes) == 1


def test_a_resized_agent_still_leaves_when_it_is_drained() -> None:
    host = Host(2)
    host.ready_all()
    host.handle(SCHEDULER, events.ResizeRequested(1))
    host.drain()
    (number,) = host.workers
    host.handle(SCHEDULER, Drain(1, 1000 + number))
    host.drain()
    assert host.stopped == [events.EndAgent(0, ("all workers were drained",))]
    host.handle(SCHEDULER, events.ResizeRequested(2))
    assert not host.workers, "too late"


def test_a_resize_waits_for_workers_that_are_hard_to_start() -> None:
    host = Host(1)
    host.ready_all()
    host.unstartable = "EAGAIN"
    host.handle(SCHEDULER, events.ResizeRequested(2))
    assert len(host.resizes) == 0
    host.unstartable = ""
    host.wait_until_due()
    host.ready_all()
    assert len(host.resizes) == 1 and len(host.workers) == 2


def test_logs_of_workers_name_their_tasks() -> None:
    host = Host(1)
    host.ready_all()
    [run] = host.run(1)
    host.workers[0].begin()
    host.die(0)
    assert host.core.workers.deaths == [
        f"Worker[0] (agent-1000) was killed by SIGKILL while it ran task {SESSION + run:x}"
    ]
    assert host.logs == host.core.workers.deaths
    host.ready_all()
    [run] = host.run(1)
    host.workers[0].begin()
    host.handle(SCHEDULER, Withdraw([run]))
    host.now += 1.0
    host.settle()
    assert host.logs[-1] == f"Worker[0] (agent-1000) is killed to stop task {SESSION + run:x}"


def _with_two_unread_datagrams() -> tuple[Host, list[int]]:
    """A host whose only worker has read neither of its two datagrams of one run each; these runs."""
    host = Host(1)
    host.ready_all()
    host.run(1)
    host.drain()
    return host, [*host.run(1), *host.run(1)]


def test_a_recall_returns_only_what_was_sent_before_it() -> None:
    host = Host(1)
    host.ready_all()
    host.run(1)
    host.drain()
    [first] = host.run(1)
    host.core.handle(SCHEDULER, Withdraw([first]), host.now)
    later = host.run(1)  # in the same turn: it is sent after the recall
    host.drain()
    assert host.outcomes == Counter([1, first, *later]) and not host.core.workers.by_number[0].datagrams


def test_a_worker_that_reads_a_datagram_while_the_one_before_is_recalled_is_sound() -> None:
    host, runs = _with_two_unread_datagrams()
    host.reads_meanwhile = True
    host.handle(SCHEDULER, Withdraw([99, runs[0]]))
    assert host.status == {1: Status.VALUE, runs[0]: Status.CANCELLED, runs[1]: Status.VALUE}
    host.drain()
    assert host.outcomes == Counter([1, *runs]) and not host.logs


@pytest.mark.parametrize("reply", [FunctionMissing, InputMissing])
def test_a_worker_that_declines_what_is_not_its_next_run_is_replaced(reply: type) -> None:
    host, runs = _with_two_unread_datagrams()
    host.handle(0, reply(runs[1]))
    assert not host.workers.pop(0).alive and "overwritten" in host.logs[-1]
    host.handle(0, events.WorkerDied("was killed by SIGKILL", runs[0]))
    assert host.status[runs[1]] == Status.LOST
    host.drain()
    assert host.outcomes == Counter([1, *runs])


@pytest.mark.parametrize(
    ("run", "duration"), [(2**64 - 1, 5), (0, 5), (None, LONGEST_RUN_US + 1)], ids=["unknown run", "no run", "too long"]
)
def test_a_task_that_answers_what_cannot_be_is_charged_with_the_end_of_its_worker(
    run: int | None, duration: int
) -> None:
    """Otherwise it would run again and again."""
    host = Host(1)
    host.ready_all()
    [asked] = host.run(1)
    answer = RunsEnded([asked if run is None else run], [Status.VALUE], [duration], [NO_PROFILE], [b"result"], [])
    host.handle(0, answer)
    assert not host.workers.pop(0).alive and "overwritten" in host.logs[-1]
    host.handle(0, events.WorkerDied("was killed by SIGKILL", asked))
    assert host.status[asked] == Status.LOST and host.charged == {asked}


FALLIBLE: tuple[type, ...] = (
    events.SendToScheduler, events.Relay, events.StartWorker, events.Define, events.SendTasks, events.RecallTail,
    events.ReadRun, events.ReadCpu, events.KillWorker, events.EndWorker, Log,
)  # fmt: skip


@pytest.mark.parametrize("kind", FALLIBLE)
def test_an_effect_that_fails_ends_no_more_than_its_run(kind: type) -> None:
    host = Host(2)
    host.ready_all()
    host.failing.add(kind)
    runs = [*host.run(40, timeout_seconds=5.0), *host.run(3, function=G)]
    [parent] = host.run(1, function=H)
    host.workers[0].begin()
    host.handle(SCHEDULER, Withdraw(runs[:2]))
    host.handle(0, Submit([Group(b"g")], [9 << 32], Payloads([b""]), parent=parent))
    host.handle(SCHEDULER, Done([9 << 32], [Status.VALUE], Payloads([b"r"])))
    for _ in range(4):
        host.drain()
        host.now += 20.0
        host.settle()
    assert not host.stopped and set(host.outcomes) == {*runs, parent}
    assert {worker.state for worker in host.core.workers} == {WorkerState.IDLE}
    later = host.run(20)
    host.drain()
    assert all(host.status[run] == Status.VALUE for run in later)


class AgentMachine(RuleBasedStateMachine):
    """Anything, in any order."""

    @initialize(workers=st.integers(1, 3), warm=st.booleans(), gpus=st.sampled_from([(), ("0",), ("0", "1")]))
    def begin(self, workers: int, warm: bool, gpus: tuple[str, ...]) -> None:
        self.host = Host(workers, gpus=gpus)
        self.session = 100
        if warm:  # once they are known to be short, tasks go in chunks
            self.host.ready_all()
            for function in (F, G, H):
                self.host.run(1, function=function)
            self.host.drain()

    def pick(self, data: Any, condition: Any = lambda worker: True) -> int | None:
        found = [n for n, worker in self.host.workers.items() if condition(worker)]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(
        count=st.integers(1, 12),
        function=st.sampled_from([F, G, H]),
        with_body=st.booleans(),
        priority=st.integers(0, 1),
        timeout=st.sampled_from([0.0, 0.0, 0.02]),
        session=st.sampled_from([SESSION, OTHER_SESSION]),
        depth=st.integers(0, 1),
        only=st.sampled_from([{}, {}, {}, LIMITED, NEEDING_GPU, *map(pinned, (1000, 1001, 1077))]),
    )
    def run(
        self,
        count: int,
        function: bytes,
        with_body: bool,
        session: int,
        timeout: float,
        only: dict[str, Any],
        **level: int,
    ) -> None:
        group = {"function": function, "session": session, "timeout_seconds": timeout, **level, **only}
        self.host.run(count, with_body, **group)

    @rule(data=st.data(), count=st.integers(1, 3))
    def run_again(self, data: Any, count: int) -> None:
        """Tasks run again whose outcomes were lost on their way, or whose runs were withdrawn."""
        if self.host.tasks_ended:
            ended = st.sampled_from(sorted(self.host.tasks_ended))
            tasks = data.draw(st.lists(ended, min_size=1, max_size=count, unique=True))
            self.host.tasks_ended.difference_update(tasks)
            self.host.run(count, tasks=tasks)

    @rule()
    def answer_functions(self) -> None:
        for message in [m for m in self.host.sent if isinstance(m, NeedFunctions)]:
            self.host.sent.remove(message)
            names = ["f"] * len(message.functions)
            bodies = Payloads([BODIES[function] for function in message.functions])
            self.host.handle(SCHEDULER, Functions(message.functions, names, bodies))

    @rule(data=st.data())
    def ready(self, data: Any) -> None:
        if (number := self.pick(data, lambda w: w.alive and not w.ready)) is not None:
            self.host.ready(number)

    @rule(data=st.data(), times=st.integers(1, 8), soon=st.booleans())
    def work(self, data: Any, times: int, soon: bool) -> None:
        if (number := self.pick(data, lambda w: w.alive and w.ready)) is not None:
            for _ in range(times):
                if number in self.host.workers and self.host.workers[number].alive:
                    self.host.step(number, soon)

    @rule(data=st.data())
    def say(self, data: Any) -> None:
        if (number := self.pick(data, lambda w: w.alive and w.unsaid)) is not None:
            self.host.say(number)

    @rule(data=st.data())
    def read(self, data: Any) -> None:
        if (number := self.pick(data, lambda w: w.alive and w.ready)) is not None:
            self.host.workers[number].begin()

    @rule(data=st.data())
    def take_long(self, data: Any) -> None:
        """A worker is held up by a run; the others have all the time to do what they have, and get what it had."""
        if (number := self.pick(data, lambda w: w.alive and w.ready)) is not None:
            self.host.workers[number].begin()
            for other in list(self.host.workers):
                worker = self.host.workers[other]
                while other != number and worker.alive and worker.ready and (worker.current or worker.unread):
                    self.host.step(other)
                self.host.say(other)
            self.host.now += 0.02
            self.host.settle()
            while (worker := self.host.workers[number]).alive and worker.pending:
                self.host.read_run(number)

    @rule(data=st.data())
    def forget_functions(self, data: Any) -> None:
        if (number := self.pick(data)) is not None:
            self.host.workers[number].knows.clear()

    @rule(data=st.data())
    def read_run(self, data: Any) -> None:
        if (number := self.pick(data, lambda w: w.alive and w.pending)) is not None:
            self.host.read_run(number)

    @rule(data=st.data())
    def die(self, data: Any) -> None:
        if (number := self.pick(data, lambda w: w.ready or not w.alive)) is not None:
            self.host.die(number)

    @rule(data=st.data(), count=st.integers(1, 6))
    def withdraw(self, data: Any, count: int) -> None:
        if self.host.next > 1:
            runs = data.draw(st.lists(st.integers(1, self.host.next - 1), min_size=1, max_size=count))
            self.host.handle(SCHEDULER, Withdraw(runs))

    @rule(data=st.data())
    def drain(self, data: Any) -> None:
        if (number := self.pick(data, lambda w: w.alive and w.ready)) is not None:
            self.host.handle(SCHEDULER, Drain(1, 1000 + number))

    @rule(workers=st.integers(0, 4))
    def resize(self, workers: int) -> None:
        self.host.handle(SCHEDULER, events.ResizeRequested(workers))

    @rule()
    def share_turn(self) -> None:
        """The next two events are handled in one turn."""
        self.host.shares_turn = True

    @rule()
    def read_meanwhile(self) -> None:
        """A worker reads while the agent recalls."""
        self.host.reads_meanwhile = True

    @rule(kind=st.sampled_from(FALLIBLE))
    def fail_next(self, kind: type) -> None:
        """The next effect of this type can not be performed."""
        self.host.failing.add(kind)

    @rule(count=st.integers(0, 6))
    def recall(self, count: int) -> None:
        self.host.handle(SCHEDULER, Recall(count))

    @rule(data=st.data(), blocked=st.booleans())
    def block(self, data: Any, blocked: bool) -> None:
        if (number := self.pick(data, lambda w: w.alive and w.current is not None)) is not None:
            self.host.workers[number].begin()
            self.host.handle(number, Blocked((self.host.workers[number].word,), (blocked,)))

    @rule(data=st.data())
    def submit(self, data: Any) -> None:
        if (number := self.pick(data, lambda w: w.alive and w.current is not None)) is not None:
            self.session += 1
            parent = self.host.workers[number].word
            task = self.session << 32
            self.host.handle(number, Submit([Group(b"g" * 16)], [task], Payloads([b""]), parent=parent))

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.1, 11.0]))
    def wait(self, seconds: float) -> None:
        self.host.now += seconds
        self.host.settle()

    @rule()
    def restart_scheduler(self) -> None:
        self.host.shares_turn = False
        self.host.failing.clear()
        self.host.now += 0.1
        self.host.settle()  # what failed is tried again
        self.host.sent.clear()
        self.host.handle(SCHEDULER, LinkUp(Welcome(5), False))
        held = set(range(1, self.host.next)) - set(self.host.outcomes) - self.host.returned
        resumed = [run for m in self.host.sent if isinstance(m, Reconcile) for run in m.runs]
        assert sorted(resumed) == sorted(held)

    @precondition(lambda self: hasattr(self, "host"))
    @invariant()
    def nothing_ends_twice(self) -> None:
        outcomes = self.host.outcomes
        assert not outcomes or max(outcomes.values()) == 1
        assert not self.host.returned & set(outcomes)

    def teardown(self) -> None:
        if not hasattr(self, "host"):
            return
        host = self.host
        host.shares_turn = False
        host.failing.clear()
        for _ in range(3):
            host.handle(SCHEDULER, Functions(list(BODIES), ["f"] * 3, Payloads(list(BODIES.values()))))
            for number, worker in list(host.workers.items()):
                if worker.alive and worker.word != NO_RUN:
                    host.handle(number, Blocked((worker.word,), (False,)))
            host.drain()
            host.now += 20.0
            host.settle()
            host.drain()
        assert bool(host.stopped) == host.core.is_draining
        assert len(host.workers) == host.core.workers.slots
        assert all(worker.state == WorkerState.IDLE for worker in host.core.workers)
        assert set(host.outcomes) | host.returned == set(range(1, host.next))
        self.nothing_ends_twice()


AgentMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestAgentMachine = AgentMachine.TestCase
