"""WorkerEvents: passes events of workers to the core."""

from __future__ import annotations

from typing import Any

from scaler_worker.agent.core.core import AgentCore
from scaler_worker.agent.log_once import LogOnce
from scaler_worker.agent.processes import WorkerProcesses
from scaler_worker.agent.start_report import StartReport
from scaler_worker.ipc.frames import WorkerReady


class WorkerEvents:
    """If the core fails on an event, only the worker that sent it is killed."""

    def __init__(self, core: AgentCore, processes: WorkerProcesses, started: StartReport, errors: LogOnce) -> None:
        self._handle, self._processes, self._started, self._errors = core.handle, processes, started, errors

    def handle(self, number: int, event: Any, now: float) -> None:
        """Pass on one event of a worker: a reply, a message of the client in its task, or an answer to an effect."""
        if isinstance(event, WorkerReady):
            self._started.ready()
            self._processes.ready(number, event.pid)
        try:
            self._handle(number, event, now)
        except Exception as error:
            self._errors.log(f"Worker[{number}] is killed: its {type(event).__name__} could not be handled", error)
            self._processes.kill(number)
