"""Sweep: examines the connections of a socket repeatedly, in a small share of a processor however many there are.

While nothing arrives it waits for that, so that an idle service sleeps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from scaler_io.transport.connections import SWEEP_SECONDS

_SHARE: Final = 0.05
"""Largest share of a processor that examining takes."""
_STALL_SECONDS: Final = 0.5
"""At most so much of a delay is counted: a loop that stood still has not read what was sent meanwhile."""


class Sweep:
    """Calls `look` with the seconds since its last call, on the running asyncio loop, until it is closed.

    `look` returns the seconds until the next look. If they are more than SWEEP_SECONDS, the next look comes
    SWEEP_SECONDS after the descriptor `arrivals` has become readable, if that is earlier; None for no descriptor.
    """

    def __init__(self, look: Callable[[float], float], arrivals: int | None) -> None:
        self._look = look
        self._arrivals = arrivals
        self._loop = asyncio.get_running_loop()
        self._ended = time.monotonic()
        self._asked = SWEEP_SECONDS
        """The seconds that the last look has asked for."""
        self._least = 0.0
        """The seconds that must pass after it, so that looking takes no more than its share."""
        self._timer = self._loop.call_later(SWEEP_SECONDS, self._on_time)

    def _on_time(self) -> None:
        self._stop_listening()
        # Not the time that it waits for the locks of connections, which one that receives without end holds: 10 ms.
        began, used = time.monotonic(), time.thread_time()
        longest = self._asked + self._least + _STALL_SECONDS
        self._asked, self._least = SWEEP_SECONDS, 0.0
        try:
            self._asked = self._look(min(began - self._ended, longest))
            self._ended = time.monotonic()
            self._least = (time.thread_time() - used) / _SHARE
        finally:
            self._timer = self._loop.call_later(max(self._asked, self._least), self._on_time)
            if self._asked > SWEEP_SECONDS and self._arrivals is not None:
                self._loop.add_reader(self._arrivals, self._on_arrival)

    def _on_arrival(self) -> None:
        self._stop_listening()
        self._timer.cancel()
        self._timer = self._loop.call_later(max(SWEEP_SECONDS, self._least), self._on_time)

    def _stop_listening(self) -> None:
        if self._arrivals is not None:
            self._loop.remove_reader(self._arrivals)

    def close(self) -> None:
        """Stop examining."""
        self._stop_listening()
        self._timer.cancel()
