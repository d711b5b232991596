"""Log lines about full storage: one at the beginning, then one a minute with a count while it lasts. Pure, no IO."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from scaler_protocol.plurals import counted

REPEAT_SECONDS: Final = 60.0
LATELY_MINUTES: Final = 10
REMEDY: Final = "see --memory-limit and --spill-directory"


class Fullness:
    """Limits the rate of log lines about refused objects."""

    def __init__(self, log: Callable[[int, str], None]) -> None:
        self._log = log
        self._repeat_at: float | None = None
        self._refused, self._why = 0, ""
        self._minutes: deque[tuple[float, int]] = deque(maxlen=LATELY_MINUTES + 1)
        """When minutes began in which objects were refused, and how many were."""

    def refused(self, why: str, now: float) -> None:
        """Count a refused object; log the first one."""
        begun, count = self._minutes.pop() if self._minutes and now < self._minutes[-1][0] + 60.0 else (now, 0)
        self._minutes.append((begun, count + 1))
        if self._repeat_at is None:
            self._log(logging.WARNING, f"storage is full: {why}; {REMEDY}")
            self._repeat_at = now + REPEAT_SECONDS
        else:
            self._refused, self._why = self._refused + 1, why

    def lately(self, now: float) -> int:
        """How many objects were refused within about the last LATELY_MINUTES."""
        return sum(count for begun, count in self._minutes if begun > now - 60.0 * LATELY_MINUTES)

    def settle(self, now: float) -> None:
        """Log how many more objects were refused; end the condition if there were none."""
        if self._repeat_at is None or now < self._repeat_at:
            return
        self._repeat_at = None
        if self._refused:
            refused = f"refused {counted(self._refused, 'more object')} in {REPEAT_SECONDS:g} s"
            text = f"storage is full: {refused}, the last: {self._why}; {REMEDY}"
            self._log(logging.WARNING, text)
            self._refused, self._repeat_at = 0, now + REPEAT_SECONDS

    def due(self) -> float | None:
        """When `settle` has something to do, or None."""
        return self._repeat_at
