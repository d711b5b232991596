"""Sweep: examines the connections of a socket repeatedly, in a small share of a processor however many there are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from scaler_io.transport.connections import SWEEP_SECONDS

_SHARE: Final = 0.05
"""Largest share of a processor that examining takes."""


class Sweep:
    """Calls `look` with the seconds since its last call, on the running asyncio loop, until it is closed.

    `look` returns the seconds until the next look.
    """

    def __init__(self, look: Callable[[float], float]) -> None:
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._ended = time.monotonic()
        self._timer = self._loop.call_later(SWEEP_SECONDS, self._on_time)

    def _on_time(self) -> None:
        # Not the time that it waits for the locks of connections, which one that receives without end holds: 10 ms.
        began, used = time.monotonic(), time.thread_time()
        pause = SWEEP_SECONDS
        try:
            # A loop that stood still has not read what was sent meanwhile.
            pause = self._look(min(began - self._ended, 10 * SWEEP_SECONDS))
            self._ended = time.monotonic()
            pause = max(pause, (time.thread_time() - used) / _SHARE)
        finally:
            self._timer = self._loop.call_later(pause, self._on_time)

    def close(self) -> None:
        """Stop examining."""
        self._timer.cancel()
