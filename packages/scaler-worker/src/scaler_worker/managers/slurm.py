"""`slurm`: units are tasks of array jobs of a Slurm cluster.

All jobs of a manager have one name, by which it finds them again. A job's comment holds the name of its first unit and
the scheduler that it works for, so that a listing tells which unit an array task is. One squeue answers a listing,
however many units there are.
"""

from __future__ import annotations

import logging
import re
import shlex
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from scaler_io.provisioning.provisioner import Provisioner, ProvisionerError, UnitPhase, UnitReport
from scaler_io.service.options import Option, UsageError, one_line, positive_seconds, whole_number
from scaler_protocol.handshake import MANAGER_VARIABLE, UNIT_VARIABLE
from scaler_protocol.lazy_dataclass import dataclass
from scaler_worker.config import HAND_OVER_SECONDS
from scaler_worker.managers.options import ManagerOptions, manager_command
from scaler_worker.managers.programs import (
    SETUP,
    WORKER_COMMAND,
    end_programs,
    failure_of,
    output_of,
    run_program,
    shell_words,
    worker_line,
)
from scaler_worker.managers.running import run_manager
from scaler_worker.managers.unit_ranges import UnitRange, ranges

LOGGER: Final = logging.getLogger("scaler")
MARGIN_SECONDS: Final = 10
"""A unit has drained so long before Slurm ends its job: to hand objects over, and for clocks that differ."""
LAST_LINES: Final = 5
_TIME: Final = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")
_COMMENT: Final = re.compile(r"scaler (?P<base>\S+)-(?P<first>\d+) for (?P<scheduler>\S+)")
_WAITING: Final = frozenset(
    ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
)
_ENDED: Final = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "REVOKED", "TIMEOUT")
)
_RECLAIMED: Final = frozenset(("NODE_FAIL", "PREEMPTED"))


def time_limit(text: str) -> int:
    """Parse a time as Slurm writes it, such as 90 (minutes), 1:30:00 or 2-12; returns seconds. Raises ValueError."""
    found = _TIME.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not a time: write minutes, hours:minutes:seconds or days-hours:minutes:seconds")
    days, *parts = (int(part or 0) for part in found.groups())
    if found["days"] is None and found["third"] is None:
        parts = [0, *parts[:2]]
    hours, minutes, seconds = parts
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if not total:
        raise ValueError(f"{text!r} is no time at all; leave the option out for the default of the partition")
    return total


def memory(text: str) -> str:
    """Parse an amount of memory such as 500M or 4G, megabytes without a letter; raises ValueError."""
    if not re.fullmatch(r"[1-9]\d*[KMGT]?", text.upper()):
        raise ValueError(f"{text!r} is not an amount of memory: write a whole number and K, M, G or T, such as 4G")
    return text.upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions(ManagerOptions):
    """The command line of `scaler_worker_manager slurm`."""

    partition: str | None
    account: str | None
    qos: str | None
    time_limit: int | None
    cpus_per_worker: int
    memory_per_worker: str | None
    sbatch_arguments: tuple[str, ...]
    setup: str
    worker_command: str
    log_directory: Path
    poll_interval_seconds: float

    def __post_init__(self) -> None:
        ManagerOptions.__post_init__(self)
        if self.time_limit is not None and self.time_limit <= self.drain_timeout_seconds + MARGIN_SECONDS:
            raise UsageError(
                f"--time-limit of {self.time_limit} s leaves no time to work: a unit begins to drain "
                f"{self.drain_timeout_seconds + MARGIN_SECONDS:g} s before its end; "
                "raise it or lower --drain-timeout-seconds"
            )

    @property
    def job_name(self) -> str:
        """The name of all jobs of this manager."""
        return f"scaler-{self.worker_manager_id}"


COMMAND: Final = manager_command(
    "slurm",
    "Start workers as jobs of a Slurm cluster, as the scheduler wants them.",
    SlurmOptions,
    (
        Option(("--partition",), "where jobs run, if not in the default partition", default=None),
        Option(("--account",), "whose account is charged", default=None),
        Option(("--qos",), "the quality of service of jobs", default=None),
        Option(
            ("--time-limit",),
            "how long a job may run, such as 90 (minutes), 1:30:00 or 2-12; the default of the partition if left out",
            time_limit,
            default=None,
            metavar="TIME",
        ),
        Option(("--cpus-per-worker",), "CPUs of each worker", whole_number(1), default=1),
        Option(
            ("--memory-per-worker",),
            "memory of each worker, such as 4G; the default of the partition if left out",
            memory,
            default=None,
            metavar="SIZE",
        ),
        Option(
            ("--sbatch-arguments",),
            'further arguments of sbatch: --sbatch-arguments="--constraint=avx512 --exclusive"',
            shell_words,
            default=(),
        ),
        SETUP,
        WORKER_COMMAND,
        Option(
            ("--log-directory",),
            "where jobs write their output; nodes and this host must share it",
            Path,
            default=Path("slurm-logs"),
        ),
        Option(("--poll-interval-seconds",), "how often squeue is asked", positive_seconds, default=10.0),
    ),
    example="scaler_worker_manager slurm tcp://head:2345 -wmi slurm -mtc 200 -wpu 8 --time-limit 4:00:00",
)


class ArrayTask(NamedTuple):
    """One array task in the output of squeue: a unit."""

    job: str
    """The id of the array task, such as 17_3."""
    state: str
    reason: str
    """Why it waits."""
    log: str
    """The name of its log file."""


QUEUE_FORMAT: Final = "%i|%F|%K|%T|%r|%k"


def queue_words(options: SlurmOptions) -> list[str]:
    """The command that lists the array tasks of this manager, those that have ended lately included.

    No job ids: squeue fails if none of the ids that it is given is known any more.
    """
    name = f"--name={options.job_name}"
    return ["squeue", "--me", "--noheader", "--array", name, "--states=all", f"--format={QUEUE_FORMAT}"]


def read_queue(text: str, options: SlurmOptions) -> dict[str, ArrayTask]:
    """The units of this manager and scheduler in the output of squeue with QUEUE_FORMAT."""
    tasks = {}
    for line in text.splitlines():
        job, array, index, state, reason, comment = line.strip().split("|", 5)
        found = _COMMENT.fullmatch(comment)
        # An array that was cancelled while it waited has one line without an index.
        if found and found["scheduler"] == str(options.address) and index.isdigit():
            unit = f"{found['base']}-{int(found['first']) + int(index)}"
            tasks[unit] = ArrayTask(job, state, reason, f"{options.job_name}-{array}_{index}.log")
    return tasks


def phase_of(state: str) -> UnitPhase:
    """The phase of a unit whose job has this state; an unknown state does not mean that it has ended."""
    if state in _WAITING:
        return UnitPhase.STARTING
    if state in _RECLAIMED:
        return UnitPhase.RECLAIMED
    return UnitPhase.ENDED if state in _ENDED else UnitPhase.RUNNING


def sbatch_words(options: SlurmOptions, units: UnitRange) -> list[str]:
    """The command that submits an array job of these units."""
    workers = options.workers_per_unit
    logs = str(options.log_directory.absolute()).replace("%", "%%")
    words = [
        "sbatch",
        "--parsable",
        f"--job-name={options.job_name}",
        f"--comment=scaler {units.units[0]} for {options.address}",
        f"--array=0-{units.size - 1}",
        f"--output={logs}/%x-%A_%a.log",
        "--no-requeue",  # the manager replaces units
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={options.cpus_per_worker * workers}",
    ]
    for name in ("partition", "account", "qos"):
        if value := getattr(options, name):
            words.append(f"--{name}={value}")
    if options.time_limit is not None:
        words.append(f"--time={options.time_limit // 60}:{options.time_limit % 60:02d}")
    else:
        # The partition may limit the time. Slurm's clock is coarse: the signal may come a minute earlier.
        words.append(f"--signal=B:TERM@{round(options.drain_timeout_seconds) + MARGIN_SECONDS}")
    if amount := options.memory_per_worker:
        digits = amount.rstrip("KMGT")
        words.append(f"--mem={int(digits) * workers}{amount[len(digits) :] or 'M'}")
    return [*words, *options.sbatch_arguments]


def batch_script(options: SlurmOptions, units: UnitRange) -> str:
    """The script of an array job. Its shell becomes the agent, so that signals for the shell reach the agent."""
    agent = worker_line(options, options.worker_command)
    if options.time_limit is not None:
        # In bash SECONDS is how long the shell has run: the setup takes part of the time.
        # Whole seconds, because bash knows no others.
        limit = options.time_limit - MARGIN_SECONDS + round(HAND_OVER_SECONDS)
        agent += f' --time-limit-seconds "$(({limit} - SECONDS))"'
    return "\n".join(
        (
            "#!/bin/bash",
            "set -e",
            f"export {MANAGER_VARIABLE}={shlex.quote(options.worker_manager_id)}",
            f'export {UNIT_VARIABLE}={shlex.quote(units.base)}-"$(({units.first} + SLURM_ARRAY_TASK_ID))"',
            options.setup,
            agent,
            "",
        )
    )


class SlurmProvisioner(Provisioner):
    """Starts, stops and lists units with sbatch, scancel and squeue."""

    def __init__(self, options: SlurmOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._submitted: set[str] = set()
        """Units whose jobs live, as far as is known."""
        self._told: set[str] = set()
        """Ended units that were reported and that squeue still shows."""
        self._largest = 0
        self._waiting: Counter[str] = Counter()

    def start(self, units: Sequence[str], offer: int) -> Sequence[str]:
        """Submit array jobs; the error of one that is refused names the units of those before it as accepted."""
        with self._lock:
            accepted = [unit for unit in units if unit in self._submitted]
        missing = [unit for unit in units if unit not in accepted]
        try:
            for each in ranges(missing, self._largest_array()):
                self._submit(each)
                accepted += each.units
        except ProvisionerError as error:
            raise ProvisionerError(str(error), accepted) from error
        return units

    def _largest_array(self) -> int:
        if not self._largest:
            found = re.search(r"^MaxArraySize\s*=\s*(\d+)", output_of(("scontrol", "show", "config")), re.MULTILINE)
            self._largest = max(1, int(found[1])) if found else 1
        return self._largest

    def _submit(self, units: UnitRange) -> None:
        self._options.log_directory.mkdir(parents=True, exist_ok=True)
        text = output_of(sbatch_words(self._options, units), batch_script(self._options, units))
        job = text.strip().partition(";")[0]  # followed by the name of a cluster where there are several
        LOGGER.info("Slurm job %s: %d units from %s on", job, units.size, units.units[0])
        with self._lock:
            self._submitted.update(units.units)

    def stop(self, units: Sequence[str], *, force: bool) -> None:
        """Cancel jobs that wait, send SIGTERM to agents that run; with `force` Slurm ends them after its KillWait."""
        tasks = self._ask()
        waiting = [tasks[unit].job for unit in units if unit in tasks and tasks[unit].state in _WAITING]
        running = [
            tasks[unit].job for unit in units if unit in tasks and phase_of(tasks[unit].state) is UnitPhase.RUNNING
        ]
        if force:
            _cancel(waiting + running)
            return
        # Not in one command with --state=PENDING: of an array that waits, this cancels all tasks.
        _cancel(waiting)
        # Without a signal a running job would be killed after KillWait, which may be too short to drain.
        _cancel(running, "--signal=TERM", "--batch")

    def list_units(self) -> Mapping[str, UnitReport]:
        """The units that squeue shows; one that has ended is reported once."""
        with self._lock:
            before = set(self._submitted)
        tasks = self._ask()
        reports = {}
        for unit, task in tasks.items():
            phase = phase_of(task.state)
            if not phase.has_ended:
                reports[unit] = UnitReport(phase)
            elif unit not in self._told:
                reports[unit] = UnitReport(phase, self._last_words(task))
        self._told = {unit for unit, task in tasks.items() if phase_of(task.state).has_ended}
        with self._lock:
            self._submitted = (self._submitted - before) | (tasks.keys() - self._told)
        self._tell_waiting(tasks)
        return reports

    def _ask(self) -> dict[str, ArrayTask]:
        return read_queue(output_of(queue_words(self._options)), self._options)

    def _tell_waiting(self, tasks: Mapping[str, ArrayTask]) -> None:
        """Log why jobs wait, when that changes."""
        waiting = Counter(task.reason for task in tasks.values() if phase_of(task.state) is UnitPhase.STARTING)
        if waiting.keys() != self._waiting.keys() and waiting:
            reasons = ", ".join(f"{count} for {reason}" for reason, count in waiting.most_common())
            LOGGER.info("units wait in the queue of Slurm: %s", reasons)
        self._waiting = waiting

    def _last_words(self, task: ArrayTask) -> str:
        """Why a job has ended: its state, and the end of its output where this host can read it."""
        path = self._options.log_directory / task.log
        try:
            lines = path.read_text("utf-8", "replace").splitlines()[-LAST_LINES:]
        except OSError:
            return f"Slurm job {task.job}: {task.state}"
        said = one_line("\n".join(lines))
        return f"Slurm job {task.job}: {task.state}; last lines of {path}: {said or 'none'}"

    def close(self) -> None:
        """End commands that are under way."""
        end_programs()


def _cancel(jobs: Sequence[str], *how: str) -> None:
    """Run scancel; jobs that have ended already are no error."""
    if not jobs:
        return
    done = run_program(("scancel", "--quiet", *how, *jobs))
    errors = [line for line in done.stderr.splitlines() if "Invalid job id" not in line and "already comp" not in line]
    if done.returncode and errors:
        done.stderr = "\n".join(errors)
        raise ProvisionerError(failure_of(done, "scancel"))


def run(options: SlurmOptions) -> int:
    """Run the manager until it has ended."""
    return run_manager(
        options,
        lambda: SlurmProvisioner(options),
        options.manager_config("slurm", poll_seconds=options.poll_interval_seconds),
    )
