"""SchedulerLink: whether the scheduler can be reached, and why not. Pure, no IO."""

from __future__ import annotations

from scaler_io.links.events import LinkDown, LinkLost, LinkRefused, LinkUp
from scaler_protocol.errors import HandshakeRefusedError, ScalerError, SchedulerLostError, SessionInUseError
from scaler_protocol.handshake import Goodbye


class SchedulerLink:
    """The state of the link to the scheduler at an address."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.up = False
        self.failure: ScalerError | None = None
        """Why all calls fail, until the link is up again; None if it is up, or may come up in time."""
        self.restarted = False
        """Whether the scheduler is another one than before."""
        self._was_up = False
        self._scheduler = 0
        self._down_reason = ""

    def opened(self, event: LinkUp) -> bool:
        """The link is up; returns whether the scheduler has forgotten what it was sent before."""
        forgotten = self._was_up and not event.resumed
        self.restarted = self._scheduler not in (0, event.welcome.incarnation)
        self._scheduler = event.welcome.incarnation
        self.up, self.failure, self._was_up = True, None, True
        return forgotten

    def broken(self, event: LinkDown, now: float) -> None:
        """The connection is broken; attempts to connect again go on."""
        self.up, self._down_reason = False, event.reason

    def ended(self, event: Goodbye) -> ScalerError:
        """The cluster has ended for good; returns the error of all calls."""
        why = f": {event.reason}" if event.reason else ""
        return self._fail(SchedulerLostError(f"the cluster at {self._address} has ended{why}"))

    def lost(self, event: LinkLost) -> ScalerError:
        """No connection for longer than the timeout; returns the error of all calls."""
        remedy = "" if self._was_up else f"; is it running? Start one with: scaler_scheduler {self._address}"
        why = f" ({self._down_reason})" if self._down_reason else ""
        return self._fail(SchedulerLostError(f"{event.reason} to the scheduler at {self._address}{why}{remedy}"))

    def refused(self, event: LinkRefused) -> ScalerError:
        """The scheduler refuses this client; returns the error of all calls."""
        kind = SessionInUseError if event.in_use else HandshakeRefusedError
        reason = event.reason(self._address)
        return self._fail(kind(f"the scheduler at {self._address} refuses this client: {reason}"))

    def _fail(self, error: ScalerError) -> ScalerError:
        self.up, self.failure = False, error
        return error
