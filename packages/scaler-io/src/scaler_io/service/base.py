"""Services: the options that all services have in common, and how a service runs until it is told to end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from scaler_io import descriptors
from scaler_io.private_files import parent_fault
from scaler_io.security.authorized import AuthorizedKeys
from scaler_io.security.key_files import KEYS_VARIABLE, given_credentials
from scaler_io.security.keyring import Credentials, KeyRole
from scaler_io.service import event_loops, logs
from scaler_io.service.options import KEYS, PARENT_PID, READY_FD, STORAGE_OPTIONS, Option
from scaler_io.service.process import ending
from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError
from scaler_protocol.lazy_dataclass import dataclass

SERVICE_OPTIONS: Final = (KEYS, event_loops.EVENT_LOOP, *logs.LOGGING_OPTIONS, PARENT_PID)
"""The fields of ServiceOptions."""
SERVER_OPTIONS: Final = (
    *STORAGE_OPTIONS,
    Option(("--insecure",), "listen without keys where other hosts can reach it", default=False, flag=True),
    *SERVICE_OPTIONS,
    READY_FD,
)
"""The fields of ServerOptions whose meaning does not depend on the server."""


_UNSET: Final = f"unset {KEYS_VARIABLE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Its keys, how a service logs, which event loop it runs, and with which parent process it ends."""

    keys: Path | None = None
    event_loop: str
    logging_paths: tuple[str, ...]
    logging_level: str
    log_format: str
    logging_config_file: str | None
    parent_pid: int | None

    def credentials(self, roles: Sequence[KeyRole]) -> Credentials | None:
        """The first of these keys that --keys holds; None without --keys. Raises KeyFileError."""
        return given_credentials(self.keys, roles)

    def begin_log(self) -> None:
        """Set up logging and log where the logs go; raises ValueError, which names the path that cannot be written."""
        logs.configure(self.logging_paths, self.logging_level, self.logging_config_file, self.log_format)
        logs.announce(self.logging_paths, self.logging_config_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions(ServiceOptions):
    """Where a server listens, and what object storage (the server itself, or the one that it starts) may keep."""

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
        """Raise ValueError for inconsistent options, AddressError for an address that other hosts can reach."""
        if self.spill_limit is not None and self.spill_directory is None:
            raise ValueError("--spill-limit needs a --spill-directory to move objects to")
        for name, directory in (("segment", self.segment_directory), ("spill", self.spill_directory)):
            if directory is not None:
                _require_writable(f"--{name}-directory", directory)
        if self.keys is not None and self.insecure:
            raise ValueError(f"--keys {self.keys} and --insecure contradict each other: leave one out, or {_UNSET}")
        refuse_exposed(self.address, self.insecure or self.keys is not None)

    def authorized(self) -> AuthorizedKeys | None:
        """The keys that the server accepts; None without --keys. Raises KeyFileError."""
        return AuthorizedKeys(self.keys) if self.keys is not None else None


def _require_writable(option: str, directory: Path) -> None:
    """Make the directory, and something in it for a moment: permissions alone do not tell whether it is writable."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryDirectory(dir=directory).cleanup()
        fault = parent_fault(directory)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"{option} {directory}: {reason}; name a directory that can be written to") from error
    if fault:
        raise ValueError(f"{option} {directory}: {fault}")


def refuse_exposed(address: Address, insecure: bool) -> None:
    """Raise AddressError for an address that other hosts can reach, unless `insecure`: tasks are code."""
    if not insecure and not address.is_local:
        raise AddressError(
            f"{address} can be reached from other hosts, and whoever reaches it can run code: "
            "listen on 127.0.0.1, demand keys with --keys, or add --insecure in a network you trust"
        )


def serve(
    name: str, options: ServiceOptions, serving: Callable[[Callable[[], None]], AbstractContextManager[None]]
) -> None:
    """Run a service until it is told to end, or calls the function passed to `serving` to end itself."""

    descriptors.raise_limit()

    async def main() -> None:
        stop = ending(options.parent_pid)
        with serving(stop.set):
            descriptors.log_limit(name)
            await stop.wait()

    event_loops.run(main, options.event_loop)
