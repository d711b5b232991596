"""ClientCore, case by case."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from scaler_client.core import submit_builder
from scaler_client.core.core import ClientCore
from scaler_client.core.effects import AnswerShutdown, Cleared, Connected, KeepObjects, Print, Transmit, WorkersListed
from scaler_client.core.events import (
    BlockingChanged,
    CallsSubmitted,
    ClearRequested,
    ClientClosed,
    SessionRequested,
    ShutdownRequested,
    TaskLabelled,
    TasksCancelled,
    WorkersRequested,
    WorkersUnwanted,
)
from scaler_client.core.records import CallBlock, CallGroup, Deliver, FunctionBody
from scaler_client.core.releases import RELEASE_SECONDS, RELEASE_TASKS
from scaler_client.core.sent_functions import KEPT_FUNCTIONS
from scaler_io.links.events import LinkDown, LinkLost, LinkRefused, LinkUp
from scaler_protocol import messages
from scaler_protocol.capacity import ListWorkers, WorkerList
from scaler_protocol.errors import HandshakeRefusedError, SchedulerLostError, restore
from scaler_protocol.handshake import Goodbye, Heartbeat, Welcome
from scaler_protocol.messages import (
    MESSAGE_GROUPS,
    MESSAGE_TASKS,
    Blocked,
    Cancel,
    Done,
    Functions,
    Group,
    Inputs,
    NeedFunctions,
    NeedInputs,
    NeedTasks,
    Output,
    Reconcile,
    Release,
    Shutdown,
    ShutdownAnswer,
    Status,
    Submit,
)
from scaler_protocol.payloads import Payloads
from scaler_protocol.sessions import ConfirmTasks, EndSession, LabelTask, TaskList


def group_of(function: bytes = b"f", parent: int = 0) -> CallGroup:
    body = FunctionBody(function, "m:f", b"body of " + function)
    return CallGroup(Group(function), (body,), pickle.loads, pickle.dumps, parent)


class PlannedCall:
    """A call whose outcome the test decides."""

    def __init__(self, task: int, group: CallGroup, call: bytes = b"call", needs: tuple[PlannedCall, ...] = ()) -> None:
        self.task_id, self._group, self._call, self._needs = task, group, call, needs
        self._weight = len(call)
        self.known: tuple[int, bytes] | None = None

    def _call_of(self, task: int) -> bytes:
        return self._call

    def _needs_of(self, task: int) -> tuple[PlannedCall, ...]:
        return self._needs

    def outcome(self) -> tuple[int, bytes] | None:
        return self.known


GROUP = group_of()


@pytest.fixture
def core() -> ClientCore:
    core = ClientCore("tcp://127.0.0.1:2345")
    core.handle(LinkUp(Welcome(1), resumed=False), 0.0)
    assert core.settle(0.0) == [Connected(None, scheduler=1)]
    return core


def sent(core: ClientCore, now: float = 0.0) -> list[Any]:
    messages = [effect.message for effect in core.settle(now) if isinstance(effect, Transmit)]
    core.check()
    return messages


def test_calls_wait_for_the_link() -> None:
    core = ClientCore("tcp://127.0.0.1:2345")
    core.handle(CallsSubmitted([PlannedCall(1, GROUP)]), 0.0)
    assert core.settle(0.0) == []
    core.handle(LinkUp(Welcome(1), resumed=False), 0.0)
    (submit,) = sent(core)
    assert submit == Submit(
        [Group(b"f")], [1], Payloads([b"call"]), functions=[b"f"], names=["m:f"], bodies=Payloads([b"body of f"]),
        dependents=[], needs=[],
    )  # fmt: skip


def test_a_function_travels_once_per_scheduler(core: ClientCore) -> None:
    core.handle(CallsSubmitted([PlannedCall(1, GROUP)]), 0.0)
    core.handle(CallsSubmitted([PlannedCall(2, GROUP)]), 0.0)
    (submit,) = sent(core)
    assert len(submit.functions) == 1
    core.handle(CallsSubmitted([PlannedCall(3, GROUP)]), 0.0)
    assert sent(core)[0].functions == []
    core.handle(LinkDown("cut"), 0.0)
    core.handle(LinkUp(Welcome(1), resumed=True), 0.0)
    core.handle(CallsSubmitted([PlannedCall(4, GROUP)]), 0.0)
    assert sent(core)[0].functions == []
    core.handle(LinkDown("cut"), 0.0)
    core.handle(LinkUp(Welcome(2), resumed=False), 0.0)
    core.handle(CallsSubmitted([PlannedCall(5, GROUP)]), 0.0)
    resume, submit = sent(core)
    assert resume == Reconcile(wanted=[1, 2, 3, 4]) and submit.functions == [b"f"]


def test_alternating_groups_share_a_message_but_parents_do_not(core: ClientCore) -> None:
    groups = [group_of(b"f"), group_of(b"g"), group_of(b"h", parent=7)]
    core.handle(CallsSubmitted([PlannedCall(number, groups[number % 2]) for number in range(4)]), 0.0)
    core.handle(CallsSubmitted([PlannedCall(9, groups[2])]), 0.0)
    first, second = sent(core)
    assert [group.function for group in first.groups] == [b"f", b"g"] and first.task_groups == [0, 1, 0, 1]
    assert (second.parent, second.task_groups, second.tasks) == (7, (), [9])


def test_messages_are_cut_at_tasks_and_at_bytes(core: ClientCore) -> None:
    core.handle(CallsSubmitted([PlannedCall(number, GROUP) for number in range(MESSAGE_TASKS + 1)]), 0.0)
    assert [len(message.tasks) for message in sent(core)] == [MESSAGE_TASKS, 1]
    core.handle(CallsSubmitted([PlannedCall(10_000 + number, GROUP, bytes(600_000)) for number in range(3)]), 0.0)
    assert [len(message.tasks) for message in sent(core)] == [1, 1, 1]
    core.handle(CallsSubmitted([PlannedCall(20_000, GROUP, bytes(3_000_000))]), 0.0)  # more than MESSAGE_LIMIT
    assert len(sent(core)) == 1


def test_messages_are_cut_at_functions(core: ClientCore) -> None:
    groups = [group_of(number.to_bytes(2, "big")) for number in range(MESSAGE_GROUPS + 1)]
    core.handle(CallsSubmitted([PlannedCall(number, group) for number, group in enumerate(groups)]), 0.0)
    assert [len(message.functions) for message in sent(core)] == [MESSAGE_GROUPS, 1]


def test_messages_are_cut_at_inputs(core: ClientCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit_builder, "MESSAGE_NEEDS", 3)
    first = [PlannedCall(number, GROUP) for number in range(1, 5)]
    core.handle(CallsSubmitted(first), 0.0)
    sent(core)
    counts = (2, 1, 1, 4, 0)
    calls = [PlannedCall(number, GROUP, needs=tuple(first[:count])) for number, count in enumerate(counts, 10)]
    core.handle(CallsSubmitted(calls), 0.0)
    assert [message.tasks for message in sent(core)] == [[10, 11], [12], [13], [14]]


def test_messages_are_cut_at_ids(core: ClientCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MESSAGE_IDS", 2)
    core.handle(CallsSubmitted([PlannedCall(number, GROUP) for number in range(1, 6)]), 0.0)
    sent(core)
    core.handle(TasksCancelled([1, 2, 3, 4, 5]), 0.0)
    cancels = [effect.message for effect in core.settle(0.0) if isinstance(effect, Transmit)]
    assert cancels == [Cancel([1, 2]), Cancel([3, 4]), Cancel([5])]


def test_the_credit_bounds_what_the_scheduler_holds() -> None:
    core = ClientCore("tcp://127.0.0.1:2345")
    core.handle(LinkUp(Welcome(1, session_credit=10), resumed=False), 0.0)
    core.handle(CallsSubmitted([PlannedCall(number, GROUP, b"12345678") for number in range(3)]), 0.0)
    assert [message.tasks for message in sent(core)] == [[0]]
    core.handle(Done([0], [0], Payloads([b""])), 0.0)
    submit, release = sent(core)
    assert (submit.tasks, release) == ([1], Release([0]))
    core.handle(TasksCancelled([1]), 0.0)
    first, second = sent(core)
    assert (first.tasks, second) == ([2], Cancel([1]))


def test_what_is_cancelled_before_it_is_sent_is_never_sent(core: ClientCore) -> None:
    core.handle(CallsSubmitted([PlannedCall(1, GROUP), PlannedCall(2, GROUP)]), 0.0)
    core.handle(TasksCancelled([1]), 0.0)
    assert [message.tasks for message in sent(core)] == [[2]]
    core.handle(TasksCancelled([2, 2, 77]), 0.0)
    assert sent(core) == [Cancel([2])]
    core.handle(Done([2], [Status.CANCELLED], Payloads([b""])), 0.0)
    (deliver,) = core.settle(0.0)
    assert isinstance(deliver, Deliver) and deliver.calls == [None]


def test_outcomes_are_released_after_a_while_or_in_bulk(core: ClientCore) -> None:
    core.handle(CallsSubmitted([PlannedCall(number, GROUP) for number in range(2000)]), 0.0)
    sent(core)
    core.handle(Done([1, 2], [0, 0], Payloads([b"", b""])), 1.0)
    assert sent(core, 1.0) == [] and core.due() == pytest.approx(1.05)
    assert sent(core, 1.06) == [Release([1, 2])] and core.due() is None
    tasks = list(range(100, 100 + RELEASE_TASKS))
    core.handle(Done(tasks, [0] * len(tasks), Payloads([b""] * len(tasks))), 2.0)
    assert sent(core, 2.0) == [Release(tasks)]


def test_outcomes_are_released_beside_other_messages_unless_some_were_just_now(core: ClientCore) -> None:
    core.handle(CallsSubmitted([PlannedCall(number, GROUP) for number in range(1, 5)]), 0.0)
    sent(core)
    core.handle(Done([1], [0], Payloads([b""])), 1.0)
    assert sent(core, 1.0) == []
    core.handle(CallsSubmitted([PlannedCall(5, GROUP)]), 1.01)
    submit, release = sent(core, 1.01)
    assert isinstance(submit, Submit) and release == Release([1]) and core.due() is None
    core.handle(Done([2], [0], Payloads([b""])), 1.02)
    core.handle(CallsSubmitted([PlannedCall(6, GROUP)]), 1.03)
    assert [type(message) for message in sent(core, 1.03)] == [Submit]
    assert core.due() == pytest.approx(1.02 + RELEASE_SECONDS)
    core.handle(CallsSubmitted([PlannedCall(7, GROUP)]), 1.065)
    assert sent(core, 1.065)[1:] == [Release([2])]


def test_a_scheduler_that_forgot_us_gets_what_it_asks_for(core: ClientCore) -> None:
    block = CallBlock(10, GROUP, [b"a", b"b", b"c"], lambda: None)
    core.handle(CallsSubmitted([PlannedCall(1, GROUP)]), 0.0)
    core.handle(block, 0.0)
    sent(core)
    core.handle(LinkUp(Welcome(2), resumed=False), 0.0)
    assert sent(core) == [Reconcile(wanted=[1, 10, 11, 12])]
    core.handle(NeedTasks([1, 11, 99]), 0.0)
    (submit,) = sent(core)
    assert (submit.tasks, submit.calls, submit.functions) == ([1, 11], Payloads([b"call", b"b"]), [b"f"])


def test_functions_that_are_asked_for(core: ClientCore) -> None:
    core.handle(CallsSubmitted([PlannedCall(1, GROUP)]), 0.0)
    sent(core)
    core.handle(NeedFunctions([b"f", b"unknown"]), 0.0)
    assert sent(core) == [Functions([b"f"], ["m:f"], Payloads([b"body of f"]))]
    many = [group_of(b"%d" % number) for number in range(KEPT_FUNCTIONS)]
    core.handle(CallsSubmitted([PlannedCall(10 + number, group) for number, group in enumerate(many)]), 0.0)
    sent(core)
    core.handle(NeedFunctions([b"f"]), 0.0)  # no longer kept, but a task needs it
    assert [message.functions for message in sent(core)] == [[b"f"]]


def test_inputs_that_are_asked_for(core: ClientCore) -> None:
    needed = PlannedCall(1, GROUP)
    core.handle(CallsSubmitted([needed, PlannedCall(2, GROUP, needs=(needed,))]), 0.0)
    (submit,) = sent(core)
    assert (submit.dependents, submit.needs) == ([1], [1])
    core.handle(NeedInputs([2, 2, 5], [1, 9, 1]), 0.0)
    assert sent(core) == [] and core.due() is not None
    needed.known = (Status.VALUE, b"value")
    assert sent(core) == [Inputs((2,), (1,), (Status.VALUE,), Payloads((b"value",)))]
    assert core.due() is None


@pytest.mark.parametrize(
    ("event", "error", "text"),
    [
        (LinkLost("no connection for 5 s"), SchedulerLostError, "no connection for 5 s to the scheduler at tcp"),
        (LinkRefused(("old", "odd")), HandshakeRefusedError, "old; odd"),
    ],
)
def test_without_a_scheduler_everything_fails(core: ClientCore, event: Any, error: type, text: str) -> None:
    core.handle(CallsSubmitted([PlannedCall(1, GROUP), PlannedCall(2, GROUP)]), 0.0)
    sent(core)
    core.handle(event, 0.0)
    connected, deliver = core.settle(0.0)
    assert isinstance(connected, Connected) and isinstance(connected.error, error)
    assert isinstance(deliver, Deliver) and list(deliver.statuses) == [Status.FAILED] * 2
    failure = restore(next(iter(deliver.results)))
    assert isinstance(failure, error) and text in str(failure)
    core.handle(CallsSubmitted([PlannedCall(3, GROUP)]), 0.0)
    (later,) = core.settle(0.0)
    assert isinstance(later, Deliver) and later.tasks == [3]
    core.handle(LinkUp(Welcome(2), resumed=False), 0.0)
    core.handle(CallsSubmitted([PlannedCall(4, GROUP)]), 0.0)
    assert [type(message) for message in sent(core)] == [Reconcile, Submit]


@pytest.mark.parametrize("event", [LinkLost("silent"), LinkRefused(("in use",), in_use=True), ClientClosed()])
def test_the_objects_of_calls_that_go_on_without_their_client_are_kept(event: Any) -> None:
    core = ClientCore("tcp://127.0.0.1:2345", named=True)
    core.handle(LinkUp(Welcome(1), resumed=False), 0.0)
    core.handle(CallsSubmitted([PlannedCall(1, GROUP)]), 0.0)
    sent(core)
    core.handle(event, 0.0)
    kept, ended = [effect for effect in core.settle(0.0) if not isinstance(effect, Connected)]
    assert kept == KeepObjects() and isinstance(ended, Deliver), "before the call lets go of its objects"
    if not isinstance(event, ClientClosed):
        core.handle(CallsSubmitted([PlannedCall(2, GROUP)]), 0.0)
        (failed,) = core.settle(0.0)
        assert isinstance(failed, Deliver), "the scheduler does not know this call"


def test_a_session_that_ends_is_sent_nothing_but_its_end(core: ClientCore) -> None:
    core.handle(CallsSubmitted([PlannedCall(1, GROUP)]), 0.0)
    core.handle(SessionRequested(EndSession(1)), 0.0)
    core.handle(SessionRequested(ConfirmTasks(2)), 0.0)
    core.handle(TaskLabelled(1, "total"), 0.0)
    assert sent(core) == [EndSession(1)]
    core.handle(CallsSubmitted([PlannedCall(2, GROUP)]), 0.0)
    core.handle(TaskList(1), 0.0)
    assert sent(core) == [], "the scheduler knows no session of this client any more"
    core.handle(SessionRequested(EndSession(3)), 0.0)
    core.handle(TaskList(3, error="in use"), 0.0)
    assert {type(message) for message in sent(core)} == {EndSession, Submit, ConfirmTasks, LabelTask}


def test_the_first_connection_that_fails_names_the_remedy() -> None:
    core = ClientCore("tcp://127.0.0.1:2345")
    core.handle(LinkDown("cannot connect"), 0.0)
    core.handle(LinkLost("no connection for 5 s"), 0.0)
    (connected,) = core.settle(0.0)
    assert isinstance(connected, Connected)
    assert "cannot connect" in str(connected.error) and "scaler_scheduler tcp://127.0.0.1:2345" in str(connected.error)


def test_outcomes_that_this_client_can_not_read_are_errors(core: ClientCore) -> None:
    core.handle(CallsSubmitted([PlannedCall(number, GROUP) for number in range(3)]), 0.0)
    sent(core)
    core.handle(Done([0, 1, 2], [0, 99, 0], Payloads([b"", b"", b"id"]), stored=[2]), 0.0)
    (deliver,) = core.settle(0.0)
    assert isinstance(deliver, Deliver)
    assert list(deliver.statuses) == [Status.VALUE, Status.FAILED, Status.FAILED]


def test_blocked_runs_are_reported_in_turn_with_calls(core: ClientCore) -> None:
    core.handle(BlockingChanged(5, True), 0.0)
    core.handle(CallsSubmitted([PlannedCall(1, group_of(parent=5))]), 0.0)
    submit, blocked = sent(core)
    assert isinstance(submit, Submit) and blocked == Blocked([5], [True])
    core.handle(BlockingChanged(5, False), 0.0)
    core.handle(BlockingChanged(5, True), 0.0)  # between two turns: nothing to tell
    assert sent(core) == []


def test_clear_cancels_and_forgets(core: ClientCore) -> None:
    core.handle(CallsSubmitted([PlannedCall(1, GROUP)]), 0.0)
    sent(core)
    core.handle(ClearRequested(7), 0.0)
    deliver, cleared, cancel = core.settle(0.0)
    assert isinstance(deliver, Deliver) and list(deliver.statuses) == [Status.CANCELLED]
    assert (cleared, cancel) == (Cleared(7), Transmit(Cancel([1])))
    core.handle(CallsSubmitted([PlannedCall(2, GROUP)]), 0.0)
    assert sent(core)[0].functions == [b"f"]


def test_a_new_scheduler_is_asked_for_the_workers_again(core: ClientCore) -> None:
    core.handle(WorkersRequested(1, 4), 0.0)
    core.handle(WorkersRequested(2, 0), 0.0)
    assert sent(core) == [ListWorkers(1, 4), ListWorkers(2)]
    core.handle(answer := WorkerList(2, ["here"], [2], [""], [""]), 0.0)
    core.handle(WorkerList(2), 0.0)  # an answer that nobody waits for
    assert core.settle(0.0) == [WorkersListed(2, answer)]
    core.handle(LinkDown("cut"), 0.0)
    core.handle(WorkersRequested(3, 1), 0.0)
    core.handle(LinkUp(Welcome(2), resumed=False), 0.0)
    assert [message for message in sent(core) if isinstance(message, ListWorkers)] == [
        ListWorkers(1, 4),
        ListWorkers(3, 1),
    ]
    core.handle(WorkersUnwanted(1), 0.0)
    assert sent(core) == [ListWorkers(1)], "so that the scheduler drops it"
    core.handle(WorkersUnwanted(1), 0.0)
    assert core.settle(0.0) == []
    core.handle(LinkLost("no answer"), 0.0)
    (_, listed) = core.settle(0.0)
    assert isinstance(listed, WorkersListed) and listed.number == 3
    assert isinstance(listed.answer, SchedulerLostError) and "tcp://127.0.0.1:2345" in str(listed.answer)
    core.handle(WorkersRequested(4, 0), 0.0)
    (listed,) = core.settle(0.0)
    assert isinstance(listed, WorkersListed) and isinstance(listed.answer, SchedulerLostError)


def test_the_end_of_the_cluster_ends_pending_and_later_calls(core: ClientCore) -> None:
    core.handle(CallsSubmitted([PlannedCall(1, GROUP)]), 0.0)
    core.settle(0.0)
    core.handle(Goodbye("told to"), 0.0)
    connected, deliver = core.settle(0.0)
    assert isinstance(connected, Connected) and "has ended: told to" in str(connected.error)
    assert isinstance(deliver, Deliver) and list(deliver.statuses) == [Status.FAILED]
    core.handle(CallsSubmitted([PlannedCall(2, GROUP)]), 0.0)
    (deliver,) = core.settle(0.0)
    assert isinstance(deliver, Deliver) and list(deliver.statuses) == [Status.FAILED]


def test_shutdown_output_and_the_rest(core: ClientCore) -> None:
    core.handle(ShutdownRequested(), 0.0)
    assert sent(core) == [Shutdown()]
    core.handle(ShutdownAnswer(False, "protected"), 0.0)
    core.handle(Output([1, 1], [1, 2], Payloads([b"out", b"err"])), 0.0)
    core.handle(Heartbeat(1), 0.0)  # nothing a core is told
    assert core.settle(0.0) == [AnswerShutdown(False, "protected"), Print([(1, b"out"), (2, b"err")])]
    core.handle(CallsSubmitted([PlannedCall(1, GROUP)]), 0.0)
    core.handle(ClientClosed(), 0.0)
    (deliver,) = core.settle(0.0)
    assert isinstance(deliver, Deliver) and list(deliver.statuses) == [Status.CANCELLED]
