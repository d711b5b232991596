"""The command line of `scaler_object_storage_server`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scaler_io.command_line import Command
from scaler_io.event_loops import EVENT_LOOP
from scaler_io.logs import LOGGING_OPTIONS
from scaler_io.options import PARENT_PID, READY_FD, REFUSED, STORAGE_OPTIONS, Option, positive_seconds
from scaler_protocol.addresses import Address


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """What the command line, the environment and the TOML file came to."""

    address: Address
    identity: str
    memory_limit: int | None
    segment_directory: Path | None
    spill_directory: Path | None
    spill_limit: int | None
    client_timeout_seconds: float
    object_retention_seconds: float
    insecure: bool
    event_loop: str
    logging_paths: tuple[str, ...]
    logging_level: str
    log_format: str
    logging_config_file: str | None
    parent_pid: int | None
    ready_fd: int | None


COMMAND = Command(
    program="scaler_object_storage_server",
    description="Hold the objects that are too big to travel inside a message.",
    section="object_storage_server",
    config=StorageOptions,
    options=(
        Option(("address",), "where to listen: tcp://host:port or ipc://path", Address.parse),
        Option(("--identity", "-i"), "what to call this server in log lines", default="ObjectStorageServer"),
        *STORAGE_OPTIONS,
        Option(
            ("--client-timeout-seconds", "-ct"),
            "how long the objects of a client whose connection is gone are kept",
            positive_seconds,
            default=60.0,
        ),
        Option(
            ("--object-retention-seconds", "-ot"),
            "how long results are kept for a client that has not come for them",
            positive_seconds,
            default=60.0,
        ),
        Option(("--insecure",), "listen where other hosts can reach it", default=False, flag=True),
        EVENT_LOOP,
        *LOGGING_OPTIONS,
        PARENT_PID,
        READY_FD,
    ),
    refusals=REFUSED,
    example="scaler_object_storage_server tcp://127.0.0.1:2346 --memory-limit 8000000000 --spill-directory /var/tmp",
)
