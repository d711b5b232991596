"""What an agent reports of its workers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaler_protocol.codec import encode
from scaler_protocol.errors import InvalidFieldError
from scaler_protocol.limits import DEATH
from scaler_protocol.messages import Group, Run, WorkerState
from scaler_protocol.payloads import Payloads
from scaler_worker.agent.core.core import AgentCore
from scaler_worker.agent.core.events import SCHEDULER, StartWorker, WorkerDied
from scaler_worker.agent.core.records import NO_RUN, AgentConfig
from scaler_worker.agent.core.snapshot import HostStats
from scaler_worker.ipc.frames import WorkerReady

STATS = HostStats(0.5, 1000, 5, {41: 0.25, 99: 1.0}, {41: 700})


def test_workers_are_reported_from_when_they_are_ready() -> None:
    core = AgentCore(AgentConfig(2, "agent", "host", names=("anna", "bert")))
    assert [effect.worker for effect in core.settle(0.0) if isinstance(effect, StartWorker)] == [0, 1]
    assert core.take_status(STATS).names == []
    core.handle(0, WorkerReady(41), 0.0)
    status = core.take_status(STATS)
    assert (status.cpu, status.rss, status.free, status.queued) == (0.5, 1000, 5, 0)
    assert (status.names, status.pids, status.states) == (["anna"], [41], [WorkerState.IDLE])
    assert (status.runs, status.queues, status.cpus, status.rsses) == ([0], [0], [0.25], [700])
    assert encode(status)


def test_the_newest_run_is_that_of_the_last_message() -> None:
    core = AgentCore(AgentConfig(1, "agent", "host"))
    assert core.take_status(STATS).newest_run == 0
    for first in (2**63, 7):  # another scheduler numbers its runs anew
        core.handle(SCHEDULER, Run(first, (Group(b"f"),), (1, 2, 3), Payloads([b"call"] * 3)), 0.0)
        assert core.take_status(STATS).newest_run == first + 2


def test_each_death_is_reported_once() -> None:
    core = AgentCore(AgentConfig(1, "agent", "host", names=("anna",)))
    core.settle(0.0)
    core.handle(0, WorkerReady(41), 0.0)
    core.handle(0, WorkerDied("was killed by SIGKILL", NO_RUN), 0.0)
    assert core.take_status(STATS).deaths == ["anna (agent-41) was killed by SIGKILL"]
    assert core.take_status(STATS).deaths == []


def test_only_the_last_deaths_are_reported_and_shortly() -> None:
    core = AgentCore(AgentConfig(1, "agent", "host", names=("anna",)))
    core.workers.deaths += [f"{number} {'x' * 10_000}" for number in range(1000)]
    report = core.take_status(STATS)
    assert [text.split()[0] for text in report.deaths] == [str(number) for number in range(744, 1000)]
    assert all(len(text) <= DEATH.most for text in report.deaths)
    assert encode(report)
    with pytest.raises(InvalidFieldError, match=r"AgentStatus.deaths"):
        encode(replace(report, deaths=["short"] * 257))
