"""The processes behind the workers of one host: forked by a template, killed, waited for. Nothing here blocks."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from scaler_worker.agent import host
from scaler_worker.agent.core.records import NO_RUN
from scaler_worker.agent.worker_channel import WorkerChannel
from scaler_worker.forking.template import FORKED, NOT_FORKED
from scaler_worker.forking.template_link import Forking, TemplateLink
from scaler_worker.ipc.crash_reports import CrashReports
from scaler_worker.worker.runner import REVOKED, RUN


class WorkerExit(NamedTuple):
    """The process of a worker has ended, or was never forked."""

    number: int
    reason: str
    peak_memory: int = 0
    forked: bool = True


class WorkerProcesses:
    """`channels` has the workers that were asked for and have not ended, by number."""

    def __init__(self, forking: Forking) -> None:
        self.channels: dict[int, WorkerChannel] = {}
        self.template = forking.template
        self._forking = forking
        self._crashes = CrashReports()

    def start(self, number: int, name: str) -> WorkerChannel:
        """Ask the template for a worker; raises OSError, and leaves nothing behind, where that is impossible."""
        channel = WorkerChannel()
        try:
            faults = self._crashes.open(number)
            try:
                word = self._forking.words.of(number)
                word[RUN], word[REVOKED] = NO_RUN, 0
                self.template.request(number, name, (*channel.worker_ends(), faults))
            finally:
                os.close(faults)
        except BaseException:
            channel.close()
            raise
        channel.handed_over()
        self.channels[number] = channel
        return channel

    def reports(self) -> tuple[list[WorkerExit], bool]:
        """Take what the template has said: which workers have ended, and whether the template is still there."""
        found: list[WorkerExit] = []
        reports, alive = self.template.reports()
        for report in reports:
            channel = self.channels.get(report.number)
            if channel is None:
                continue
            if report.kind == FORKED:
                channel.pid = report.pid
            elif report.kind == NOT_FORKED:
                found.append(WorkerExit(report.number, os.strerror(report.status), forked=False))
            elif channel.pid == report.pid:
                found.append(WorkerExit(report.number, host.ending_of(report.status), report.peak_memory))
        return found, alive

    def renew_template(self) -> None:
        """Start a template in the place of one that has ended; its workers go on, as children of this process.

        Raises OSError.
        """
        forking = self._forking
        self.template = TemplateLink.spawn(forking.lifeline, forking.words, forking.config)

    def lost_with_template(self) -> list[WorkerExit]:
        """Workers that the template had not forked, or whose end it has not reported."""
        found: list[WorkerExit] = []
        for number, channel in self.channels.items():
            if not channel.pid:
                found.append(WorkerExit(number, "the template ended", forked=False))
            elif not os.path.exists(f"/proc/{channel.pid}"):
                found.append(WorkerExit(number, "ended together with the template"))
        return found

    def reap(self) -> list[WorkerExit]:
        """Wait for children: the template, workers of a template that is gone, orphans that tasks left behind."""
        numbers = {channel.pid: number for number, channel in self.channels.items() if channel.pid}
        return [
            WorkerExit(number, host.ending_of(status), peak_memory)
            for pid, status, peak_memory in host.ended_children()
            if (number := numbers.get(pid)) is not None
        ]

    def kill(self, number: int) -> None:
        """Kill a worker, its descendants and its group; raises PermissionError where it runs as another user by now."""
        if pid := self.channels[number].pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)  # it starts nothing more
            host.kill_descendants(pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # it may not lead its group yet

    def forget(self, number: int) -> str:
        """Close the channel of a worker that has ended; returns what its fault handler wrote."""
        self.channels.pop(number).close()
        return self._crashes.take(number)

    def end(self, is_foreign: Callable[[int], bool]) -> None:
        """Kill everything."""
        for number in self.channels:
            with contextlib.suppress(PermissionError):
                self.kill(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.template.pid, signal.SIGKILL)
        host.end_children(is_foreign)
