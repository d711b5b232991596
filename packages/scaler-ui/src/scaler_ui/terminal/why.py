"""The program `scaler_why`: why a task waits, where it is, or how it ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from scaler_io.security.keyring import OPERATOR_KEYS, SUBSCRIBER_KEYS, KeyFileError
from scaler_io.service.cli import Command
from scaler_io.service.operator_link import OperatorLink
from scaler_io.service.options import KEYS, Option, positive_seconds
from scaler_io.transport.own_keys import credentials_for
from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError
from scaler_protocol.handshake import ServiceKind
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.operations import AskWhy, Reasons
from scaler_ui.listening import Listening, scheduler_address
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.reasons import is_known, is_to_ask, printed, why

ANSWER_SECONDS = 2.0
"""How long the scheduler may take to answer."""
LOOK_SECONDS = 0.01


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


def _asked(model: MonitorModel, options: WhyOptions) -> Sequence[str]:
    """What the scheduler itself says of the task; nothing if it takes no questions of this user, or does not answer."""
    assert model.status is not None
    try:
        address = scheduler_address(options.address, model.status.address)
        credentials = credentials_for(address, options.keys, options.insecure, OPERATOR_KEYS)
    except (KeyFileError, AddressError):
        return ()
    link = OperatorLink(address, "scaler_why", ServiceKind.SCHEDULER, credentials=credentials)
    link.send(AskWhy(options.task))
    until = time.monotonic() + min(options.timeout_seconds, ANSWER_SECONDS)
    try:
        while time.monotonic() < until and not link.problem:
            for message in link.turn():
                if isinstance(message, Reasons):
                    return message.sentences
            time.sleep(LOOK_SECONDS)
    finally:
        link.close()
    return ()


def run_why() -> int:
    """Answer for the task that the command line names; returns the exit code: 1 for an unknown task."""
    options = COMMAND.read()
    credentials = credentials_for(options.address, options.keys, options.insecure, SUBSCRIBER_KEYS)
    listening = Listening(options.address, credentials=credentials)
    try:
        listening.wait_for(lambda model: model.is_complete, options.timeout_seconds)
    finally:
        listening.close()
    asked = _asked(listening.model, options) if is_to_ask(listening.model, options.task) else ()
    print("\n".join(why(listening.model, options.task, asked)))
    text = printed(listening.model, options.task)
    if text:
        print(f"it has printed:\n{text}")
    return 0 if text or asked or is_known(listening.model, options.task) else 1
