"""The program `scaler_profile`: where running tasks spend their time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from scaler_io.security.keyring import OPERATOR_KEYS
from scaler_io.service.cli import Command
from scaler_io.service.operator_link import OperatorLink
from scaler_io.service.options import KEYS, Option, UsageError, path
from scaler_io.transport.own_keys import credentials_for
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ScalerError
from scaler_protocol.handshake import ServiceKind
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.operations import ProfilePart, TakeProfile
from scaler_ui.model.stack_profile import StackProfile

CONNECT_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 15.0
"""How long the scheduler may take to answer after the end."""
LONGEST_SECONDS: Final = 600.0
_LOOK_SECONDS: Final = 0.05
_FLAMES: Final = Path(__file__).parents[1] / "web" / "flames.js"
_WRITERS: Final[dict[str, Callable[[StackProfile, str], str]]] = {
    ".html": lambda profile, title: profile.as_html(title, _FLAMES.read_text("utf-8")),
    ".json": lambda profile, title: profile.as_speedscope(),
    ".txt": lambda profile, title: profile.as_collapsed(),
}


class NoProfileError(ScalerError, ConnectionError):
    """The scheduler has sent no profile."""


def profile_seconds(text: str) -> float:
    """How long a profile is taken: 1 to 600 seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= LONGEST_SECONDS:
        raise ValueError(f"{text!r} is not a number from 1 to {LONGEST_SECONDS:g}")
    return seconds


def output_file(text: str) -> Path:
    """A file whose suffix names a format."""
    file = path(text)
    if file.suffix not in _WRITERS:
        raise ValueError(f"{text!r} ends with none of {', '.join(_WRITERS)}, which say what is written")
    return file


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Options from the command line, the environment and the TOML file."""

    address: Address
    function: str
    seconds: float
    output: Path | None
    keys: Path | None = None
    insecure: bool = False


COMMAND: Final = Command(
    program="scaler_profile",
    description="Say where running tasks spend their time, by samples of their stacks.",
    section="profile",
    config=ProfileOptions,
    options=(
        Option(("address", "scheduler_address"), "the scheduler", Address.parse_peer),
        Option(("--function", "-f"), "only tasks of this function, as pages name it: math:sqrt", default=""),
        Option(("--seconds", "-s"), "how long to sample, 1 to 600", profile_seconds, default=30.0),
        Option(
            ("--output", "-o"),
            "a file to write: .html a flame graph, .json for speedscope, .txt a line for each stack (collapsed); "
            "a table on standard output if left out",
            output_file,
            default=None,
            metavar="FILE",
        ),
        *KEYS,
    ),
    example="scaler_profile tcp://127.0.0.1:2345 --function jobs:price --seconds 30 -o profile.html",
)


def run_profile() -> int:
    """Take the profile that the command line describes; returns the exit code: 1 if no task was seen."""
    options = COMMAND.read()
    if options.output is not None and not options.output.parent.is_dir():
        raise UsageError(f"--output {options.output}: there is no directory {options.output.parent}")
    credentials = credentials_for(options.address, options.keys, options.insecure, OPERATOR_KEYS)
    link = OperatorLink(options.address, "scaler_profile", ServiceKind.SCHEDULER, credentials=credentials)
    try:
        profile = taken(link, TakeProfile(1, options.function, options.seconds), str(options.address))
    finally:
        link.close()
    for problem in profile.problems:
        print(f"scaler_profile: {problem}", file=sys.stderr)
    if options.output is None:
        print(profile.as_text(), end="")
    else:
        title = f"{options.function or 'all functions'}, {options.seconds:g} s"
        options.output.write_text(_WRITERS[options.output.suffix](profile, title), "utf-8")
        print(f"{options.output}: {profile.summary}")
    return 0 if profile.samples else 1


def taken(link: OperatorLink, asked: TakeProfile, where: str) -> StackProfile:
    """The profile; raises NoProfileError if the scheduler cannot be reached, or is lost meanwhile."""
    profile = StackProfile(asked.function)
    link.send(asked)
    until = time.monotonic() + CONNECT_SECONDS
    joins = 0
    while time.monotonic() < until:
        for message in link.turn():
            if isinstance(message, ProfilePart) and message.request == asked.request:
                profile.add(message)
        if profile.is_complete:
            return profile
        if link.joins > max(1, joins):
            raise NoProfileError(f"the scheduler at {where} has been restarted: the profile is lost")
        if link.joins and not joins:
            joins, until = link.joins, time.monotonic() + asked.seconds + PATIENCE_SECONDS
        if link.problem and not link.is_up:
            raise NoProfileError(f"the scheduler at {where} sends no profile: {link.problem}")
        time.sleep(_LOOK_SECONDS)
    raise NoProfileError(f"no scheduler answers at {where}; is it running there?")
