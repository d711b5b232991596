"""Results that the scheduler asks for while they are still to come."""

from __future__ import annotations

import pickle

import pytest

from scaler_client.core.effects import DumpInputs
from scaler_client.core.events import InputDumped
from scaler_client.core.graph_state import GraphTasks
from scaler_client.core.pending_inputs import POLL_SECONDS, PendingInputs
from scaler_client.core.records import CallGroup, Dump, Outcome, OutstandingCall, ResentCall
from scaler_protocol.messages import MESSAGE_LIMIT, Group, Inputs, NeedInputs, Status
from scaler_protocol.payloads import Payloads

GROUP = CallGroup(Group(b"f"), (), pickle.loads, pickle.dumps)


class Need:
    """A Dependency that counts how often its outcome was read."""

    def __init__(self, task_id: int) -> None:
        self.task_id = task_id
        self.made = 0
        self.done = False

    def outcome(self) -> tuple[int, bytes] | None:
        self.made += self.done
        return (Status.VALUE, b"value") if self.done else None


def no_failure(task: int) -> Outcome | None:
    return None


def test_nothing_is_read_for_a_task_that_is_not_wanted_any_more() -> None:
    need, awaited = Need(1), PendingInputs(no_failure)
    outstanding: dict[int, OutstandingCall] = {task: ResentCall(task, GROUP, 4, b"call", [need]) for task in (2, 3)}
    awaited.ask(NeedInputs([2, 3], [1, 1]), outstanding)
    assert awaited.answer(outstanding, 0.0) == ([], None) and awaited and awaited.due == POLL_SECONDS
    need.done = True
    del outstanding[2]
    inputs, dumps = awaited.answer(outstanding, 1.0)
    assert inputs == [Inputs((3,), (1,), (Status.VALUE,), Payloads([b"value"]))] and dumps is None
    assert need.made == 1 and not awaited and awaited.due is None


def test_the_failure_of_a_task_that_runs_again_after_its_consumers_is_sent_to_them() -> None:
    need, awaited = Need(1), PendingInputs(lambda task: (Status.FAILED, b"lost"))
    outstanding: dict[int, OutstandingCall] = {2: ResentCall(2, GROUP, 4, b"call", [need])}
    awaited.ask(NeedInputs([2], [1]), outstanding)
    inputs, _ = awaited.answer(outstanding, 0.0)
    assert inputs == [Inputs((2,), (1,), (Status.FAILED,), Payloads([b"lost"]))] and not awaited


def test_a_node_is_found_under_both_ids_that_a_scheduler_may_know() -> None:
    graph = GraphTasks(range(1, 3), lambda task, failed: "")
    made = graph.replaced[1] = Need(7)
    made.done = True
    call, awaited = ResentCall(2, GROUP, 4, b"call", [graph.need(1)]), PendingInputs(no_failure)
    for asked in (1, 7):
        awaited.ask(NeedInputs([2], [asked]), {2: call})
        inputs, _ = awaited.answer({2: call}, 0.0)
        assert inputs == [Inputs((2,), (asked,), (Status.VALUE,), Payloads([b"value"]))]


@pytest.mark.parametrize(("count", "size", "sizes"), [(5, MESSAGE_LIMIT // 2, [2, 2, 1]), (70_000, 0, [65_536, 4464])])
def test_messages_are_of_bounded_size(count: int, size: int, sizes: list[int]) -> None:
    """The scheduler refuses longer ones, and the link with them."""
    need, awaited = Need(1), PendingInputs(lambda task: (Status.FAILED, bytes(size)))
    call = ResentCall(2, GROUP, 4, b"call", [need])
    outstanding: dict[int, OutstandingCall] = dict.fromkeys(range(2, 2 + count), call)
    awaited.ask(NeedInputs(list(outstanding), [1] * count), outstanding)
    inputs, _ = awaited.answer(outstanding, 0.0)
    assert [len(message.tasks) for message in inputs] == sizes
    assert [task for message in inputs for task in message.tasks] == list(outstanding)


def value() -> Outcome:
    pytest.fail("the core calls it")


class DumpNeed(Need):
    """A Dependency whose bytes are not kept."""

    def outcome(self) -> Outcome | Dump | None:  # type: ignore[override]
        return value


def test_what_must_be_serialized_is_asked_for_once_and_sent_to_all_that_want_it() -> None:
    need, awaited = DumpNeed(1), PendingInputs(no_failure)
    outstanding: dict[int, OutstandingCall] = {task: ResentCall(task, GROUP, 4, b"call", [need]) for task in (2, 3)}
    awaited.ask(NeedInputs([2], [1]), outstanding)
    assert awaited.answer(outstanding, 0.0) == ([], DumpInputs({1: value})) and awaited.due is None
    awaited.ask(NeedInputs([3], [1]), outstanding)
    assert awaited.answer(outstanding, 0.0) == ([], None)
    awaited.dumped(InputDumped(1, (Status.RAISED, b"error")), 0.0)
    inputs, dumps = awaited.answer(outstanding, 0.0)
    assert inputs == [Inputs((2, 3), (1, 1), (Status.RAISED,) * 2, Payloads([b"error"] * 2))] and dumps is None
    assert not awaited


def test_what_was_serialized_for_nobody_is_dropped() -> None:
    need, awaited = DumpNeed(1), PendingInputs(no_failure)
    outstanding: dict[int, OutstandingCall] = {2: ResentCall(2, GROUP, 4, b"call", [need])}
    awaited.ask(NeedInputs([2], [1]), outstanding)
    awaited.answer(outstanding, 0.0)
    assert awaited.answer({}, 0.0) == ([], None) and awaited
    awaited.dumped(InputDumped(1, (Status.VALUE, b"late")), 0.0)
    assert awaited.answer({}, 0.0) == ([], None) and not awaited
    awaited.dumped(InputDumped(1, (Status.VALUE, b"twice")), 0.0)
    assert not awaited
