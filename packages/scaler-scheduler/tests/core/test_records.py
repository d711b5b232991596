"""Tasks without records of their own: those that wait, and those that have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler_protocol.ids import first_task
from scaler_protocol.messages import Cancel, Group
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.call_budgets import CallBudgets
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.explanation import tasks_ahead
from scaler_scheduler.core.function_record import FunctionRecord
from scaler_scheduler.core.records import EndedTasks, GroupRecord, SessionRecord, TaskBlock, TaskRecord
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_states import ASSIGNED, GONE, WAITING
from scaler_scheduler.requirements import Requirement, WorkerClass

if TYPE_CHECKING:
    from conftest import SchedulerDriver

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["block", "block", "records", "take", "take", "again", "cancel", "remove"]),
        st.integers(0, 200),
    ),
    max_size=40,
)
"""What happens to a lane, and to how many tasks, or to which one of those that wait."""


class Lane:
    """A queue with one lane, and the tasks that wait there by what was done."""

    def __init__(self, *, in_parts: bool) -> None:
        self.state = SchedulerState(1, SchedulerConfig())
        self.queue = self.state.waiting
        self.worker_class = WorkerClass((), None)
        self.queue.add_class(self.worker_class)
        self.session = self.state.sessions[1] = SessionRecord(1, b"c")
        self.lane = self.queue.lane(self.session, 0, 0, Requirement((), None))
        self.lane.groups = 1
        nothing = Group(b"")
        self.group = GroupRecord(nothing, self.session, self.lane, FunctionRecord(b""), None, nothing)
        self.waiting: list[int] = []
        self.taken: list[TaskRecord] = []
        self.next, self.in_parts = first_task(1) + 1, in_parts

    def do(self, step: str, number: int) -> None:
        if step == "take":
            queue, most = self.queue.of_class(self.worker_class), number % 33
            lane = queue.next()
            assert lane is (self.lane if self.waiting else None)
            taken = self.queue.take(queue, lane, most) if lane is not None and most else []
            expected, self.waiting = self.waiting[: len(taken)], self.waiting[len(taken) :]
            assert [task.id for task in taken] == expected
            assert len(taken) == min(most, len(expected + self.waiting))
            assert all(task.call == call_of(task.id) and task.state == WAITING for task in taken)
            self.taken += taken
        elif step == "again":
            again, self.taken = self.taken[: number % 33], self.taken[number % 33 :]
            self.queue.add(again, self.lane, 0.0, first=True)
            self.waiting = sorted(task.id for task in again) + self.waiting
        elif step in ("cancel", "remove"):
            if self.waiting:
                self._leave(step, self.waiting.pop(number % len(self.waiting)))
        else:
            self._add(step, [self.next + at for at in range(1 + number % 60)])

    def _add(self, step: str, tasks: list[int]) -> None:
        self.next = tasks[-1] + 1
        self.waiting += tasks
        calls = [call_of(task) for task in tasks]
        if step == "block":
            column = Payloads(calls) if self.in_parts else Payloads.cut(b"".join(calls), [len(call) for call in calls])
            block = TaskBlock(tuple(tasks), self.group, column)
            self.session.tasks.update(dict.fromkeys(tasks, block))
            self.queue.add_block(block, 0.0)
        else:
            records = [TaskRecord(task, self.group, call) for task, call in zip(tasks, calls, strict=True)]
            self.session.tasks.update((record.id, record) for record in records)
            self.queue.add(records, self.lane, 0.0)

    def _leave(self, step: str, task: int) -> None:
        record = self.session.find(task)
        assert record is not None and record.id == task and record.call == call_of(task)
        if step == "cancel":
            del self.session.tasks[task]
            record.state = GONE
            self.queue.discard(record)
        else:
            self.queue.remove(record)
            record.state = ASSIGNED

    def check(self) -> None:
        assert self.queue.count == len(self.waiting) == self.lane.size - self.lane.tombstones
        budgets = CallBudgets({1: self.session}, 1, 1)
        assert budgets.calls_of(self.session, exact=True) == sum(len(call_of(task)) for task in self.session.tasks)


def call_of(task: int) -> bytes:
    return b"%d" % task * (task % 7)


@pytest.mark.parametrize("in_parts", [False, True])
@settings(max_examples=60)
@given(STEPS, st.integers(0, 2000))
def test_tasks_go_in_their_order_whether_they_have_records_or_not(
    in_parts: bool, steps: list[tuple[str, int]], which: int
) -> None:
    lane = Lane(in_parts=in_parts)
    for step, number in steps:
        lane.do(step, number)
        lane.check()
    if lane.waiting:
        task = lane.session.find(lane.waiting[which % len(lane.waiting)])
        assert task is not None and task.id == lane.waiting[which % len(lane.waiting)]
        assert sum(tasks_ahead(lane.state, task).values()) == which % len(lane.waiting)
    lane.check()


def test_tasks_have_records_only_while_agents_have_them(driver: SchedulerDriver) -> None:
    client = driver.client(b"c")
    tasks = driver.submit(client, 100)
    session = driver.core.state.sessions[client[0]]
    (block,) = set(session.tasks.values())
    assert isinstance(block, TaskBlock) and driver.core.state.waiting.count == 100
    agent = driver.agent(workers=4)
    runs = driver.runs(agent)
    given = {task for task, entry in session.tasks.items() if isinstance(entry, TaskRecord)}
    assert given == set(runs) == set(tasks[: len(runs)]) and len(runs) < 100
    driver.done(agent, runs)
    assert len({session.tasks[task] for task in runs}) == 1 and isinstance(session.tasks[tasks[0]], EndedTasks)
    driver.feed(client, Cancel([tasks[-1], tasks[0]]))
    driver.settle()
    assert tasks[0] not in session.tasks and tasks[-1] not in session.tasks and len(session.tasks) == 98
