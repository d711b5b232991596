"""`baremetal_native`: units are processes of this host, which end with the manager."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from scaler_io.provisioning.provisioner import Provisioner, UnitPhase, UnitReport
from scaler_io.service.options import Option, one_of, whole_number
from scaler_protocol.ids import new_incarnation
from scaler_worker.managers.manager import run_manager
from scaler_worker.managers.options import ManagerOptions, manager_command

POLL_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions(ManagerOptions):
    """The command line of `scaler_worker_manager baremetal_native`."""

    mode: str
    worker_type: str


COMMAND: Final = manager_command(
    "baremetal_native",
    "Start workers on this host as the scheduler wants them, or a fixed number.",
    NativeOptions,
    (
        Option(
            ("--mode",),
            "dynamic: as many workers as the scheduler wants; fixed: --max-task-concurrency workers, always",
            one_of("dynamic", "fixed"),
            default="dynamic",
        ),
        Option(("--worker-type",), "begins the names of units", default="NAT"),
        Option(
            ("--max-task-concurrency", "-mtc", "--num-of-workers", "-n"),
            "the most workers; -1 for no limit",
            whole_number(-1),
            default=os.cpu_count() or 1,
        ),
    ),
    example="scaler_worker_manager baremetal_native tcp://127.0.0.1:2345 --worker-manager-id local -mtc 8",
)


class NativeProvisioner(Provisioner):
    """Starts processes on this host, one for each unit, with the command that `command` makes of the unit's name."""

    def __init__(self, command: Callable[[str], list[str]]) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, units: Sequence[str], offer: int) -> Sequence[str]:
        """Start a process for each unit."""
        for unit in units:
            process = subprocess.Popen(
                self._command(unit),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for the manager, which drains its units
            )
            with self._lock:
                self._processes[unit] = process
        return units

    def stop(self, units: Sequence[str], *, force: bool) -> None:
        """Send SIGTERM, or SIGKILL with `force`."""
        with self._lock:
            processes = [self._processes[unit] for unit in units if unit in self._processes]
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL if force else signal.SIGTERM)

    def list_units(self) -> Mapping[str, UnitReport]:
        """The processes; one that has ended is reported once."""
        with self._lock:
            processes = dict(self._processes)
        reports = {}
        for unit, process in processes.items():
            code = process.poll()
            if code is None:
                reports[unit] = UnitReport(UnitPhase.RUNNING)
                continue
            reports[unit] = UnitReport(UnitPhase.ENDED, f"exit code {code}" if code >= 0 else f"signal {-code}")
            with self._lock:
                del self._processes[unit]
        return reports

    def close(self) -> None:
        """Nothing is held: processes that still run end with this one."""


def cluster_command(options: ManagerOptions, unit: str) -> list[str]:
    """The command of a unit on this host, which ends with this process."""
    return [sys.executable, "-m", "scaler_worker", *options.unit_words(unit), "--parent-pid", str(os.getpid())]


def run(options: NativeOptions) -> int:
    """Run the manager until it has ended; in mode `fixed` this process becomes the agent of all workers."""
    if options.mode == "fixed":
        words = replace(options, workers_per_unit=max(1, options.max_task_concurrency)).unit_words("")
        os.execv(sys.executable, [sys.executable, "-m", "scaler_worker", *words])
    return run_manager(
        options,
        lambda: NativeProvisioner(lambda unit: cluster_command(options, unit)),
        replace(
            options.manager_config("baremetal_native", poll_seconds=POLL_SECONDS),
            prefix=f"{options.worker_type}-{options.worker_manager_id}-{new_incarnation():06x}",
        ),
    )
