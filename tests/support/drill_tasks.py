"""Tasks of the night drill."""

from __future__ import annotations

import os
import signal
import time

SICK = "sickbay"
"""The name of the sick host."""
_kept: list[bytes] = []


def job(seconds: float) -> None:
    """Takes six times as long on the sick host."""
    time.sleep(seconds * (6 if os.uname().nodename == SICK else 1))


def pause(seconds: float) -> None:
    """Usually short."""
    time.sleep(seconds)


def leak() -> None:
    """Each run keeps 40 MiB."""
    _kept.append(b"x" * (40 * 1024 * 1024))


def poison() -> None:
    """Kill each worker that runs this."""
    os.kill(os.getpid(), signal.SIGKILL)
