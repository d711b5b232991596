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
from scaler_io.security.keyring import Credentials, KeyRole
from scaler_io.service import event_loops, logs
from scaler_io.service.options import KEYS, PARENT_PID, READY_FD, STORAGE_OPTIONS
from scaler_io.service.process import ending, keep_memory_secret
from scaler_io.transport.curve import check_pair
from scaler_io.transport.own_keys import credentials_for, key_place
from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError
from scaler_protocol.lazy_dataclass import dataclass

SERVICE_OPTIONS: Final = (*KEYS, event_loops.EVENT_LOOP, *logs.LOGGING_OPTIONS, PARENT_PID)
"""The fields of ServiceOptions."""
SERVER_OPTIONS: Final = (
    *STORAGE_OPTIONS,
    *SERVICE_OPTIONS,
    READY_FD,
)
"""The fields of ServerOptions whose meaning does not depend on the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Where a service listens or connects, its keys, how it logs, and with which parent process it ends."""

    address: Address
    keys: Path | None = None
    insecure: bool = False
    event_loop: str
    logging_paths: tuple[str, ...]
    logging_level: str
    log_format: str
    logging_config_file: str | None
    parent_pid: int | None

    def key_place(self) -> Path | None:
        """The directory of its keys; None if it uses none. Raises KeyFileError, ValueError."""
        return key_place(self.address, self.keys, self.insecure)

    def credentials(self, roles: Sequence[KeyRole]) -> Credentials | None:
        """The first of these keys that it has; None if it uses none. Raises KeyFileError, ValueError."""
        return credentials_for(self.address, self.keys, self.insecure, roles)

    def authorized(self) -> AuthorizedKeys | None:
        """The keys that the server accepts; None if it uses none. Raises KeyFileError, ValueError."""
        if self.keys is not None:  # who may attach to a process of this user can read this user's own keys anyway
            keep_memory_secret()
        place = self.key_place()
        if place is None:
            return None
        authorized = AuthorizedKeys(place)
        check_pair(place, authorized.own)
        return authorized

    def begin_log(self) -> None:
        """Set up logging and log where the logs go; raises ValueError, which names the path that cannot be written."""
        logs.configure(self.logging_paths, self.logging_level, self.logging_config_file, self.log_format)
        logs.announce(self.logging_paths, self.logging_config_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions(ServiceOptions):
    """The options of object storage, for the server itself or for the one that a scheduler starts."""

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
        self.key_place()
        refuse_exposed(self.address, self.insecure or self.keys is not None)


def _require_writable(option: str, directory: Path) -> None:
    """Make the directory, and a file without a name in it: permissions alone do not tell whether it is writable."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
        fault = parent_fault(directory)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"{option} {directory}: {reason}; name a directory that can be written to") from error
    if fault:
        raise ValueError(f"{option} {directory}: {fault}")


def refuse_exposed(address: Address, allowed: bool) -> None:
    """Raise AddressError for an address that other hosts can reach, unless `allowed`: tasks are code."""
    if not allowed and not address.is_local:
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
