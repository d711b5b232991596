"""Run messages have a bounded size, and say which inputs the run before gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scaler_protocol.ids import first_task, function_id
from scaler_protocol.messages import MESSAGE_LIMIT, Group, Run, Submit
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.run_messages import run_columns

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FUNCTION = function_id(b"body")
FIRST = first_task(ord("c")) + 1000


def star(consumers: int) -> Submit:
    """Two nodes, and nodes that need both."""
    count = 2 + consumers
    return Submit(
        (Group(FUNCTION),),
        range(FIRST, FIRST + count),
        Payloads([b"call"] * count),
        dependents=[2 + each for each in range(consumers) for _ in range(2)],
        needs=[FIRST + need for _ in range(consumers) for need in (0, 1)],
        consumers=[consumers, consumers, *[0] * consumers],
        intermediate=(0, 1),
        graph=FIRST,
        graph_size=count,
        functions=(FUNCTION,),
        names=("m:f",),
        bodies=Payloads([b"body"]),
    )


def test_a_message_has_as_many_inputs_as_fit(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent(workers=40)
    driver.feed(client, star(40))
    driver.done(agent, driver.runs(agent), result=b"x" * (MESSAGE_LIMIT // 20))
    runs = driver.take(agent, Run)
    assert [task for run in runs for task in run.tasks] == list(range(FIRST + 2, FIRST + 42))
    assert max(sum(run.inputs.lengths) for run in runs) <= MESSAGE_LIMIT and len(runs) < 10
    assert all(len(run.needs) == len(run.inputs) == 2 * len(run.tasks) for run in runs)


def test_a_task_that_fits_no_message_has_one_of_its_own(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent(workers=2)
    driver.feed(client, star(2))
    driver.done(agent, driver.runs(agent), result=b"x" * MESSAGE_LIMIT)
    assert [list(run.tasks) for run in driver.take(agent, Run)] == [[FIRST + 2], [FIRST + 3]]


def test_columns_say_which_inputs_have_not_arrived(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent(workers=2)
    driver.feed(client, star(1))
    driver.done(agent, {FIRST + 1: driver.runs(agent)[FIRST + 1]}, result=b"one")
    tasks = [task for place in range(3) if (task := driver.core.state.find(FIRST + place)) is not None]
    columns = run_columns(tasks)
    assert (columns["dependents"], columns["needs"]) == ([2, 2], [FIRST, FIRST + 1])
    assert (list(columns["inputs"]), columns["inputs_awaited"]) == ([b"", b"one"], [0])
