"""The worker processes of one agent: requested from the template, killed, reaped. Nothing blocks."""

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
from scaler_worker.ipc.cells import REVOKED, RUN, SAMPLE_UNTIL
from scaler_worker.ipc.crash_reports import CrashReports
from scaler_worker.ipc.families import end_children, kill_descendants


class WorkerExit(NamedTuple):
    """The process of a worker has exited, or was never forked."""

    number: int
    reason: str
    peak_memory: int = 0
    forked: bool = True


class WorkerProcesses:
    """`channels` holds the workers that were requested and have not ended, by number."""

    def __init__(self, forking: Forking) -> None:
        self.channels: dict[int, WorkerChannel] = {}
        self.template = forking.template
        self._forking = forking
        self._crashes = CrashReports()
        self._unkillable: list[WorkerExit] = []

    def start(self, number: int, name: str, gpu: str | None) -> WorkerChannel:
        """Request a worker from the template, maybe one that sees this GPU or none; raises OSError, and then leaves
        nothing behind."""
        channel = WorkerChannel()
        try:
            faults = self._crashes.open(number)
            try:
                cells = self._forking.shared.cells(number)
                cells[RUN], cells[REVOKED], cells[SAMPLE_UNTIL] = NO_RUN, 0, 0
                self._forking.shared.restore()
                self.template.request(number, name, gpu, (*channel.worker_ends(), faults))
            finally:
                os.close(faults)
        except BaseException:
            channel.close()
            raise
        channel.handed_over()
        self.channels[number] = channel
        return channel

    def reports(self) -> tuple[list[WorkerExit], bool]:
        """Read the template's reports: workers that have ended, and whether the template is alive."""
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
        """Start a new template after the old one has exited, whose workers become children of this process.

        Raises OSError.
        """
        forking = self._forking
        self.template = TemplateLink.spawn(forking.lifeline, forking.shared, forking.config)

    def lost_with_template(self) -> list[WorkerExit]:
        """Workers that the old template did not fork, or whose exit it did not report."""
        found: list[WorkerExit] = []
        for number, channel in self.channels.items():
            if not channel.pid:
                found.append(WorkerExit(number, "the template ended", forked=False))
            elif not os.path.exists(f"/proc/{channel.pid}"):
                found.append(WorkerExit(number, "ended together with the template"))
        return found

    def pids(self) -> list[int]:
        """The process ids of all workers that were forked."""
        return [channel.pid for channel in self.channels.values() if channel.pid]

    def ready(self, number: int, pid: int) -> None:
        """A worker has reported that it is ready; the template's report of its process id may come later."""
        channel = self.channels[number]
        channel.pid = channel.pid or pid

    def current_run(self, number: int) -> int:
        """The run in a worker's cells; a task may have overwritten it."""
        return int(self._forking.shared.cells(number)[RUN])

    def revoke(self, number: int, sequence: int) -> None:
        """Have a worker start no more runs of its datagrams up to this sequence."""
        self._forking.shared.cells(number)[REVOKED] = sequence

    def sample(self, number: int, until: int) -> None:
        """Have a worker sample what it runs until then; one that has ended, or runs as another user, does not."""
        channel = self.channels.get(number)
        if channel is not None and channel.pid:
            self._forking.shared.cells(number)[SAMPLE_UNTIL] = until
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(channel.pid, signal.SIGURG)

    def unkillable(self) -> list[WorkerExit]:
        """Workers that could not be killed since the last call: they exit when their task ends."""
        found, self._unkillable = self._unkillable, []
        return found

    def reap(self) -> list[WorkerExit]:
        """Reap children: the template, workers of an exited template, orphans of tasks; also returns `unkillable`."""
        numbers = {channel.pid: number for number, channel in self.channels.items() if channel.pid}
        return self.unkillable() + [
            WorkerExit(number, host.ending_of(status), peak_memory)
            for pid, status, peak_memory in host.ended_children()
            if (number := numbers.get(pid)) is not None
        ]

    def kill(self, number: int) -> None:
        """Kill a worker, its descendants and its group; a worker that runs as another user becomes `unkillable`."""
        if pid := self.channels[number].pid:
            try:
                _kill_family(pid)
            except PermissionError:
                self._unkillable.append(WorkerExit(number, "runs as another user and could not be killed"))

    def forget(self, number: int) -> str:
        """Close the channel of a worker that has ended; returns its crash report."""
        self.channels.pop(number).close()
        return self._crashes.take(number)

    def end(self, is_foreign: Callable[[int], bool]) -> None:
        """Kill all workers, the template, and other children that are not foreign."""
        for number in self.channels:
            self.kill(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.template.pid, signal.SIGKILL)
        end_children(is_foreign)


def _kill_family(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)  # it cannot fork any more
    kill_descendants(pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # it may not lead its group yet
