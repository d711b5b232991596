"""Whether storage is full, for the log: once at the beginning, and once a minute with a count while it lasts. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

TELL_SECONDS: Final = 60.0
REMEDY: Final = "see --memory-limit and --spill-directory"


class Fullness:
    """Hears of each object for which there is no room."""

    def __init__(self, log: Callable[[int, str], None]) -> None:
        self._log = log
        self._tell_at: float | None = None
        self._refused, self._why = 0, ""

    def refused(self, why: str, now: float) -> None:
        """An object was refused."""
        if self._tell_at is None:
            self._log(logging.WARNING, f"storage is full: {why}; {REMEDY}")
            self._tell_at = now + TELL_SECONDS
        else:
            self._refused, self._why = self._refused + 1, why

    def settle(self, now: float) -> None:
        """Say how many more were refused, where it is time; forget about it where none was."""
        if self._tell_at is None or now < self._tell_at:
            return
        self._tell_at = None
        if self._refused:
            last = f"the last: {self._why}"
            text = f"storage is full: {self._refused} more objects were refused in {TELL_SECONDS:g} s, {last}; {REMEDY}"
            self._log(logging.WARNING, text)
            self._refused, self._tell_at = 0, now + TELL_SECONDS

    def due(self) -> float | None:
        """When there may be something to say."""
        return self._tell_at
