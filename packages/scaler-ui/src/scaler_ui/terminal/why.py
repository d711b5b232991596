"""The program `scaler_why`: why a task waits, where it is, or how it ended."""

from __future__ import annotations

from pathlib import Path

from scaler_io.security.keyring import SUBSCRIBER_KEYS
from scaler_io.service.cli import Command
from scaler_io.service.options import KEYS, Option, positive_seconds
from scaler_io.transport.own_keys import credentials_for
from scaler_protocol.addresses import Address
from scaler_protocol.lazy_dataclass import dataclass
from scaler_ui.listening import Listening
from scaler_ui.model.reasons import is_known, why


def task_id(text: str) -> int:
    """A task id as futures and logs show it: hexadecimal."""
    try:
        number = int(text, 16)
    except ValueError:
        number = -1
    if not 0 < number < 2**64:
        raise ValueError(f"{text!r} is not a task id: write it as futures and logs show it, like 3f9a6c0e00000001")
    return number


@dataclass(frozen=True, slots=True)
class WhyOptions:
    """Options from the command line, the environment and the TOML file."""

    address: Address
    task: int
    timeout_seconds: float
    keys: Path | None = None
    insecure: bool = False


COMMAND = Command(
    program="scaler_why",
    description="Say why a task waits, where it is, or how it ended.",
    section="why",
    config=WhyOptions,
    options=(
        Option(
            ("address", "monitor_address"),
            "the monitor: tcp://host:port (the scheduler's port + 2) or ipc://path",
            Address.parse_peer,
        ),
        Option(("task",), "the id of a task, hexadecimal, as a future shows it", task_id),
        Option(("--timeout-seconds", "-t"), "how long to wait for a status", positive_seconds, default=5.0),
        *KEYS,
    ),
    example="scaler_why tcp://127.0.0.1:2347 3f9a6c0e00000001",
)


def run_why() -> int:
    """Answer for the task that the command line names; returns the exit code: 1 for an unknown task."""
    options = COMMAND.read()
    credentials = credentials_for(options.address, options.keys, options.insecure, SUBSCRIBER_KEYS)
    listening = Listening(options.address, credentials=credentials)
    try:
        listening.wait_for(lambda model: model.is_complete, options.timeout_seconds)
    finally:
        listening.close()
    print("\n".join(why(listening.model, options.task)))
    return 0 if is_known(listening.model, options.task) else 1
