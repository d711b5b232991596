"""`baremetal_native`: units are processes of this host, which end with the manager."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from scaler_io.interpreters import environment_of_workers, words_of
from scaler_io.provisioning.provisioner import Provisioner, UnitPhase, UnitReport
from scaler_io.service.options import Option, Refusal, UsageError, one_of, whole_number
from scaler_protocol.ids import new_incarnation
from scaler_protocol.lazy_dataclass import dataclass
from scaler_worker.managers.options import MOST_WORKERS, ManagerOptions, manager_command
from scaler_worker.managers.running import run_manager

POLL_SECONDS: Final = 0.5
TAIL_BYTES: Final = 4096
LAST_LINES: Final = 3
"""Bytes of a unit's output that are kept, and lines of it that are quoted when the unit ends."""
TAIL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions(ManagerOptions):
    """The command line of `scaler_worker_manager baremetal_native`."""

    mode: str
    worker_type: str
    leave_units: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        ManagerOptions.__post_init__(self)
        refuse_shared_gpus(self, several=self.mode == "dynamic" and self.max_task_concurrency != self.workers_per_unit)
        if self.mode == "fixed" and self.max_task_concurrency < 0:
            raise UsageError(
                "--mode fixed starts --max-task-concurrency workers, and -1 is no number of workers: say how many"
            )


def refuse_shared_gpus(options: ManagerOptions, *, several: bool) -> None:
    """Raises UsageError if several units on this host would give their workers the same GPUs."""
    if options.gpus and several:
        raise UsageError(
            "--gpus: each unit on this host would give its workers the same GPUs: have one unit, with "
            "--workers-per-unit as --max-task-concurrency"
        )


UNITS_END_TOO: Final = Refusal(
    ("--leave-units",), "units are processes of this host, which end with the program that started them; leave it out"
)

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
            whole_number(-1, MOST_WORKERS),
            default=os.cpu_count() or 1,
        ),
    ),
    (UNITS_END_TOO,),
    example="scaler_worker_manager baremetal_native tcp://127.0.0.1:2345 --worker-manager-id local -mtc 8",
)


class _UnitProcess:
    """A process whose stdout and stderr are passed on to ours, and their last lines."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command,
            env=environment_of_workers(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal is for the manager, which drains its units
        )
        self._tail = b""
        self._passing = threading.Thread(target=self._pass_on, name="scaler-unit-output", daemon=True)
        self._passing.start()

    def _pass_on(self) -> None:
        assert self.process.stdout is not None and self.process.stderr is not None
        with self.process.stdout as stdout, self.process.stderr as stderr, selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ, 1)
            selector.register(stderr, selectors.EVENT_READ, 2)
            while selector.get_map():
                for key, _ in selector.select():
                    if piece := os.read(key.fd, 1 << 16):
                        self._tail = (self._tail + piece)[-TAIL_BYTES:]
                        _write(key.data, piece)
                    else:
                        selector.unregister(key.fileobj)

    def reason(self, code: int) -> str:
        """Why it has ended."""
        self._passing.join(TAIL_SECONDS)  # a process that a task has detached may hold the pipe
        lines = self._tail.decode("utf-8", "replace").split("\n")
        last = " / ".join(line.strip() for line in lines[-LAST_LINES - 1 :] if line.strip())
        ended = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return f"{ended}: {last}" if last else ended


def _write(descriptor: int, text: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody reads it
        while text:
            text = text[os.write(descriptor, text) :]


class NativeProvisioner(Provisioner):
    """Starts processes on this host, one for each unit, with the command that `command` makes of the unit's name."""

    def __init__(self, command: Callable[[str], list[str]]) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._units: dict[str, _UnitProcess] = {}

    def start(self, units: Sequence[str], offer: int) -> Sequence[str]:
        """Start a process for each unit."""
        for unit in units:
            started = _UnitProcess(self._command(unit))
            with self._lock:
                self._units[unit] = started
        return units

    def stop(self, units: Sequence[str], *, force: bool) -> None:
        """Send SIGTERM, or SIGKILL with `force`."""
        with self._lock:
            processes = [self._units[unit].process for unit in units if unit in self._units]
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL if force else signal.SIGTERM)

    def list_units(self) -> Mapping[str, UnitReport]:
        """The processes; one that has ended is reported once."""
        with self._lock:
            started = dict(self._units)
        reports = {}
        for unit, running in started.items():
            code = running.process.poll()
            if code is None:
                reports[unit] = UnitReport(UnitPhase.RUNNING)
                continue
            reports[unit] = UnitReport(UnitPhase.ENDED, running.reason(code))
            with self._lock:
                del self._units[unit]
        return reports

    def close(self) -> None:
        """Nothing is held: processes that still run end with this one."""


def cluster_command(options: ManagerOptions, unit: str, parent: int | None) -> list[str]:
    """The command of a unit on this host, which logs where this process does and ends with process `parent`, if any."""
    words = [*options.unit_words(unit), *options.log_words()]
    if parent is not None:
        words += ["--parent-pid", str(parent)]
    return [sys.executable, *words_of("scaler_worker"), *words]


def run(options: NativeOptions) -> int:
    """Run the manager until it has ended; in mode `fixed` this process becomes the agent of all workers."""
    if options.mode == "fixed":
        fixed = replace(options, workers_per_unit=options.max_task_concurrency)
        os.execve(sys.executable, cluster_command(fixed, "", options.parent_pid), environment_of_workers())
    return run_manager(
        options,
        lambda: NativeProvisioner(lambda unit: cluster_command(options, unit, os.getpid())),
        replace(
            options.manager_config("baremetal_native", poll_seconds=POLL_SECONDS),
            prefix=f"{options.worker_type}-{options.worker_manager_id}-{new_incarnation():06x}",
        ),
    )
