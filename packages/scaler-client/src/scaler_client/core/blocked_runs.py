"""BlockedRuns: tells the scheduler which runs in this process wait for other tasks. Pure, no IO."""

from __future__ import annotations

from scaler_client.core.events import BlockingChanged
from scaler_protocol.messages import Blocked


class BlockedRuns:
    """The changes that were not sent yet; a run that was blocked and unblocked in between has none."""

    def __init__(self) -> None:
        self._changes: dict[int, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._changes)

    def change(self, event: BlockingChanged, now: float) -> None:
        """A run has started or stopped waiting."""
        if self._changes.get(event.run) is (not event.blocked):
            del self._changes[event.run]
        else:
            self._changes[event.run] = event.blocked

    def take(self) -> Blocked:
        """The message with all changes, which count as sent."""
        changes, self._changes = self._changes, {}
        return Blocked(list(changes), list(changes.values()))
