"""Programs of a batch system and commands on other hosts: run with a deadline, failures in words."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from scaler_io.interpreters import WORKER_PATH, words_of
from scaler_io.provisioning.provisioner import ProvisionerError
from scaler_io.service.options import Option, one_line
from scaler_worker.managers.options import ManagerOptions

PROGRAM_SECONDS: Final = 60.0
"""How long a program may take to answer."""
_SHOWN: Final = 500
"""Characters of an error that are shown."""
_running: Final[set[subprocess.Popen[str]]] = set()
"""The programs that are under way, in any thread."""

WORKER_COMMAND: Final = Option(
    ("--worker-command",),
    "how hosts run scaler_cluster, as a shell command without its options; as this Python does if left out",
    default="",
)
"""A field `worker_command`: text that stands in a shell script."""
SETUP: Final = Option(
    ("--setup",),
    "shell commands that hosts run before that, such as `module load python`; a command that fails ends the unit",
    default="",
)
"""A field `setup`: text that stands in a shell script."""


def shell_words(text: str) -> tuple[str, ...]:
    """Parse words as a shell splits them; raises ValueError for an open quote."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"{text!r}: {str(error).lower()}") from None


def run_program(words: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program with `text` as its input; raises ProvisionerError if it is missing or does not answer in time."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C in a terminal is for the manager
        )
    except FileNotFoundError:
        raise ProvisionerError(f"{words[0]} is not installed on this host, or not in PATH") from None
    with process:
        _running.add(process)
        try:
            output, errors = process.communicate(text, timeout=PROGRAM_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise ProvisionerError(f"{words[0]} has not answered for {PROGRAM_SECONDS:g} s") from None
        finally:
            _running.discard(process)
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def end_programs() -> None:
    """Kill the programs that are under way, with what they have started."""
    for process in list(_running):
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def output_of(words: Sequence[str], text: str = "") -> str:
    """The output of a program that must succeed; raises ProvisionerError, which quotes its errors."""
    done = run_program(words, text)
    if done.returncode:
        raise ProvisionerError(failure_of(done, words[0]))
    return done.stdout


def failure_of(done: subprocess.CompletedProcess[str], name: str) -> str:
    """The errors of a program that has failed, in one line of limited length."""
    words = one_line(done.stderr) or one_line(done.stdout)
    code = done.returncode
    ended = f"exit code {code}" if code >= 0 else f"signal {-code}"
    return f"{name}: {words[-_SHOWN:]}" if words else f"{name}: {ended}"


def worker_line(options: ManagerOptions, command: str, before: str = "") -> str:
    """The lines of a shell script that become the agent of a unit; its name is in the environment.

    `before` is a command that runs it. Tasks find modules of the directory in which the script runs.
    """
    command = command or shlex.join((sys.executable, *words_of("scaler_worker")))
    path = f'export {WORKER_PATH}="${{{WORKER_PATH}:-$PWD}}"'
    return f"{path}\nexec {before} {command} {shlex.join(options.unit_words(''))}"
