"""WorkerEvents: what the core is told, and what an event does that the core fails on."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from scaler_worker.agent.core.events import RunRead
from scaler_worker.agent.log_once import LogOnce
from scaler_worker.agent.start_report import StartReport
from scaler_worker.agent.worker_events import WorkerEvents
from scaler_worker.ipc.frames import WorkerReady


class FragileCore:
    """Fails on RunRead."""

    def __init__(self) -> None:
        self.handled: list[tuple[int, Any]] = []

    def handle(self, number: int, event: Any, now: float) -> None:
        if isinstance(event, RunRead):
            raise ValueError("on purpose")
        self.handled.append((number, event))


class RecordingProcesses:
    """Records what is asked of it."""

    def __init__(self) -> None:
        self.killed: list[int] = []
        self.pids: dict[int, int] = {}

    def kill(self, number: int) -> None:
        self.killed.append(number)

    def ready(self, number: int, pid: int) -> None:
        self.pids[number] = pid


def test_a_ready_worker_is_reported() -> None:
    async def main() -> None:
        core, processes, started = FragileCore(), RecordingProcesses(), StartReport()
        events: Any = WorkerEvents
        events(core, processes, started, LogOnce(logging.getLogger("scaler"))).handle(1, WorkerReady(41), 0.0)
        assert core.handled == [(1, WorkerReady(41))] and processes.pids == {1: 41}
        assert await started.wait() == ""

    asyncio.run(main())


def test_a_worker_whose_event_cannot_be_handled_is_killed_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        core, processes = FragileCore(), RecordingProcesses()
        kind: Any = WorkerEvents
        events = kind(core, processes, StartReport(), LogOnce(logging.getLogger("scaler")))
        for number in (1, 2):
            events.handle(number, RunRead(0, 0), 0.0)
        assert processes.killed == [1, 2] and core.handled == []

    asyncio.run(main())
    assert caplog.messages[0] == ("Worker[1] is killed: its RunRead could not be handled (ValueError: on purpose)")
