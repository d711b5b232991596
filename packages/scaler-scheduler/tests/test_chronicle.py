"""The chronicle: what monitors are told of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scaler_protocol.ids import first_task, function_id
from scaler_protocol.messages import Group, Submit
from scaler_protocol.monitoring import PACKED_BATCH, TaskStep
from scaler_protocol.objects import Reference
from scaler_protocol.payloads import Payloads

if TYPE_CHECKING:
    from conftest import SchedulerDriver


def test_tasks_of_which_none_waits_for_another_run_while_somebody_listens(driver: SchedulerDriver) -> None:
    driver.core.state.chronicle.begin([], [])
    client, agent = driver.client(), driver.agent()
    task, body = first_task(client[0]) + 1, b"body"
    driver.feed(
        client,
        Submit(
            (Group(function_id(body)),), (task,), Payloads([Reference(bytes(16), 99).pack()]), stored=(0,),
            functions=(function_id(body),), names=("f",), bodies=Payloads([body]),
        ),
    )  # fmt: skip
    assert driver.runs(agent).keys() == {task}
    told = driver.core.state.chronicle.take(0.0)
    assert told is not None
    steps = [step for step, *_ in PACKED_BATCH.iter_unpack(told.batches)]
    assert steps == [TaskStep.WAITING, TaskStep.ASSIGNED]
