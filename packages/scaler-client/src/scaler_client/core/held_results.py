"""HeldResults: the long results that came with messages and that this process still holds. Pure, no IO.

The scheduler sends results above INLINE_LIMIT as long as the client's credit has room for them. The client says how
many bytes it has let go of: those of results that were loaded or dropped, unless a future or a value still uses them,
and those of a map at once, because it returns them all together: they would be in memory in any case.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from scaler_protocol.handshake import INLINE_LIMIT, RESULT_CREDIT
from scaler_protocol.messages import Done
from scaler_protocol.payloads import Payloads

FREED_BYTES = RESULT_CREDIT // 4
"""So many are reported although no outcome is released."""


class _Hold:
    """Its end says that so many bytes are not held any more. In any thread, between any two instructions."""

    __slots__ = ("_freed", "_size")

    def __init__(self, freed: deque[int], size: int) -> None:
        self._freed, self._size = freed, size

    def __del__(self) -> None:
        self._freed.append(self._size)


class LongResult(bytes):
    """A result above INLINE_LIMIT that came with a message."""

    hold: _Hold

    def let_go(self) -> None:
        """It does not count as held any more, although it is there."""
        del self.hold


class HeldResults:
    """Counts the bytes of long results that are let go of."""

    def __init__(self) -> None:
        self._freed: deque[int] = deque()
        self._bytes = 0

    def hold(self, done: Done) -> Done:
        """The message with long results whose end is noticed."""
        if max(done.results.lengths, default=0) <= INLINE_LIMIT:
            return done
        results = [self._held(part) if len(part) > INLINE_LIMIT else bytes(part) for part in done.results.views()]
        return replace(done, results=Payloads(results))

    def _held(self, result: bytes | memoryview) -> LongResult:
        held = LongResult(result)
        held.hold = _Hold(self._freed, len(result))
        return held

    @property
    def freed(self) -> int:
        """Bytes that are not held any more, and were not taken."""
        while self._freed:
            self._bytes += self._freed.popleft()
        return self._bytes

    def take(self) -> int:
        """As `freed`; they are taken now."""
        freed, self._bytes = self.freed, 0
        return freed

    def forget(self) -> None:
        """There is another scheduler, which does not count what came from the one before."""
        self._freed, self._bytes = deque(), 0
