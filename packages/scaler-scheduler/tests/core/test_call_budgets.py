"""What the unfinished tasks of a session may take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_protocol.errors import ProtocolError, SubmitRefusedError
from scaler_protocol.handshake import SESSION_CREDIT
from scaler_protocol.ids import function_id
from scaler_protocol.messages import Cancel, Group, Status, Submit
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.call_budgets import CALLS_LIMIT, LEAST_CREDIT, TASK_BYTES, CallBudgets
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.function_record import FunctionRecord
from scaler_scheduler.core.graph_record import GraphRecord
from scaler_scheduler.core.records import GroupRecord, LaneRecord, SessionRecord, TaskRecord
from scaler_scheduler.requirements import Requirement

if TYPE_CHECKING:
    from conftest import SchedulerDriver

MEGABYTE = 1024 * 1024


class Sessions:
    """Sessions 1 and 2, and what they submit."""

    def __init__(self, session_bytes: int = 2**40, total_bytes: int = 2**41) -> None:
        self.sessions = {number: SessionRecord(number, bytes(16)) for number in (1, 2)}
        self.budgets = CallBudgets(self.sessions, session_bytes, total_bytes)
        self.next, self.now = 1, 0.0

    def submit(self, number: int, count: int, size: int, *, graph: bool = False) -> list[TaskRecord]:
        """Tasks with calls of this size."""
        session = self.sessions[number]
        tasks = range(self.next, self.next + count)
        calls = [bytes(size)] * count
        event = Submit([Group(b"f" * 16)], tasks, Payloads(calls), graph=tasks[0] if graph else 0)
        self.now += 1.0
        self.budgets.take(session, event, self.now)
        self.next += count
        lane = LaneRecord(session, 0, 0, Requirement((), None), None)
        group = GroupRecord(Group(b"f" * 16), session, lane, FunctionRecord(b"f" * 16), None, Group(b"f" * 16))
        records = [TaskRecord(task, group, call) for task, call in zip(tasks, calls, strict=True)]
        for record in records:
            if graph:
                record.more().graph = GraphRecord(tasks[0], 1, count, number, 0.0)
            session.tasks[record.id] = record
        return records


def test_the_credits_of_a_thousand_clients_fit_into_the_memory() -> None:
    memory = 8 * 1024 * MEGABYTE
    budgets = CallBudgets({}, memory // 2, memory)
    credits = [budgets.credit(clients) for clients in range(1, 1001)]
    assert credits[:64] == [SESSION_CREDIT] * 64 and LEAST_CREDIT < credits[-1] < 1.1 * LEAST_CREDIT
    assert sum(credits) < memory
    assert budgets.credit(10_000) == LEAST_CREDIT


def test_a_client_that_keeps_to_its_credit_is_never_refused() -> None:
    has = Sessions()
    for _ in range(5):
        records = has.submit(1, 8, SESSION_CREDIT // 8)
        for record in records:
            record.calls = b""  # it has ended


def test_a_client_that_ignores_its_credit_is_refused_at_twice_the_credit() -> None:
    has = Sessions()
    for _ in range(8):
        has.submit(1, 1, CALLS_LIMIT // 8)
    with pytest.raises(ProtocolError, match=r"session 1 has 67,108,864 bytes of calls .* credit is 33,554,432"):
        has.submit(1, 1, 100)
    has.submit(2, 1, MEGABYTE)
    next(has.sessions[1].records()).calls = b""
    has.submit(1, 1, 100)


def test_graphs_have_a_budget_of_their_own() -> None:
    has = Sessions(session_bytes=2 * CALLS_LIMIT)
    for _ in range(15):
        has.submit(1, 1, CALLS_LIMIT // 8, graph=True)
    has.submit(1, 1, 100)
    with pytest.raises(SubmitRefusedError, match=r"session 1 has 16 tasks, which take .* --max-session-bytes"):
        has.submit(1, 1, CALLS_LIMIT // 8, graph=True)


def test_tasks_without_bytes_count_too() -> None:
    has = Sessions(session_bytes=100 * TASK_BYTES)
    has.submit(1, 100, 0)
    with pytest.raises(SubmitRefusedError, match="session 1 has 100 tasks"):
        has.submit(1, 1, 0)


def test_groups_count_too(driver: SchedulerDriver) -> None:
    """A task may have a group of its own, with the names of 256 capabilities."""
    client = driver.client(b"client")
    session = driver.core.state.sessions[client[0]]
    names = tuple("x" * 250 + str(number) for number in range(100, 356))
    driver.submit(client, capability_names=names, capability_values=(1,) * 256)
    assert 256 * 250 < session.task_bytes < 256 * 250 + 10_000


def test_if_all_memory_is_in_use_who_has_more_than_a_share_is_refused() -> None:
    has = Sessions(total_bytes=100 * TASK_BYTES)
    has.submit(1, 100, 0)
    with pytest.raises(SubmitRefusedError, match=r"tasks of 2 sessions take .* session 1 has .* share is 25,600"):
        has.submit(1, 1, 0)
    has.submit(2, 50, 0)
    with pytest.raises(SubmitRefusedError, match="session 2"):
        has.submit(2, 1, 0)
    has.sessions[1].tasks.clear()
    has.submit(2, 40, 0)


@pytest.mark.parametrize("consumers", [1, 0])
def test_results_that_other_tasks_need_count_too(make_driver: type[SchedulerDriver], consumers: int) -> None:
    driver = make_driver(SchedulerConfig(max_session_bytes=100_000))
    client, agent = driver.client(), driver.agent()
    (source,) = driver.submit(client)
    runs, waiting = driver.runs(agent), [source + 1]
    if consumers:
        driver.feed(client, node(source + 1, consumers=1))
        source, waiting = source + 1, [source + 2]
        driver.done(agent, runs)
        runs = driver.runs(agent)
    driver.feed(client, node(waiting[0], source), node(waiting[0] + 1, waiting[0]))
    driver.done(agent, runs, result=bytes(90_000))
    tasks = waiting[0] + 2
    driver.feed(client, *(node(task) for task in range(tasks, tasks + 20)))
    refused = [reason for status, reason in driver.outcomes(client).values() if status == Status.FAILED]
    assert refused and all(b"--max-session-bytes" in reason for reason in refused)
    driver.feed(client, Cancel([*waiting, waiting[0] + 1]))
    driver.later(1.0)
    driver.feed(client, node(tasks + 20))
    assert not driver.outcomes(client)


def node(task: int, *needs: int, consumers: int = 0) -> Submit:
    """A Submit of one task."""
    counts = [consumers] if consumers else []
    return Submit(
        [Group(function_id(b"body"))],
        [task],
        Payloads([b"call"]),
        dependents=[0] * len(needs),
        needs=needs,
        consumers=counts,
        graph=task if consumers else 0,
        graph_size=consumers,
    )


def test_what_a_client_leaves_is_counted_when_it_must_be_known(driver: SchedulerDriver) -> None:
    client = driver.client(b"client")
    tasks = driver.submit(client, 3)
    driver.feed(client, Cancel(tasks[:1]))
    assert driver.core.left_by(client, False) == 3 * len(b"call")
    assert driver.core.left_by(client, True) == driver.core.left_by(client, False) == 2 * len(b"call")
    named = driver.client(b"named", session_name="n", session_key=b"k")
    driver.submit(named)
    assert driver.core.left_by(named, True) == driver.core.left_by(b"nobody", True) == 0


def test_sessions_of_one_key_have_one_share_of_the_memory() -> None:
    has = Sessions(total_bytes=100 * TASK_BYTES)
    for number in range(3, 20):
        has.sessions[number] = SessionRecord(number, bytes(16), share=has.sessions[1].share)
        has.submit(number, 5, 0)
    has.submit(1, 10, 0)
    with pytest.raises(SubmitRefusedError, match=r"session 3 has 2,560 .* key have 48,640, and their share is 25,600"):
        has.submit(3, 10, 0)
    has.submit(2, 40, 0)
