"""WorkerSupervisor: deaths are reported once, after the last results; the template is replaced."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from scaler_worker.agent import supervisor as module
from scaler_worker.agent.core.events import EndWorker, KillWorker, StartWorker, WorkerDied, WorkerNotStarted
from scaler_worker.agent.log_once import LogOnce
from scaler_worker.agent.processes import WorkerExit
from scaler_worker.agent.supervisor import WorkerSupervisor


class PipeTemplate:
    """A template whose reports are announced through a pipe."""

    def __init__(self) -> None:
        self.pid = 99
        self._reading, self._writing = os.pipe()

    def fileno(self) -> int:
        return self._reading

    def announce(self) -> None:
        os.write(self._writing, b"x")

    def close(self) -> None:
        if self._reading >= 0:
            os.close(self._reading)
            os.close(self._writing)
            self._reading = self._writing = -1


class ScriptedProcesses:
    """WorkerProcesses without processes."""

    def __init__(self, log: list[Any]) -> None:
        self.channels: dict[int, Any] = {}
        self.template = PipeTemplate()
        self.pending: tuple[list[WorkerExit], bool] = [], True
        self.left: list[WorkerExit] = []
        self.lost: list[WorkerExit] = []
        self.renewals: list[Exception | None] = []
        self._log = log

    def start(self, number: int, name: str, gpu: str | None) -> None:
        self.channels[number] = SimpleNamespace(end=lambda: self._log.append(("end", number)))

    def kill(self, number: int) -> None:
        self._log.append(("kill", number))

    def unkillable(self) -> list[WorkerExit]:
        found, self.left = self.left, []
        return found

    reap = unkillable

    def reports(self) -> tuple[list[WorkerExit], bool]:
        os.read(self.template.fileno(), 1)
        found, self.pending = self.pending, ([], True)
        return found

    def renew_template(self) -> None:
        error = self.renewals.pop(0)
        if error is not None:
            raise error
        self.template = PipeTemplate()

    def lost_with_template(self) -> list[WorkerExit]:
        return self.lost

    def current_run(self, number: int) -> int:
        self._log.append("run")
        return 77

    def forget(self, number: int) -> str:
        del self.channels[number]
        return "last words"

    def end(self, is_foreign: Callable[[int], bool]) -> None:
        self._log.append(("all", is_foreign(1)))


class SupervisorParts:
    """A WorkerSupervisor between stubs; `log` is what happened in order."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.results = 0
        self.processes = ScriptedProcesses(self.log)
        self.turns = SimpleNamespace(closed=False, soon=lambda: self.log.append("soon"))
        reader = SimpleNamespace(
            watch=lambda number: self.log.append(("watch", number)),
            unwatch=lambda number: self.log.append(("unwatch", number)),
            take_results=self._take_results,
        )
        writer = SimpleNamespace(unwatch=lambda number: None)
        core = SimpleNamespace(handle=lambda number, event, now: self.log.append((number, event)))
        kind: Any = WorkerSupervisor
        errors = LogOnce(logging.getLogger("scaler"))
        self.supervisor: WorkerSupervisor = kind(core, self.processes, reader, writer, self.turns, errors)
        self.supervisor.begin()

    def _take_results(self, number: int) -> bool:
        self.log.append("results")
        self.results -= 1
        return self.results >= 0

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, self.log
            await asyncio.sleep(0.001)


def play(test: Callable[[SupervisorParts], Awaitable[None]]) -> None:
    async def main() -> None:
        parts = SupervisorParts()
        try:
            await test(parts)
        finally:
            parts.turns.closed = True
            asyncio.get_running_loop().remove_reader(parts.processes.template.fileno())
            parts.processes.template.close()

    asyncio.run(main())


def test_a_death_is_reported_once_after_the_last_results() -> None:
    async def test(parts: SupervisorParts) -> None:
        parts.supervisor.start(StartWorker(3, "anna"))
        parts.results = 2
        exited = WorkerExit(3, "exited with code 1", 500)
        parts.processes.pending = [exited, exited], True
        parts.processes.template.announce()
        await parts.until(lambda: "soon" in parts.log)
        died = WorkerDied("exited with code 1", 77, 500, "last words")
        assert parts.log == [("watch", 3), *["results"] * 3, "run", ("unwatch", 3), (3, died), "soon"]

    play(test)


def test_a_worker_that_was_not_forked_is_reported_as_such() -> None:
    async def test(parts: SupervisorParts) -> None:
        parts.supervisor.start(StartWorker(3, "anna"))
        parts.processes.pending = [WorkerExit(3, "Cannot allocate memory", forked=False)], True
        parts.processes.template.announce()
        await parts.until(lambda: "soon" in parts.log)
        assert (3, WorkerNotStarted("Cannot allocate memory")) in parts.log

    play(test)


def test_a_template_that_has_exited_is_replaced_as_soon_as_one_can_be_started(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.001)

    async def test(parts: SupervisorParts) -> None:
        for number in (3, 4):
            parts.supervisor.start(StartWorker(number, "anna"))
        first = parts.processes.template
        parts.processes.pending = [], False
        parts.processes.renewals = [OSError(24, "Too many open files"), None]
        parts.processes.lost = [WorkerExit(4, "the template ended", forked=False)]
        first.announce()
        await parts.until(lambda: not parts.processes.renewals)
        await parts.until(lambda: (4, WorkerNotStarted("the template ended")) in parts.log)
        assert parts.processes.template is not first and list(parts.processes.channels) == [3]
        parts.log.clear()
        parts.processes.template.announce()
        await parts.until(lambda: parts.log == ["soon"])

    play(test)


def test_a_worker_that_cannot_be_killed_counts_as_dead() -> None:
    async def test(parts: SupervisorParts) -> None:
        parts.supervisor.start(StartWorker(3, "anna"))
        parts.processes.left = [WorkerExit(3, "runs as another user and could not be killed")]
        parts.supervisor.kill(KillWorker(3))
        assert ("kill", 3) in parts.log and parts.log[-1][1].reason == "runs as another user and could not be killed"

    play(test)


def test_workers_end_by_themselves_or_with_the_agent() -> None:
    async def test(parts: SupervisorParts) -> None:
        parts.supervisor.start(StartWorker(3, "anna"))
        parts.supervisor.end_worker(EndWorker(3))
        parts.turns.closed = True
        parts.supervisor.reap()
        assert parts.log == [("watch", 3), ("end", 3)]
        parts.supervisor.end(lambda pid: pid == signal.SIGHUP)
        assert parts.log[2:] == [("unwatch", 3), ("all", True)]

    play(test)
