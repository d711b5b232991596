"""The command line of `scaler_scheduler`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scaler_io.command_line import Command
from scaler_io.event_loops import EVENT_LOOP
from scaler_io.logs import LOGGING_OPTIONS
from scaler_io.options import (
    PARENT_PID,
    READY_FD,
    REFUSED_BY_SCHEDULER,
    STORAGE_OPTIONS,
    Option,
    check_storage,
    http_address,
    one_of,
    positive_seconds,
    whole_number,
)
from scaler_protocol.addresses import Address


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """What the command line, the environment and the TOML file came to."""

    address: Address
    object_storage_address: Address | None
    advertised_object_storage_address: Address | None
    monitor_address: Address | None
    metrics_address: Address | None
    protected: bool
    max_number_of_tasks_waiting: int
    client_timeout_seconds: float
    worker_timeout_seconds: float
    object_retention_seconds: float
    memory_limit: int | None
    segment_directory: Path | None
    spill_directory: Path | None
    spill_limit: int | None
    allocate_policy: str
    insecure: bool
    event_loop: str
    logging_paths: tuple[str, ...]
    logging_level: str
    log_format: str
    logging_config_file: str | None
    parent_pid: int | None
    ready_fd: int | None


def check(options: SchedulerOptions) -> None:
    """Raises ValueError for options that mean nothing together."""
    if options.object_storage_address is not None:
        for option in STORAGE_OPTIONS:
            if getattr(options, option.destination) is not None:
                raise ValueError(f"{option.names[0]} is for the server at --object-storage-address: give it there")
    check_storage(options.spill_directory, options.spill_limit)


COMMAND = Command(
    program="scaler_scheduler",
    description="Route tasks from clients to workers.",
    section="scheduler",
    config=SchedulerOptions,
    options=(
        Option(("address",), "where to listen: tcp://host:port or ipc://path", Address.parse),
        Option(
            ("--object-storage-address", "-osa"),
            "the object storage server; without it the next port is used, and a server started there if none comes up",
            Address.parse,
            default=None,
        ),
        Option(
            ("--advertised-object-storage-address", "-aosa"),
            "what to tell clients and workers instead of the former",
            Address.parse,
            default=None,
        ),
        Option(("--monitor-address", "-ma"), "where monitors subscribe; port + 2", Address.parse, default=None),
        Option(
            ("--metrics-address",),
            "where Prometheus reads /metrics; none",
            http_address,
            default=None,
            metavar="HOST:PORT",
        ),
        Option(("--protected", "-p"), "refuse to be shut down by clients", default=True, flag=True),
        Option(
            ("--max-number-of-tasks-waiting", "-mt"),
            "fail what is submitted beyond this; -1 for no limit",
            whole_number(-1),
            default=-1,
        ),
        Option(
            ("--client-timeout-seconds", "-ct"),
            "how long the work of a client that is away lives",
            positive_seconds,
            default=60.0,
        ),
        Option(
            ("--worker-timeout-seconds", "-wt"),
            "after how long a silence workers are given up",
            positive_seconds,
            default=60.0,
        ),
        Option(
            ("--object-retention-seconds", "-ot"), "how long orphaned results are kept", positive_seconds, default=60.0
        ),
        *STORAGE_OPTIONS,
        Option(
            ("--allocate-policy", "-ap"),
            "balance by load alone, or keep workers with rare capabilities free",
            one_of("even_load", "capability", even="even_load"),
            default="even_load",
        ),
        Option(("--insecure",), "listen where other hosts can reach it", default=False, flag=True),
        EVENT_LOOP,
        *LOGGING_OPTIONS,
        PARENT_PID,
        READY_FD,
    ),
    refusals=REFUSED_BY_SCHEDULER,
    example="scaler_scheduler tcp://127.0.0.1:2345 --allocate-policy capability",
)
