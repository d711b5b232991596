"""WorkerSupervisor: starts and kills workers, replaces the template, and reports deaths to the core."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from scaler_io.service.turn_loop import TurnLoop
from scaler_worker.agent.core import events
from scaler_worker.agent.core.core import AgentCore
from scaler_worker.agent.log_once import LogOnce
from scaler_worker.agent.processes import WorkerExit, WorkerProcesses
from scaler_worker.agent.worker_reader import WorkerReader
from scaler_worker.agent.worker_writer import WorkerWriter

LOGGER: Final = logging.getLogger("scaler")
RENEW_SECONDS: Final = 1.0
"""Between two attempts to start a template."""


class WorkerSupervisor:
    """Supervises the worker processes, from `begin` to `end`."""

    def __init__(
        self,
        core: AgentCore,
        processes: WorkerProcesses,
        reader: WorkerReader,
        writer: WorkerWriter,
        turns: TurnLoop,
        errors: LogOnce,
    ) -> None:
        self._core, self._processes, self._reader, self._writer = core, processes, reader, writer
        self._turns, self._errors = turns, errors
        self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        """Watch the template."""
        self._loop.add_reader(self._processes.template.fileno(), self._read_reports)

    def start(self, effect: events.StartWorker) -> None:
        """Request a worker from the template; raises OSError."""
        self._processes.start(effect.worker, effect.name, effect.gpu)
        self._reader.watch(effect.worker)

    def kill(self, effect: events.KillWorker) -> None:
        """Kill a worker; its death is reported when its process has ended."""
        self._processes.kill(effect.worker)
        self._report(self._processes.unkillable())

    def end_worker(self, effect: events.EndWorker) -> None:
        """Close the channel of an idle worker, which then exits."""
        self._processes.channels[effect.worker].end()

    def reap(self) -> None:
        """Look for processes that have ended and that no template reports."""
        if not self._turns.closed:
            self._report(self._processes.reap())
            self._turns.soon()

    def end(self, is_foreign: Callable[[int], bool]) -> None:
        """Kill all processes; children of this process that are foreign are left alone."""
        self._loop.remove_reader(self._processes.template.fileno())
        for number in self._processes.channels:
            self._reader.unwatch(number)
        self._processes.end(is_foreign)

    def _read_reports(self) -> None:
        endings, alive = self._processes.reports()
        self._report(endings)
        if not alive:
            template = self._processes.template
            self._loop.remove_reader(template.fileno())
            template.close()
            LOGGER.warning("the template (process %d) has exited; starting another one", template.pid)
            self._renew_template()
        self._turns.soon()

    def _renew_template(self) -> None:
        if self._turns.closed:
            return
        try:
            self._processes.renew_template()
        except OSError as error:
            self._errors.log("the template cannot be started", error)
            self._loop.call_later(RENEW_SECONDS, self._renew_template)
            return
        self.begin()
        self.reap()
        self._report(self._processes.lost_with_template())

    def _report(self, endings: Iterable[WorkerExit]) -> None:
        for ending in endings:
            if ending.number in self._processes.channels:
                self._died(ending)

    def _died(self, ending: WorkerExit) -> None:
        """Read a dead worker's pipe to the end, then report its death to the core."""
        number = ending.number
        while self._reader.take_results(number):
            pass
        run = self._processes.current_run(number)
        self._reader.unwatch(number)
        self._writer.unwatch(number)
        crash_report = self._processes.forget(number)
        event: Any = events.WorkerNotStarted(ending.reason)
        if ending.forked:
            event = events.WorkerDied(ending.reason, run, ending.peak_memory, crash_report)
        self._core.handle(number, event, time.monotonic())
