"""`scaler status` and `scaler wait`: what a scheduler's monitor reports, in words or as JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final

from scaler_io.security.keyring import SUBSCRIBER_KEYS, KeyRole
from scaler_io.service.cli import Command
from scaler_io.service.options import KEYS, Option, positive_seconds, whole_number
from scaler_io.transport.own_keys import credentials_for
from scaler_protocol import status_counts
from scaler_protocol.addresses import Address
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.manager_rows import manager_rows
from scaler_protocol.monitoring import MonitorStatus
from scaler_protocol.plurals import counted
from scaler_ui.listening import Listening, NoStatusError
from scaler_ui.model.findings import Finding, Severity, findings

STORAGE_SECONDS: Final = 2.0
"""How long to wait for what object storage says, of which the scheduler learns when somebody listens."""
_ADDRESS: Final = Option(("address", "scheduler_address"), "the scheduler", Address.parse_peer)


@dataclass(frozen=True, slots=True)
class StatusOptions:
    """The command line of `scaler status`."""

    address: Address
    json: bool
    timeout_seconds: float
    keys: Path | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class WaitOptions:
    """The command line of `scaler wait`."""

    address: Address
    workers: int
    timeout_seconds: float
    keys: Path | None = None
    insecure: bool = False


STATUS: Final = Command(
    program="scaler status",
    description="Show who is connected to a scheduler, what waits, what scales, and why.",
    section="status",
    config=StatusOptions,
    options=(
        _ADDRESS,
        *KEYS,
        Option(("--json",), "print JSON", default=False, flag=True),
        Option(("--timeout-seconds", "-t"), "how long to wait for an answer", positive_seconds, default=5.0),
    ),
    example="scaler status tcp://127.0.0.1:2345",
)
WAIT: Final = Command(
    program="scaler wait",
    description="Wait until a number of workers is connected.",
    section="wait",
    config=WaitOptions,
    options=(
        _ADDRESS,
        *KEYS,
        Option(("--workers", "-n"), "how many", whole_number(0)),
        Option(("--timeout-seconds", "-t"), "how long to wait at most", positive_seconds, default=300.0),
    ),
    example="scaler wait tcp://127.0.0.1:2345 --workers 8",
)


def show(words: Sequence[str]) -> int:
    """Print the status; returns the exit code. Raises NoStatusError if no scheduler answers."""
    options = STATUS.read(words)
    with listening_to(options.address, options.keys, options.insecure) as listening:
        listening.wait_for(lambda model: model.is_complete, options.timeout_seconds)
        until = listening.now + STORAGE_SECONDS
        listening.wait_for(lambda model: model.storage is not None or listening.now > until, 2 * STORAGE_SECONDS)
    status = listening.model.status
    assert status is not None
    found = findings(listening.model, listening.now)
    if listening.model.storage is None:
        found.insert(1, Finding(Severity.ERROR, f"Object storage has not answered within {STORAGE_SECONDS:g} s."))
    shown = summary(status, found)
    print(json.dumps(shown, indent=2) if options.json else as_text(shown))
    return 0


def wait(words: Sequence[str]) -> int:
    """Wait for workers; returns 0, or 1 after the time limit. Raises NoStatusError if no scheduler answers."""
    options = WAIT.read(words)
    with listening_to(options.address, options.keys, options.insecure) as listening:
        listening.wait_for(lambda model: model.status is not None, min(options.timeout_seconds, 30.0))
        status = listening.model.status
        assert status is not None
        until = listening.now + options.timeout_seconds
        while status_counts.workers(status) < options.workers:
            if listening.now >= until:
                wanted = counted(options.workers, "worker")
                print(
                    f"scaler wait: {status_counts.workers(status)} of {wanted} after {options.timeout_seconds:g} s: "
                    f"start more with scaler_cluster {options.address}; worker managers start workers when tasks wait"
                )
                return 1
            listening.step()
            status = listening.model.status or status
    print(f"connected: {counted(status_counts.workers(status), 'worker')}")
    return 0


@contextlib.contextmanager
def listening_to(
    scheduler: Address, keys: Path | None, insecure: bool, roles: Sequence[KeyRole] = SUBSCRIBER_KEYS
) -> Iterator[Listening]:
    """A subscription to a scheduler's monitor, which is two ports above unless it was moved."""
    monitor = scheduler.beside(2)
    listening = Listening(monitor, credentials=credentials_for(monitor, keys, insecure, roles))
    try:
        yield listening
    except NoStatusError:
        text = (
            f"no scheduler answers at {scheduler}, whose monitor would be at {monitor}: "
            "is it running there, and is this its own address, not its monitor's or its object storage's?"
        )
        raise NoStatusError(listening.refusal or listening.misfit or text) from None
    finally:
        listening.close()


def summary(status: MonitorStatus, found: Sequence[Finding] = ()) -> dict[str, Any]:
    """The status as JSON values: sizes in workers and tasks."""
    names = (
        "id", "kind", "host", "maximum", "desired", "joined", "starting", "draining", "reason", "failure",
        "paused_seconds",
    )  # fmt: skip
    return {
        "findings": [
            {"severity": finding.severity.name.lower(), "text": finding.text, "subject": finding.subject}
            for finding in found
        ],
        "scheduler": {
            "address": status.address,
            "uptime_seconds": round(status.uptime, 1),
            "refuses_new_work": status.refusal,
        },
        "clients": status_counts.clients(status),
        "tasks": {
            "waiting": status.waiting,
            "held": status.held,
            "queued": status_counts.queued(status),
            "running": status_counts.running(status),
            "succeeded": status.succeeded,
            "failed": status.raised + status.failed,
            "cancelled": status.cancelled,
        },
        "workers": _workers_by_host(status),
        "managers": [dict(zip(names, astuple(row), strict=True)) for row in manager_rows(status)],
    }


def _workers_by_host(status: MonitorStatus) -> list[dict[str, Any]]:
    """The workers, agents, draining agents and units of each host, worker manager and set of capabilities."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for name, host, manager, capabilities, size, unit, is_draining in zip(
        status.agent_names, status.agent_hosts, status.agent_managers, status.agent_capabilities, status.agent_workers,
        status.agent_units, status.agent_draining, strict=True,
    ):  # fmt: skip
        row = rows.setdefault(
            (host, manager, capabilities),
            {
                "host": host, "manager": manager, "capabilities": capabilities,
                "workers": 0, "draining": 0, "agents": [], "units": [],
            },
        )  # fmt: skip
        row["workers"] += size
        row["draining"] += is_draining
        row["agents"].append(name)
        if unit:
            row["units"].append(unit)
    return [rows[key] for key in sorted(rows)]


def as_text(shown: dict[str, Any]) -> str:
    """A summary as lines for people."""
    tasks, lines = shown["tasks"], [finding["text"] for finding in shown["findings"]]
    lines.append(f"scheduler {shown['scheduler']['address']}, up {shown['scheduler']['uptime_seconds']:g} s")
    if shown["scheduler"]["refuses_new_work"]:
        lines.append(f"          refuses new work: {shown['scheduler']['refuses_new_work']}")
    lines.append(f"clients   {shown['clients']}")
    lines.append("tasks     " + ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in tasks.items()))
    lines.append(f"workers   {sum(row['workers'] for row in shown['workers'])}")
    for row in shown["workers"]:
        manager = row["manager"] or "started by hand"
        drain = "drains" if row["draining"] == 1 else "drain"
        draining = f", {counted(row['draining'], 'agent')} {drain}" if row["draining"] else ""
        lines.append(f"  {row['workers']:>5} on {row['host']} ({manager}{draining}) {row['capabilities']}".rstrip())
    for row in shown["managers"]:
        maximum = "no limit" if row["maximum"] < 0 else f"at most {row['maximum']}"
        lines.append(
            f"manager   {row['id']} ({row['kind']} on {row['host']}, {maximum}): {row['desired']} wanted, "
            f"{row['joined']} joined, {row['starting']} starting, {row['draining']} draining"
        )
        lines.append(f"          why: {row['reason']}")
        if row["failure"]:
            paused = f"; paused for {row['paused_seconds']:.0f} s" if row["paused_seconds"] else ""
            lines.append(f"          failure: {row['failure']}{paused}")
    if not shown["managers"] and not shown["workers"]:
        lines.append("no workers and no worker manager: start some with scaler_cluster or scaler_worker_manager")
    return "\n".join(lines)
