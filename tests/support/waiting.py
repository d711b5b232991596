"""Wait for a condition, with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from support.gates import SECONDS

POLL_SECONDS = 0.005


def pause() -> None:
    """What `wait_until` does between two looks."""
    time.sleep(POLL_SECONDS)


def wait_until(
    condition: Callable[[], object],
    what: str = "the condition",
    seconds: float = SECONDS,
    pause: Callable[[], object] = pause,
) -> float:
    """Look until the condition holds, and call `pause` between two looks; return the seconds that took.

    AssertionError after `seconds`.
    """
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        pause()
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
