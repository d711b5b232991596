"""Shared calls: every task finds its own, whatever goes with which message, and none keeps much of others alive."""

from __future__ import annotations

import gc
import tracemalloc
from random import Random
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from scaler_protocol.messages import Returned, Run
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.shared_calls import FEWEST, LONGEST, PIECE_BYTES, SharedCalls, column_of, share
from scaler_scheduler.core.task_states import ASSIGNED

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FIRST = 5 << 32


def column(calls: list[bytes]) -> Payloads:
    """As it comes with a message."""
    return Payloads.cut(b"".join(calls), [len(call) for call in calls])


@given(st.lists(st.binary(max_size=LONGEST + 1), min_size=1, max_size=200), st.randoms(use_true_random=False))
def test_calls_are_those_of_their_tasks_in_any_order(calls: list[bytes], random: Random) -> None:
    tasks = range(FIRST, FIRST + len(calls))
    shared = share(tuple(tasks), column(calls))
    assert column_of(tasks, shared) == Payloads(calls)
    order = list(range(len(calls)))
    random.shuffle(order)
    for some in (order, order[: len(order) // 2]):
        found = column_of([tasks[at] for at in some], [shared[at] for at in some])
        assert found == Payloads([calls[at] for at in some])
    for piece in shared:
        assert not isinstance(piece, SharedCalls) or len(piece.frame) <= PIECE_BYTES + LONGEST


def test_few_long_or_scattered_calls_are_not_shared() -> None:
    def is_shared(tasks: tuple[int, ...], calls: Payloads) -> bool:
        return any(isinstance(call, SharedCalls) for call in share(tasks, calls))

    tasks, calls = tuple(range(FIRST, FIRST + FEWEST)), [b"x"] * FEWEST
    assert is_shared(tasks, column(calls))
    assert not is_shared(tasks[1:], column(calls[1:]))
    assert not is_shared(tasks, column([*calls[1:], bytes(LONGEST + 1)]))
    assert not is_shared((*tasks[:-1], tasks[-1] + 1), column(calls))
    assert not is_shared((tasks[1], tasks[0], *tasks[2:]), column(calls))
    assert not is_shared(tasks, Payloads(calls)), "each has an object already"


def test_an_assigned_task_takes_less_than_300_bytes(make_driver: type[SchedulerDriver]) -> None:
    count, per_message = 20_000, 1000
    driver = make_driver()
    client = driver.client()
    for number in range(10):
        driver.agent(b"agent%d" % number, workers=count)
    driver.submit(client, 1)
    tracemalloc.start()
    tasks = [task for _ in range(count // per_message) for task in driver.submit(client, per_message)]
    driver.inboxes.clear()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    session = driver.core.state.sessions[client[0]]
    assert all(session.tasks[task].state == ASSIGNED for task in tasks)
    del tasks
    assert size / count < 300, size / count


def test_a_run_that_is_returned_is_sent_again_with_its_call(driver: SchedulerDriver) -> None:
    """Tasks that go back to the queue come from there in another order, or with others."""
    client, agent = driver.client(), driver.agent(workers=FEWEST)
    driver.submit(client, FEWEST)
    (run,) = driver.take(agent, Run)
    calls = dict(zip(run.tasks, run.calls, strict=True))
    session = driver.core.state.sessions[client[0]]
    assert all(isinstance(driver.core.state.find(task).calls, SharedCalls) for task in session.tasks)  # type: ignore[union-attr]
    driver.feed(agent, Returned(tuple(range(run.first_run, run.first_run + FEWEST, 2))))
    (again,) = driver.take(agent, Run)
    assert dict(zip(again.tasks, again.calls, strict=True)) == {task: calls[task] for task in again.tasks}
    assert len(again.tasks) == FEWEST // 2
