"""A scheduler that exists only as what it publishes."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from scaler_protocol.byte_planes import to_planes
from scaler_protocol.messages import Status, WorkerState
from scaler_protocol.monitoring import PACKED_BATCH, PACKED_ID, MonitorMessage, MonitorStatus, TaskEvents, TaskStep
from scaler_protocol.profiles import PROFILE, Profile
from scaler_ui.model.model import MonitorModel

RUNTIME = "Python 3.11 with cloudpickle 3.1"
PROFILE_BYTES = Profile(1500, 900, 2_000_000, 77, 0, 1).packed()


def status(workers: int = 3, **changes: Any) -> MonitorStatus:
    """Two agents with so many workers each, numbered 1 and 2."""
    names = [f"vm:{agent}:{number}" for agent in (1, 2) for number in range(workers)]
    total = len(names)
    made = MonitorStatus(
        5,
        1000.0,
        address="tcp://127.0.0.1:2345",
        cpu=0.25,
        rss=130 * 1024 * 1024,
        waiting=4,
        assigned=2,
        succeeded=53_704,
        raised=9,
        failed=5,
        cancelled=48,
        not_found=14,
        sent_names=("Run", "Heartbeat"),
        sent_counts=(10, 2000),
        received_names=("Submit",),
        received_counts=(3,),
        client_sessions=(7, 8),
        client_names=("Client|a", ""),
        client_hosts=("vm", ""),
        client_tasks=(6, 1),
        agents=(1, 2),
        agent_names=("vm:1", "vm:2"),
        agent_hosts=("vm", "vm"),
        agent_workers=(workers, workers),
        agent_queue_sizes=(1000, 1000),
        agent_capabilities=("", "linux,ram=4"),
        agent_runtimes=(RUNTIME, RUNTIME),
        agent_cpus=(0.005, 0.01),
        agent_rsses=(111_000_000, 112_000_000),
        agent_free=(10**9, 10**9),
        agent_assigned=(2, 0),
        agent_queued=(1, 0),
        agent_round_trips=(0.0007, 0.001),
        agent_status_ages=(0.5, 12.0),
        agent_managers=("", "grid"),
        agent_units=("", "u7"),
        agent_draining=(False, False),
        agent_loads=(0.5, 1.5),
        agent_disks_free=(2**40, 2**40),
        agent_shared_free=(2**33, 2**33),
        worker_agents=[1] * workers + [2] * workers,
        worker_names=names,
        worker_pids=range(100, 100 + total),
        worker_states=[WorkerState.RUNNING] + [WorkerState.IDLE] * (total - 1),
        worker_runs=([501] + [0] * (total - 1))[:total],
        worker_cpus=[0.1 * number for number in range(total)],
        worker_rsses=[50_000_000 - number for number in range(total)],
        worker_queues=[1] + [0] * (total - 1),
        worker_seconds=[0.0] * total,
        function_names=("math:sqrt", "__main__:inc", "math:sqrt"),
        function_counts=(10, 20, 5),
        function_seconds=(0.1, 0.2, 0.3),
        function_runs=(10, 20, 5),
        function_run_seconds=(1.0, 4.0, 1.5),
    )
    return replace(made, **changes)


def batch(
    step: int,
    subject: int,
    *tasks: int,
    time: float = 1000.0,
    first_run: int = 0,
    statuses: bytes = b"",
    profiles: bytes = b"",
    **more: Any,
) -> TaskEvents:
    """One batch; `statuses` and `profiles` are records, of an ENDED one by default those of tasks without faults."""
    if step == TaskStep.ENDED:
        statuses, profiles = statuses or bytes(len(tasks)), profiles or PROFILE_BYTES * len(tasks)
    made = TaskEvents(
        since=time,
        batches=to_planes(PACKED_BATCH.pack(step, subject, len(tasks), 0), PACKED_BATCH.size),
        runs=to_planes(PACKED_ID.pack(first_run), PACKED_ID.size) if step == TaskStep.ASSIGNED else b"",
        tasks=to_planes(struct.pack(f"<{len(tasks)}Q", *tasks), PACKED_ID.size),
        statuses=to_planes(statuses, 1),
        profiles=to_planes(profiles, PROFILE.size),
    )
    return replace(made, **more)


def groups(*described: tuple[int, str, int, int, str, str]) -> TaskEvents:
    """Number, function, session, priority, needs, runtime of each."""
    numbers, functions, sessions, priorities, needs, runtimes = zip(*described, strict=True)
    columns = numbers, functions, sessions, priorities, needs, runtimes
    return TaskEvents(*columns, group_clients=("",) * len(numbers))


def model_of(*messages: MonitorMessage, now: float = 50.0) -> MonitorModel:
    """A model that has heard these."""
    model = MonitorModel(tasks=1000)
    for message in messages:
        model.take(message, now)
    return model


def square_roots() -> MonitorModel:
    """A model of 70 tasks: of the first 60, which call math:sqrt, 30 have ended and one has raised."""
    return model_of(
        status(40, at=1000.0, succeeded=0),
        groups((9, "math:sqrt", 7, 0, "", ""), (8, "time:sleep", 7, 0, "", "")),
        batch(TaskStep.WAITING, 9, *range(1, 61)),
        batch(TaskStep.WAITING, 8, *range(61, 71), time=1000.5),
        batch(TaskStep.ENDED, 1, *range(1, 31), time=1001.0),
        batch(TaskStep.ENDED, 1, 31, statuses=bytes([Status.RAISED]), time=1001.0),
        TaskEvents(
            text_numbers=(1, 2),
            text_kinds=(3, 1),
            text_subjects=("vm", ""),
            text_times=(1.0, 2.0),
            text_levels=(20, 30),
            text_tasks=(0, 31),
            texts=("came", "a run was lost"),
        ),
        status(40, at=1002.0, succeeded=100),
    )


class Publications:
    """What tests take from here."""

    status = staticmethod(status)
    batch = staticmethod(batch)
    groups = staticmethod(groups)
    model_of = staticmethod(model_of)
    square_roots = staticmethod(square_roots)
    runtime = RUNTIME


@pytest.fixture(scope="session")
def publications() -> Publications:
    """Messages as a scheduler publishes them."""
    return Publications()
