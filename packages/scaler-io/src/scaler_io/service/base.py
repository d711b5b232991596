"""Services: what programs that serve until they are told to end have in common, their options first."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scaler_io import descriptors
from scaler_io.service import event_loops, logs
from scaler_io.service.exposure import refuse_exposed
from scaler_io.service.options import PARENT_PID, READY_FD, STORAGE_OPTIONS, Option
from scaler_io.service.process import ending
from scaler_protocol.addresses import Address

SERVICE_OPTIONS: Final = (event_loops.EVENT_LOOP, *logs.LOGGING_OPTIONS, PARENT_PID)
"""The fields of ServiceOptions."""
SERVER_OPTIONS: Final = (
    *STORAGE_OPTIONS,
    Option(("--insecure",), "listen where other hosts can reach it", default=False, flag=True),
    *SERVICE_OPTIONS,
    READY_FD,
)
"""The fields of ServerOptions, but for those whose meaning depends on the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """How a service logs and runs, and with whom it ends."""

    event_loop: str
    logging_paths: tuple[str, ...]
    logging_level: str
    log_format: str
    logging_config_file: str | None
    parent_pid: int | None

    def begin_log(self) -> None:
        """Log as the options say, and first of all where to; raises ValueError naming what can not be logged to."""
        logs.configure(self.logging_paths, self.logging_level, self.logging_config_file, self.log_format)
        logs.announce(self.logging_paths, self.logging_config_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions(ServiceOptions):
    """Where a server listens, and what it, or the storage server that it starts, may keep."""

    address: Address
    insecure: bool
    memory_limit: int | None
    segment_directory: Path | None
    spill_directory: Path | None
    spill_limit: int | None
    client_timeout_seconds: float
    object_retention_seconds: float
    ready_fd: int | None

    def check(self) -> None:
        """Raises ValueError for options that mean nothing together, AddressError for a bind that is too open."""
        if self.spill_limit is not None and self.spill_directory is None:
            raise ValueError("--spill-limit needs a --spill-directory to move objects to")
        for name, directory in (("segment", self.segment_directory), ("spill", self.spill_directory)):
            if directory is not None:
                _require_writable(f"--{name}-directory", directory)
        refuse_exposed(self.address, self.insecure)


def _require_writable(option: str, directory: Path) -> None:
    """Make the directory, and something in it for a moment: permissions alone do not say whether that is possible."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryDirectory(dir=directory).cleanup()
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"{option} {directory}: {reason}; name a directory that can be written to") from error


def serve(
    name: str, options: ServiceOptions, serving: Callable[[Callable[[], None]], AbstractContextManager[None]]
) -> None:
    """Run a service until it is told to end, or calls what it is given to end itself."""

    descriptors.raise_limit()

    async def main() -> None:
        stop = ending(options.parent_pid)
        with serving(stop.set):
            descriptors.log_limit(name)
            await stop.wait()

    event_loops.run(main, options.event_loop)
