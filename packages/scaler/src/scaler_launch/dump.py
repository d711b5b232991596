"""`scaler dump`: who waits for what in a scheduler, and why, as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scaler_io.security.keyring import OPERATOR_KEYS, Credentials
from scaler_io.service.cli import Command
from scaler_io.service.operator_link import OperatorLink
from scaler_io.service.options import KEYS, Option, path, positive_seconds
from scaler_io.transport.own_keys import credentials_for
from scaler_launch.whole_files import write_whole
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ScalerError
from scaler_protocol.handshake import ServiceKind
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.operations import Dump, DumpPart

_LOOK_SECONDS: Final = 0.02


class NoDumpError(ScalerError, ConnectionError):
    """The scheduler has sent no dump."""


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """The command line of `scaler dump`."""

    address: Address
    output: Path | None
    timeout_seconds: float
    keys: Path | None = None
    insecure: bool = False


DUMP: Final = Command(
    program="scaler dump",
    description="Print who waits for what in a scheduler, and why, as JSON.",
    section="dump",
    config=DumpOptions,
    options=(
        Option(("address", "scheduler_address"), "the scheduler", Address.parse_peer),
        *KEYS,
        Option(("--output", "-o"), "a file to write; standard output if left out", path, default=None, metavar="FILE"),
        Option(("--timeout-seconds", "-t"), "how long to wait for an answer", positive_seconds, default=5.0),
    ),
    example="scaler dump tcp://127.0.0.1:2345 -o dump.json",
)


def show(words: Sequence[str]) -> int:
    """Print a dump, or write it into a file; returns the exit code.

    Raises NoDumpError if no scheduler answers, OSError if the file cannot be written, KeyFileError for wrong keys.
    """
    options = DUMP.read(words)
    credentials = credentials_for(options.address, options.keys, options.insecure, OPERATOR_KEYS)
    text = fetch(options.address, credentials, options.timeout_seconds)
    if options.output is None:
        sys.stdout.write(text.decode())
        sys.stdout.flush()
    else:
        write_whole(options.output, text)
    return 0


def fetch(address: Address, credentials: Credentials | None, seconds: float) -> bytes:
    """The dump of the scheduler at `address`, as JSON; raises NoDumpError after `seconds`, or if it is refused."""
    link = OperatorLink(address, "scaler dump", ServiceKind.SCHEDULER, credentials=credentials)
    try:
        return _receive(link, address, time.monotonic() + seconds)
    finally:
        link.close()


def _receive(link: OperatorLink, address: Address, until: float) -> bytes:
    parts: list[bytes] = []
    joins = 0
    while time.monotonic() < until:
        arrived = link.turn()
        if link.joins != joins:  # a new stream: what was asked before is forgotten
            joins = link.joins
            parts.clear()
            link.send(Dump())
        for message in arrived:
            if isinstance(message, DumpPart):
                parts.append(message.data)
                if not message.left:
                    return b"".join(parts)
        if link.problem and not link.is_up:
            raise NoDumpError(f"the scheduler at {address} sends no dump: {link.problem}")
        time.sleep(_LOOK_SECONDS)
    raise NoDumpError(f"no scheduler answers at {address}; is it running there?")
