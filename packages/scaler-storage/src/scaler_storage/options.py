"""The command line of `scaler_object_storage_server`."""

from __future__ import annotations

from scaler_io.service.base import SERVER_OPTIONS, ServerOptions
from scaler_io.service.cli import Command
from scaler_io.service.options import REFUSED, Option, positive_seconds
from scaler_protocol.addresses import Address
from scaler_protocol.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions(ServerOptions):
    """The merged options of command line, environment and TOML file."""

    identity: str


COMMAND = Command(
    program="scaler_object_storage_server",
    description="Store the objects that are too big for a message.",
    section="object_storage_server",
    config=StorageOptions,
    options=(
        Option(("address", "bind_address"), "address to listen on: tcp://host:port or ipc://path", Address.parse),
        Option(("--identity", "-i"), "name of this server in log lines", default="ObjectStorageServer"),
        Option(
            ("--client-timeout-seconds", "-ct"),
            "how long the objects of a client are kept after its connection is lost",
            positive_seconds,
            default=60.0,
        ),
        Option(
            ("--object-retention-seconds", "-ot"),
            "how long results are kept for a client that has not connected",
            positive_seconds,
            default=60.0,
        ),
        *SERVER_OPTIONS,
    ),
    refusals=REFUSED,
    example="scaler_object_storage_server tcp://127.0.0.1:2346 --memory-limit 8000000000 --spill-directory /var/tmp",
)
