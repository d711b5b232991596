"""Wait for a condition, with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from support.gates import SECONDS

POLL_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 0.1
_PAUSE_PER_LOOK = 4
"""Looks take a fifth of the time at most: one that asks a service takes as long as a pause, and others compute."""


def rest(look_seconds: float = 0.0) -> None:
    """What `wait_until` does after a look that took so long."""
    time.sleep(max(POLL_SECONDS, min(_PAUSE_PER_LOOK * look_seconds, LONGEST_PAUSE_SECONDS)))


def wait_until(
    condition: Callable[[], object],
    what: str = "the condition",
    seconds: float = SECONDS,
    pause: Callable[[], object] | None = None,
) -> float:
    """Look until the condition holds, and rest, or call `pause`, between two looks; return the seconds that took.

    AssertionError after `seconds`.
    """
    start = looked = time.monotonic()
    while not condition():
        now = time.monotonic()
        if now - start > seconds:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        if pause is None:
            rest(now - looked)
        else:
            pause()
        looked = time.monotonic()
    return time.monotonic() - start


def once(condition: Callable[[], object], act: Callable[[], object]) -> threading.Thread:
    """A thread that acts once the condition holds."""
    thread = threading.Thread(target=lambda: (wait_until(condition), act()))
    thread.start()
    return thread


def wait_text(path: Path) -> str:
    """The text of a file, once it is not empty."""
    wait_until(lambda: path.exists() and path.stat().st_size, f"text in {path}")
    return path.read_text("utf-8")
