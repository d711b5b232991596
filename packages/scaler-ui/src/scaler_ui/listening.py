"""A subscription that feeds a model, for programs that poll it."""

from __future__ import annotations

import time
from collections.abc import Callable

from scaler_io.security.keyring import Credentials
from scaler_io.transport.publishing import Subscriber
from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError, ScalerError
from scaler_protocol.monitoring import MonitorStatus, StorageStatus
from scaler_protocol.plurals import counted
from scaler_ui.model.feed import Feed
from scaler_ui.model.findings import Finding, findings
from scaler_ui.model.model import MonitorModel

PATIENCE_SECONDS = 2.0
"""Seconds without a status after which the address is probably wrong."""
_LOOK_SECONDS = 0.05
_TURN_SECONDS = 0.1
"""A look ends after this time, whatever has arrived: others wait, and a publisher may be faulty."""
_TURN_MESSAGES = 8
"""Messages between two readings of the clock."""
_KEPT_SECONDS = 0.5


def scheduler_address(monitor: Address, told: str) -> Address:
    """The address of the scheduler that publishes at `monitor` and reports the address `told`; raises AddressError."""
    scheduler = Address.parse(told)
    return scheduler if monitor.path or scheduler.path else Address(monitor.host, scheduler.port)


class NoStatusError(ScalerError, ConnectionError):
    """No scheduler publishes at this address."""


def advice(address: Address, *, is_answered: bool) -> str:
    """Why no status comes from an address, as far as a subscriber can know: whether something listens there."""
    if not is_answered:
        return f"nothing answers at {address}: is the scheduler up?"
    try:
        beside = f" If this is its own port, the monitor is usually {address.beside(2)}"
    except AddressError:
        beside = ""
    return f"no status comes from {address}: is the scheduler up?{beside}"


class Listening:
    """One connection to a monitor address; it reconnects by itself. Not thread-safe."""

    def __init__(
        self,
        address: Address,
        clock: Callable[[], float] = time.monotonic,
        *,
        credentials: Credentials | None = None,
    ) -> None:
        self.address = address
        self.model = MonitorModel()
        self.started = clock()
        self._clock = clock
        self._subscriber = Subscriber(address, credentials)
        self._feed = Feed(self._subscriber)
        self._malformed_before = 0
        """Malformed messages before the last status: one that can be read follows them."""
        self._looked: float | None = None
        """When the last look began after which no message was left."""
        self._findings: tuple[float, list[Finding]] | None = None

    def look(self) -> None:
        """Process messages that have arrived: all of them, if there is time.

        The first of them may have arrived just after the last look.
        """
        began, gaps = self._clock(), self._feed.gaps
        now, is_heard, is_behind = began, False, True
        while is_behind and now <= began + _TURN_SECONDS:
            is_heard |= self._take(now)
            is_behind = self._subscriber.wait(0)
            now = self._clock()
        self.model.silence_reason = self.misfit or self.refusal
        if is_heard and self._looked is not None:
            self.model.caught_up(now, now - self._looked)
        if self._feed.gaps > gaps:
            self.model.delays.losses.append(now)
        if not is_behind:
            self._looked = began

    def _take(self, now: float) -> bool:
        """Process some messages; returns whether there were any."""
        messages = self._feed.take(now, _TURN_MESSAGES)
        for message in messages:
            self.model.take(message, self._clock())
            if isinstance(message, MonitorStatus):
                self._malformed_before = self._feed.malformed
        return bool(messages)

    @property
    def losses(self) -> int:
        """How often messages were missing."""
        return self._feed.gaps

    @property
    def now(self) -> float:
        """The clock of the model in seconds."""
        return self._clock()

    def findings(self) -> list[Finding]:
        """What is found now, for all readers: it takes up to 0.2 s at 1,000 hosts, and is kept for a moment."""
        if self._findings is None or self.now > self._findings[0] + _KEPT_SECONDS:
            self._findings = self.now, findings(self.model, self.now)
        return self._findings[1]

    def figures(self) -> tuple[MonitorStatus | None, StorageStatus | None]:
        """The last status of the scheduler and of object storage; none of who has been silent for long."""
        model = self.model
        if model.is_stale(self.now):
            return None, None
        return model.status, None if model.is_storage_silent(self.now) else model.storage

    @property
    def refusal(self) -> str:
        """Why no status comes because of the keys; empty if the keys are not the reason."""
        return self._subscriber.problem

    @property
    def problem(self) -> str:
        """Why no status comes: nobody is there, the keys, perhaps the address; empty if one has come, or may soon."""
        return self._reason() if self.refusal or self.silent else ""

    @property
    def misfit(self) -> str:
        """Why no status can be read, although something is published; empty if that is not so."""
        count = self._feed.malformed - self._malformed_before
        if count and self.model.is_stale(self.now):
            arrived = counted(count, "malformed message")
            said = f"what {self.address} publishes cannot be read ({arrived} came)"
            return f"{said}: use the scheduler's version of Scaler, and the address of its monitor"
        return ""

    def _reason(self) -> str:
        if self.misfit:
            return self.misfit
        # Another service than the monitor looks like one with another key.
        return "; ".join(filter(None, (advice(self.address, is_answered=self._subscriber.is_answered), self.refusal)))

    @property
    def silent(self) -> bool:
        """Whether no status has come within PATIENCE_SECONDS."""
        return self.model.status is None and self.now > self.started + PATIENCE_SECONDS

    def wait_for(self, condition: Callable[[MonitorModel], bool], seconds: float) -> None:
        """Listen until the condition holds; raises NoStatusError after `seconds`, or if no status arrives."""
        until = self.now + seconds
        while not condition(self.model):
            if self.refusal or self.misfit or self.now >= until:
                raise NoStatusError(self._reason())
            self.step()

    def step(self) -> None:
        """Wait a moment for messages, and process those that have arrived."""
        self._subscriber.wait(_LOOK_SECONDS)
        self.look()

    def close(self) -> None:
        """Close the connection."""
        self._subscriber.close()
