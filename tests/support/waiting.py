"""Wait for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

from support.gates import SECONDS

POLL_SECONDS = 0.005


def wait_until(condition: Callable[[], object], what: str = "the condition", seconds: float = SECONDS) -> float:
    """Poll until the condition holds; return the seconds that took. AssertionError after `seconds`."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(POLL_SECONDS)
    return time.monotonic() - start
