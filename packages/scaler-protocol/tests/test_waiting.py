"""Why tasks wait, in sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaler_protocol.monitoring import MonitorStatus
from scaler_protocol.waiting import Ahead, WaitReasons, lacks

PYTHON, OTHER = "Python 3.11 with cloudpickle 3.1", "Python 3.12 with cloudpickle 3.1"
STATUS = MonitorStatus(
    1, 5.0, assigned=2, agents=[1, 2], agent_workers=[3, 0],
    agent_capabilities=["gpu=1,linux", "fpga"], agent_runtimes=[PYTHON, PYTHON],
)  # fmt: skip


@pytest.mark.parametrize(
    ("needs", "runtime", "ahead", "said"),
    [
        ("linux", PYTHON, (), ["it is next: 3 workers have 2 tasks"]),
        ("gpu=2,linux", "", (), ["it waits: no worker offers gpu=2"]),
        ("gpu=1", OTHER, (), [f"it waits: no worker offers {OTHER}"]),
        (
            "",
            "",
            [(5, 1), (0, 2000)],
            [
                "it waits behind 1 task of priority 5; 3 workers have 2 tasks",
                "it waits behind 2,000 tasks of priority 0; 3 workers have 2 tasks",
            ],
        ),
    ],
)
def test_a_task_waits_for_capabilities_a_python_or_others(
    needs: str, runtime: str, ahead: Ahead, said: list[str]
) -> None:
    assert WaitReasons(STATUS).why_waiting(needs, runtime, ahead) == said


def test_one_worker_has_tasks() -> None:
    one = replace(STATUS, agent_workers=[1, 0], assigned=1)
    assert WaitReasons(one).why_waiting("", "", ()) == ["it is next: 1 worker has 1 task"]


def test_without_workers_the_managers_are_named_with_what_they_lack() -> None:
    alone = MonitorStatus(
        1, 5.0, managers=["grid"], manager_kinds=["slurm"], manager_hosts=["here"], manager_maximums=[-1],
        manager_desired=[8], manager_joined=[0], manager_starting=[4], manager_draining=[0], manager_reasons=["work"],
        manager_failures=[""], manager_pauses=[0.0], offer_managers=["grid"], offer_capabilities=["linux"],
        offer_runtimes=[""],
    )  # fmt: skip
    none = "it waits: no worker is connected"
    assert WaitReasons(MonitorStatus(1, 5.0)).why_waiting("", "", ()) == [none]
    reasons = WaitReasons(alone)
    assert reasons.why_waiting("linux", PYTHON, ()) == [none, "worker manager grid starts 4 workers: work"]
    assert reasons.why_waiting("gpu", "", ()) == [none, "worker manager grid starts no workers with gpu"]


def test_what_an_offer_lacks() -> None:
    assert lacks("gpu=2,linux", PYTHON, "gpu=1", OTHER) == ["gpu=2", "linux", PYTHON]
    assert lacks("gpu", "", "gpu=1", OTHER) == []
