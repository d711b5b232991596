"""`ssh`: units are agents on hosts that ssh reaches. They run in sessions of their own and outlive the connection.

On its host a unit has a file with its process id and start time, by which the manager, or its successor, finds it.
Nobody needs to be told of the manager's death: an agent that has lost the scheduler ends by its death timeout.
"""

from __future__ import annotations

import logging
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Final, NamedTuple

from scaler_io.provisioning.provisioner import Provisioner, ProvisionerError, UnitPhase, UnitReport
from scaler_io.service.daemon_threads import call_each
from scaler_io.service.options import Option, UsageError, comma_list, one_line, path, positive_seconds, whole_number
from scaler_protocol.handshake import MANAGER_VARIABLE, UNIT_VARIABLE
from scaler_protocol.lazy_dataclass import dataclass
from scaler_worker.managers.options import MOST_WORKERS, ManagerOptions, manager_command
from scaler_worker.managers.programs import (
    SETUP,
    WORKER_COMMAND,
    end_programs,
    failure_of,
    run_program,
    shell_words,
    worker_line,
)
from scaler_worker.managers.running import run_manager

LOGGER: Final = logging.getLogger("scaler")
LOGINS: Final = 8
"""Most connections at a time: sshd refuses some from ten on that have not logged in yet."""
CONNECT_SECONDS: Final = 10
RETRY_SECONDS: Final = 60.0
"""How long a host that could not be reached is passed over."""
LAST_LINES: Final = 5
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]-][^\s:\[\]]*)(?::(?P<workers>[1-9]\d*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions(ManagerOptions):
    """The command line of `scaler_worker_manager ssh`."""

    hosts: tuple[str, ...]
    hosts_file: Path | None
    ssh_arguments: tuple[str, ...]
    setup: str
    worker_command: str
    remote_directory: str
    poll_interval_seconds: float

    def remote_folder(self, host: str) -> str:
        """The folder on this host for the files of units, relative to the home directory, which hosts may share."""
        scheduler = re.sub(r"[^A-Za-z0-9.]+", "-", str(self.address))
        return f"{self.remote_directory}/{self.worker_manager_id}/{scheduler}/{host}"


COMMAND: Final = manager_command(
    "ssh",
    "Start workers on hosts that ssh reaches, as the scheduler wants them.",
    SshOptions,
    (
        Option(
            ("--max-task-concurrency", "-mtc"),
            "the most workers; -1 for as many as the hosts have",
            whole_number(-1, MOST_WORKERS),
            default=-1,
        ),
        Option(
            ("--hosts",),
            "the hosts, each with its number of workers if that is not --workers-per-unit: a,user@b:8,[::1]:8",
            comma_list,
            default=(),
        ),
        Option(("--hosts-file",), "a file with a host in each line, written as in --hosts", path, default=None),
        Option(("--ssh-arguments",), 'options of ssh: --ssh-arguments="-p 2222 -i key"', shell_words, default=()),
        SETUP,
        WORKER_COMMAND,
        Option(
            ("--remote-directory",),
            "where hosts keep process ids and logs of units, below the home directory",
            default=".scaler/ssh",
        ),
        Option(
            ("--poll-interval-seconds",), "how often hosts that have units are asked", positive_seconds, default=10.0
        ),
    ),
    example="scaler_worker_manager ssh tcp://10.0.0.1:2345 -wmi lab --hosts a,b,c:16 --workers-per-unit 8",
)


class Host(NamedTuple):
    """A host and the most units that it may have."""

    name: str
    room: int


def read_hosts(options: SshOptions) -> list[Host]:
    """The hosts of the options and the file; raises UsageError, which names the entry."""
    entries = list(options.hosts)
    if options.hosts_file is not None:
        try:
            lines = options.hosts_file.read_text("utf-8").splitlines()
        except OSError as error:
            raise UsageError(f"--hosts-file {options.hosts_file}: {error.strerror or error}") from error
        entries += [line for line in (line.partition("#")[0].strip() for line in lines) if line]
    if not entries:
        raise UsageError("no hosts: give --hosts or --hosts-file")
    hosts = [_host(entry, options.workers_per_unit) for entry in entries]
    names = [host.name for host in hosts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"host {twice[0]} is given twice")
    return hosts


def _host(entry: str, size: int) -> Host:
    found = _HOST.fullmatch(entry)
    if not found:
        raise UsageError(f"{entry!r} is not a host: write name, user@name or name:workers")
    workers = int(found["workers"] or size)
    if workers % size:
        raise UsageError(f"host {entry}: {workers} workers are not a multiple of --workers-per-unit {size}")
    return Host(found["name"].strip("[]"), workers // size)


# --- scripts for sh on the hosts --------------------------------------------------------------------------------------

_ALIVE: Final = """\
# State and start time of a process: its id alone may be another's by now.
stamp() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 1,20; }
alive() {
  read -r pid start 2>/dev/null <"$1.pid" || return 1
  found=$(stamp "$pid")
  [ "${found#* }" = "$start" ] && [ "${found% *}" != Z ]
}
"""
_LIST: Final = """\
for file in *.pid; do
  unit=${file%.pid}
  [ -e "$file" ] || continue
  if alive "$unit"; then echo "up $unit"; continue; fi
  echo "ended $unit"
  tail -n LAST_LINES "$unit.log" 2>/dev/null | sed 's/^/ /'
  rm -f "$file"
done
"""


def start_script(options: SshOptions, host: str, units: Iterable[str]) -> str:
    """Start units that this host does not know yet."""
    folder = shlex.quote(options.remote_folder(host))
    lines = [
        "set -e",
        "umask 077",
        f"mkdir -p {folder}",
        f"find {folder} -name '*.log' -mtime +7 -exec rm -f {{}} +",
        _ALIVE,
        f"export {MANAGER_VARIABLE}={shlex.quote(options.worker_manager_id)}",
    ]
    for unit in units:
        path = f"{folder}/{shlex.quote(unit)}"
        lines += [
            f"if [ ! -e {path}.pid ]; then",
            f"export {UNIT_VARIABLE}={shlex.quote(unit)}",
            "(",
            options.setup,
            worker_line(options, options.worker_command, "setsid"),
            f") </dev/null >{path}.log 2>&1 &",
            # Without this file no manager would find the agent.
            f'{{ echo "$! $(stamp $! | cut -d " " -f 2)" >{path}.new && mv {path}.new {path}.pid; }} ||',
            f"{{ kill -KILL $!; echo cannot write {path}.pid >&2; rm -f {path}.new; exit 1; }}",
            "fi",
        ]
    return "\n".join((*lines, ""))


def list_script(options: SshOptions, host: str) -> str:
    """Print the units of this host, those that have ended for the last time."""
    folder = shlex.quote(options.remote_folder(host))
    return "\n".join((f"cd {folder} 2>/dev/null || exit 0", _ALIVE, _LIST.replace("LAST_LINES", str(LAST_LINES))))


def stop_script(options: SshOptions, host: str, units: Iterable[str], *, force: bool) -> str:
    """Send a signal to units of this host."""
    folder = shlex.quote(options.remote_folder(host))
    names = " ".join(map(shlex.quote, units))
    kill = f'if alive "$unit"; then kill -{"KILL" if force else "TERM"} "$pid" || :; fi'
    return "\n".join((f"cd {folder} 2>/dev/null || exit 0", _ALIVE, f"for unit in {names}; do {kill}; done", ""))


def read_list(text: str) -> dict[str, UnitReport]:
    """The units in the output of `list_script`; lines of a shell's start files are ignored."""
    reports: dict[str, UnitReport] = {}
    ended: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        word, _, unit = line.partition(" ")
        if word == "up":
            reports[unit] = UnitReport(UnitPhase.RUNNING)
        elif word == "ended":
            lines = ended[unit] = []
        elif not word:
            lines.append(unit)
    for unit, said in ended.items():
        last_lines = one_line("\n".join(said)) or "none"
        reports[unit] = UnitReport(UnitPhase.ENDED, f"its last lines: {last_lines}")
    return reports


# --- the provisioner --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _HostState:
    name: str
    room: int
    units: set[str] = field(default_factory=set)
    """Those that run, as far as is known, and those that are being started."""
    listed: bool = False
    """Whether it has been asked which units of earlier lives it has, since it could last be reached."""
    failure: str = ""
    retry_at: float = 0.0


class SshProvisioner(Provisioner):
    """Starts, stops and lists agents over ssh, LOGINS hosts at a time."""

    def __init__(self, options: SshOptions, hosts: Iterable[Host]) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._hosts = {host.name: _HostState(host.name, host.room) for host in hosts}
        self._logins = threading.BoundedSemaphore(LOGINS)

    def start(self, units: Sequence[str], offer: int) -> Sequence[str]:
        """Start units where there is room, the emptiest hosts first; what a host refuses is started on another."""
        waiting = [unit for unit in units if not self._host_of(unit)]
        while waiting:
            plan = self._assign(waiting)
            if not plan:
                break
            failed = self._each(plan, lambda host, mine: start_script(self._options, host, mine))
            for host in failed:
                with self._lock:
                    self._hosts[host].units.difference_update(plan[host])
            with self._lock:
                for host in plan.keys() - failed:
                    self._hosts[host].units.update(plan[host])  # a listing may have been begun before the start
            waiting = [unit for unit in waiting if not self._host_of(unit)]
        failures = [f"host {host.name}: {host.failure}" for host in self._hosts.values() if host.failure]
        if waiting or failures:
            raise ProvisionerError(
                "; ".join(failures) or "all hosts are full", [unit for unit in units if self._host_of(unit)]
            )
        return units

    def _host_of(self, unit: str) -> _HostState | None:
        with self._lock:
            return next((host for host in self._hosts.values() if unit in host.units), None)

    def _assign(self, units: Iterable[str]) -> dict[str, list[str]]:
        """Choose hosts that can be used, as far as there is room."""
        now = time.monotonic()
        plan: dict[str, list[str]] = {}
        with self._lock:
            usable = [host for host in self._hosts.values() if host.listed and now >= host.retry_at]
            for unit in units:
                host = max(usable, key=lambda host: host.room - len(host.units), default=None)
                if host is None or len(host.units) >= host.room:
                    break
                host.units.add(unit)
                plan.setdefault(host.name, []).append(unit)
        return plan

    def stop(self, units: Sequence[str], *, force: bool) -> None:
        """Send SIGTERM or SIGKILL to agents; every host is tried, then ProvisionerError names those that failed."""
        plan: dict[str, list[str]] = {}
        for unit in units:
            if host := self._host_of(unit):
                plan.setdefault(host.name, []).append(unit)
        failed = self._each(plan, lambda host, mine: stop_script(self._options, host, mine, force=force))
        if failed:
            raise ProvisionerError("; ".join(f"host {host}: {failure}" for host, failure in failed.items()))

    def list_units(self) -> Mapping[str, UnitReport]:
        """The units of all hosts. One that cannot be reached has the units that it had."""
        now = time.monotonic()
        with self._lock:
            due = {
                host.name: list(host.units)
                for host in self._hosts.values()
                if now >= host.retry_at and (host.units or not host.listed)
            }
        found: dict[str, dict[str, UnitReport]] = {}
        self._each(
            due,
            lambda host, _: list_script(self._options, host),
            lambda host, text: found.update({host: read_list(text)}),
        )
        reports: dict[str, UnitReport] = {}
        with self._lock:
            for host in self._hosts.values():
                if host.name in found:
                    mine = found[host.name]
                    living = {unit for unit, report in mine.items() if not report.phase.has_ended}
                    host.units = (host.units - set(due[host.name])) | living
                    host.listed = True
                    reports.update(mine)
                reports.update((unit, UnitReport(UnitPhase.RUNNING)) for unit in host.units)
        return reports

    def _each(
        self,
        plan: Mapping[str, list[str]],
        script: Callable[[str, list[str]], str],
        answered: Callable[[str, str], None] = lambda host, text: None,
    ) -> dict[str, str]:
        """Run a script on each host of the plan; returns the failures."""
        failures: dict[str, str] = {}

        def login(host: str) -> None:
            try:
                with self._logins:
                    answered(host, self._login(host, script(host, plan[host])))
            except ProvisionerError as error:
                failures[host] = str(error)

        for call in call_each(login, plan, LOGINS, "scaler-ssh").values():
            call.result()
        with self._lock:
            for name in plan:
                self._judge(self._hosts[name], failures.get(name, ""))
        return failures

    def _judge(self, host: _HostState, failure: str) -> None:
        """Pass over a host that has failed for a while; what it has is unknown then."""
        if not failure and time.monotonic() < host.retry_at:
            return  # this login was begun before the one that has failed
        if failure:
            LOGGER.warning("host %s is passed over for %g s: %s", host.name, RETRY_SECONDS, failure)
            host.listed = False
        host.retry_at = time.monotonic() + RETRY_SECONDS if failure else 0.0
        host.failure = failure

    def _login(self, host: str, script: str) -> str:
        options = self._options
        words = ("-T", "-oBatchMode=yes", f"-oConnectTimeout={CONNECT_SECONDS}", "-oServerAliveInterval=5")
        done = run_program(("ssh", *options.ssh_arguments, *words, host, "exec sh -s"), script)
        if done.returncode:
            raise ProvisionerError(failure_of(done, "ssh").removeprefix("ssh: ssh: ").removeprefix("ssh: "))
        return done.stdout

    def close(self) -> None:
        """End logins that are under way."""
        end_programs()


def run(options: SshOptions) -> int:
    """Run the manager until it has ended; raises UsageError for wrong hosts."""
    hosts = read_hosts(options)
    capacity = options.workers_per_unit * sum(host.room for host in hosts)
    most = options.max_task_concurrency
    config = options.manager_config("ssh", poll_seconds=options.poll_interval_seconds)
    return run_manager(
        options,
        lambda: SshProvisioner(options, hosts),
        replace(config, maximum=capacity if most < 0 else min(most, capacity)),
    )
