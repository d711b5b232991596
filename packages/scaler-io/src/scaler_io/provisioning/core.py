"""ManagerCore: keeps as many units as the scheduler wants. Events in, effects out, no IO.

    start accepted        provider says so       agent connected         scheduler drains it
    REQUESTED ──────────────▶ UP ──────────────────▶ JOINED ──────────────────▶ DRAINING
        │ cancelled, too late │                        │ agent left              │ agent left, or too late
        └─────────▶ STOPPING ◀┴────────────────────────┴─────────────────────────┘ ──▶ forgotten when it has ended

Totals are declarative: units are started while there are fewer than wanted, and units that have not joined are
cancelled, the youngest first, while there are more. Units that have joined are drained by the scheduler, never here.
Draining and stopping units are no capacity.

Failures (a start that is refused, a unit that stays silent, or that ends on its own before it has been connected for
EARLY_SECONDS) pause starts for 1, 2, 4 … 60 s; a unit that joins later and does not fail ends the series. Units that a
listing shows and that this manager does not know are adopted: they are those of its earlier life, and are not cancelled
before their agents have had RECONNECT_SECONDS to connect. Nothing is started before the first listing, and a manager
whose first listing fails reports a pause until one succeeds, so that others are asked. A manager that ends
reports a maximum of 0 for the same reason. One that the scheduler refuses stops the units that it has started itself,
and ends. A unit whose agent is connected lives, whatever a listing shows.

Invariants (`check`): at most one start, one stop and one listing are under way; a unit that has joined is stopped only
after it was drained and its time is over, when its agent has left, or when the manager ends.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from statistics import median
from typing import Any, Final

from scaler_io.links.effects import Log
from scaler_io.links.events import LinkDown, LinkLost, LinkRefused, LinkUp
from scaler_io.provisioning.events import (
    EndManager,
    ListUnits,
    ManagerEffect,
    ManagerEvent,
    SendStatus,
    StartUnits,
    StopRequested,
    StopUnits,
    UnitsListed,
    UnitsStarted,
    UnitsStopped,
)
from scaler_io.provisioning.provisioner import OfferSpec, UnitPhase, UnitReport
from scaler_protocol.capacity import DesiredWorkers, ManagerStatus, UnitState
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import shortened
from scaler_protocol.plurals import counted
from scaler_protocol.ranges import Text

START_BATCH: Final = 100
"""Most units of one start."""
FIRST_PAUSE_SECONDS: Final = 1.0
LAST_PAUSE_SECONDS: Final = 60.0
JOIN_SECONDS: Final = 300.0
"""How long at least a unit may take to join; or five times the longest start-up seen."""
EXIT_SECONDS: Final = 30.0
"""How long a unit whose agent has left, or that was stopped, may take to end before it is stopped (by force)."""
EARLY_SECONDS: Final = 30.0
"""A unit that ends on its own within this time after it has joined has failed, as one that never joined."""
RECONNECT_SECONDS: Final = 30.0
"""How long units that were found may take to connect before they are cancelled."""
FAILURE: Final = Text(4096)
"""Characters of a provider's error that are quoted: it may contain a whole page, or bytes that are not text."""
STARTUPS: Final = 20
"""Number of start-up times of which the median is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerConfig:
    """Settings of a manager; times are in seconds."""

    id: str
    kind: str
    maximum: int
    """Most workers; -1 for no limit."""
    offers: tuple[OfferSpec, ...]
    prefix: str
    """Begins the names of new units; no other life of this manager has used it."""
    drain_timeout_seconds: float = 25.0
    """How long a unit may drain."""
    poll_seconds: float = 2.0
    """Between two listings."""
    visible_seconds: float = 0.0
    """How long the provider may fail to list a unit that it has accepted."""
    heartbeat_seconds: float = 2.0
    scheduler: str = ""
    """The address of the scheduler, for error messages."""
    leave_units: bool = False
    """Whether units stay when the manager ends."""


class _State(Enum):
    REQUESTED = "requested"
    UP = "up"
    JOINED = "joined"
    DRAINING = "draining"
    STOPPING = "stopping"


_PENDING = (_State.REQUESTED, _State.UP)


@dataclass(slots=True, eq=False)
class _Unit:
    name: str
    offer: int
    since: float
    """When its state began."""
    state: _State = _State.REQUESTED
    accepted: bool = False
    adopted: bool = False
    requested_at: float = 0.0
    joined_at: float = math.inf
    """When its agent first connected; infinity before, minus infinity if that was in an earlier life of the manager."""
    left_at: float = math.inf
    """When its agent left; infinity while it is connected or has never been."""
    stopped_at: float = -math.inf
    """When the provider was last asked to stop it, repeats of failed stops not counted."""
    is_forced: bool = False
    """Whether that was by force."""
    is_unstopped: bool = False
    """Whether that has failed, and is to be repeated."""
    hindrance: str = ""
    """Why it does not start, in the words of the provider."""

    @property
    def has_joined(self) -> bool:
        return self.joined_at < math.inf

    def may_be_cancelled(self, now: float) -> bool:
        """Whether it is pending; one of an earlier life may be about to connect, with runs, to a new scheduler."""
        is_new = self.adopted and now < self.requested_at + RECONNECT_SECONDS
        return self.state in _PENDING and self.accepted and not self.has_joined and not is_new

    def fails_at(self, now: float) -> bool:
        """Whether it fails if it ends now, or when its agent left."""
        is_told = self.state in (_State.DRAINING, _State.STOPPING)
        return not is_told and min(now, self.left_at) < self.joined_at + EARLY_SECONDS


@dataclass(slots=True)
class _Ending:
    code: int
    at: float
    force_at: float
    give_up_at: float
    has_old_listing: bool
    """Whether a listing is under way that was begun before."""
    has_looked: bool = False
    """Whether a listing that was begun since has returned: a start that failed may have started units all the same."""


@dataclass(slots=True)
class _Busy:
    """The calls of the provisioner that are under way."""

    starting: bool = False
    stopping: Sequence[_Unit] = ()
    listing: bool = False


class ManagerCore:
    """All of a worker manager but its link and its provisioner."""

    def __init__(self, config: ManagerConfig, now: float) -> None:
        self._config = config
        self._units: dict[str, _Unit] = {}
        self._desired: tuple[int, ...] | None = None
        self._is_linked = self._is_refused = False
        self._has_listed = False
        self._listing_failure = ""
        self._busy = _Busy()
        self._stop_again_at = math.inf
        self._stop_failure = ""
        self._list_at = now
        self._count = 0
        self._failures, self._paused_until, self._failure = 0, -math.inf, ""
        self._failed_at = -math.inf
        self._startups: deque[float] = deque(maxlen=STARTUPS)
        self._ending: _Ending | None = None
        self._reported: ManagerStatus | None = None
        self._report_at = now
        self._out: list[ManagerEffect] = []
        self._handlers: dict[type[Any], Callable[[Any, float], None]] = {
            LinkUp: self._link_up,
            LinkDown: self._link_down,
            LinkLost: self._link_lost,
            LinkRefused: self._link_refused,
            DesiredWorkers: self._desired_workers,
            UnitsStarted: self._started,
            UnitsStopped: self._stopped,
            UnitsListed: self._listed,
            StopRequested: self._stop_requested,
        }

    def handle(self, event: ManagerEvent, now: float) -> None:
        """Handle one event; unexpected messages are ignored."""
        if handler := self._handlers.get(type(event)):
            handler(event, now)

    def settle(self, now: float) -> list[ManagerEffect]:
        """Make all pending decisions; returns the effects to perform."""
        if now >= self._list_at and not self._busy.listing:
            self._busy.listing = True
            self._out.append(ListUnits())
        if now >= self._stop_again_at and not self._busy.stopping:
            self._stop_again(now)
        if self._ending is not None:
            self._settle_ending(self._ending, now)
        else:
            self._stop_overdue(now)
            if self._is_linked and self._has_listed and self._desired is not None:
                self._reconcile(self._desired, now)
        if self._is_linked:
            self._report(now)
        out, self._out = self._out, []
        return out

    def due(self) -> float:
        """When `settle` is to be called although nothing happened."""
        times = [math.inf if self._busy.listing else self._list_at]
        if not self._busy.stopping:
            times.append(self._stop_again_at)
        if self._is_linked:
            times.append(self._report_at)
        if self._ending is not None:
            times += (self._ending.force_at, self._ending.give_up_at)
        return min(times)

    # --- the link ---------------------------------------------------------------------------------------------------

    def _link_up(self, event: LinkUp, now: float) -> None:
        self._is_linked = True
        if event.resumed:
            return
        self._reported, self._desired = None, None
        for unit in self._units.values():
            # A new stream: the scheduler reports all joined units in its first message.
            if unit.state in (_State.JOINED, _State.DRAINING):
                self._enter(unit, _State.UP, now)
                unit.left_at = math.inf

    def _link_down(self, event: LinkDown, now: float) -> None:
        self._is_linked = False

    def _link_lost(self, event: LinkLost, now: float) -> None:
        reason = f"the scheduler at {self._config.scheduler} is lost: {event.reason}"
        self._stop_requested(StopRequested(1, reason), now)

    def _link_refused(self, event: LinkRefused, now: float) -> None:
        where = self._config.scheduler
        self._log(f"the scheduler at {where} refuses this worker manager: {event.reason(where)}", logging.ERROR)
        self._is_linked, self._is_refused = False, True
        # The manager that is connected may have adopted the same ones.
        self._units = {name: unit for name, unit in self._units.items() if not unit.adopted}
        if self._ending is None:
            self._stop_requested(StopRequested(1), now)

    def _desired_workers(self, message: DesiredWorkers, now: float) -> None:
        if len(message.workers) == len(self._config.offers):
            if self._desired != tuple(message.workers):
                self._log(f"{counted(sum(message.workers), 'worker')} wanted: {message.reason}")
            self._desired = tuple(message.workers)
        for name, state in zip(message.units, message.unit_states, strict=True):
            unit = self._units.get(name)
            if unit is None:
                if state == UnitState.GONE:
                    continue
                unit = self._units[name] = _Unit(name, 0, now, accepted=True, adopted=True)
            self._unit_changed(unit, state, now)

    def _unit_changed(self, unit: _Unit, state: int, now: float) -> None:
        if state == UnitState.GONE:
            unit.left_at = now
            if unit.fails_at(now):
                self._list_at = now  # it is replaced when the provider has said why it ended
            return
        unit.left_at = math.inf
        if not unit.has_joined:
            unit.joined_at = -math.inf if unit.adopted else now
            if now >= self._paused_until:
                self._failure = ""
            if not unit.adopted:
                self._startups.append(now - unit.requested_at)
        if unit.state is not _State.STOPPING:
            self._enter(unit, _State.DRAINING if state == UnitState.DRAINING else _State.JOINED, now)

    # --- the provisioner --------------------------------------------------------------------------------------------

    def _started(self, event: UnitsStarted, now: float) -> None:
        self._busy.starting = False
        accepted = set(event.accepted)
        for name in event.asked:
            unit = self._units.get(name)
            if unit is not None and name in accepted:
                unit.accepted, unit.requested_at = True, now
            elif unit is not None and not unit.has_joined:
                del self._units[name]
        missing = len(event.asked) - len(accepted)
        if missing:
            reason = event.failure or "the provider gave no reason"
            self._fail(f"{missing} of {counted(len(event.asked), 'unit')} could not be started: {reason}", now)
        elif event.failure:
            self._failure = event.failure
        self._list_at = min(self._list_at, now + self._config.poll_seconds)

    def _stopped(self, event: UnitsStopped, now: float) -> None:
        asked, self._busy.stopping = self._busy.stopping, ()
        if event.failure:
            for unit in asked:
                unit.is_unstopped = True
            self._stop_again_at = now + self._config.poll_seconds
            if event.failure != self._stop_failure:
                self._log(f"units could not be stopped: {event.failure}", logging.WARNING)
        self._stop_failure = event.failure
        self._list_at = now

    def _listed(self, event: UnitsListed, now: float) -> None:
        self._busy.listing = False
        self._list_at = now + self._config.poll_seconds
        if self._ending is not None:
            if self._ending.has_old_listing:
                self._list_at = now
            self._ending.has_looked |= not self._ending.has_old_listing
            self._ending.has_old_listing = False
        if event.units is None:
            failure = f"units could not be listed: {event.failure}"
            if failure != self._listing_failure:
                self._log(failure, logging.WARNING)
            self._listing_failure = failure
            return
        if self._listing_failure:
            self._log("units can be listed again")
            self._listing_failure = ""
        for name, report in event.units.items():
            if name not in self._units and not report.phase.has_ended and not self._is_refused:
                self._adopt(name, report, now)
        before = self._hindrance()
        for unit in list(self._units.values()):
            self._compare(unit, event.units.get(unit.name), event.asked_at, now)
        self._has_listed = True
        if (hindrance := self._hindrance()) and hindrance != before:
            self._log(hindrance, logging.WARNING)

    def _adopt(self, name: str, report: UnitReport, now: float) -> None:
        offer = report.offer if report.offer < len(self._config.offers) else 0
        self._units[name] = _Unit(name, offer, now, accepted=True, adopted=True, requested_at=now)
        self._log(f"unit {name} is adopted: it was started before")

    def _compare(self, unit: _Unit, report: UnitReport | None, asked_at: float, now: float) -> None:
        """Compare a unit with a listing that was begun at `asked_at`."""
        if report is None:
            is_connected = unit.state in (_State.JOINED, _State.DRAINING) and unit.left_at == math.inf
            if unit.accepted and not is_connected and unit.requested_at + self._config.visible_seconds < asked_at:
                self._forget(unit, "it has ended", now)
        elif report.phase is UnitPhase.RECLAIMED:
            self._log(f"unit {unit.name} was reclaimed by its provider: {report.reason or 'no reason given'}")
            del self._units[unit.name]
        elif report.phase.has_ended:
            self._forget(unit, report.reason or "it has ended", now)
        elif unit.state is _State.REQUESTED:
            unit.hindrance = report.reason
            if report.phase is UnitPhase.RUNNING:
                self._enter(unit, _State.UP, now)

    def _hindrance(self) -> str:
        """Why units do not start, for one of them; empty if none is held up."""
        waits = [unit for unit in self._units.values() if unit.state is _State.REQUESTED and unit.hindrance]
        return f"unit {waits[0].name} waits: {waits[0].hindrance}" if waits else ""

    def _forget(self, unit: _Unit, reason: str, now: float) -> None:
        del self._units[unit.name]
        if not unit.has_joined and unit.state is not _State.STOPPING:
            self._fail(f"unit {unit.name} ended before it connected to the scheduler: {reason}", now)
        elif unit.fails_at(now):
            seconds = min(now, unit.left_at) - unit.joined_at
            self._fail(f"unit {unit.name} ended {seconds:.0f} s after it had connected to the scheduler: {reason}", now)
        elif unit.joined_at > self._failed_at:
            self._failures = 0

    def _fail(self, failure: str, now: float) -> None:
        """Pause starts; several failures during a pause count once."""
        self._failure = failure
        if now >= self._paused_until:
            if any(self._failed_at < unit.joined_at <= now - EARLY_SECONDS for unit in self._units.values()):
                self._failures = 0
            self._failed_at = now
            self._failures += 1
            pause = min(LAST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (self._failures - 1))
            self._paused_until = now + pause
            self._log(f"{failure}; nothing is started for {pause:g} s", logging.WARNING)

    # --- decisions --------------------------------------------------------------------------------------------------

    def _reconcile(self, desired: tuple[int, ...], now: float) -> None:
        for offer, wanted in enumerate(desired):
            size = self._config.offers[offer].unit_size
            living = [unit for unit in self._living() if unit.offer == offer]
            missing = wanted // size - len(living)
            if missing > 0 and now >= self._paused_until and not self._busy.starting:
                self._start(offer, min(missing, self._room(size), START_BATCH), now)
            elif missing < 0:
                pending = [unit for unit in living if unit.may_be_cancelled(now)]
                pending.sort(key=lambda unit: -unit.requested_at)
                self._stop(pending[:-missing], now)

    def _living(self) -> Iterable[_Unit]:
        """Units that are capacity, or will be."""
        for unit in self._units.values():
            has_left = unit.left_at < math.inf and not unit.fails_at(unit.left_at)
            if unit.state in (*_PENDING, _State.JOINED) and not has_left:
                yield unit

    def _room(self, size: int) -> int:
        """How many more units of this size the maximum allows."""
        if self._config.maximum < 0:
            return START_BATCH
        taken = sum(self._config.offers[unit.offer].unit_size for unit in self._units.values())
        return max(0, (self._config.maximum - taken) // size)

    def _start(self, offer: int, count: int, now: float) -> None:
        if count <= 0:
            return
        names = []
        for _ in range(count):
            self._count += 1
            name = f"{self._config.prefix}-{self._count}"
            self._units[name] = _Unit(name, offer, now, requested_at=now)
            names.append(name)
        self._busy.starting = True
        self._out.append(StartUnits(tuple(names), offer))

    def _stop_overdue(self, now: float) -> None:
        """Stop units whose time is over: they have not joined, they drained too long, or their agent has left."""
        if self._busy.stopping:
            return
        join_seconds = max(JOIN_SECONDS, 5 * max(self._startups, default=0.0))
        late: list[_Unit] = []
        for unit in self._units.values():
            if unit.state is _State.UP and now > unit.since + join_seconds:
                self._fail(f"unit {unit.name} runs, but has not connected for {join_seconds:g} s", now)
                late.append(unit)
            elif unit.state is _State.REQUESTED and unit.hindrance and now > unit.since + join_seconds:
                # One that only waits for its turn may do so for days.
                self._fail(f"unit {unit.name} has not started for {join_seconds:g} s: {unit.hindrance}", now)
                late.append(unit)
            elif unit.state is _State.DRAINING and now > unit.since + self._config.drain_timeout_seconds + EXIT_SECONDS:
                self._log(f"unit {unit.name} has not drained in time; it is stopped", logging.WARNING)
                late.append(unit)
            elif unit.state is not _State.STOPPING and now > unit.left_at + EXIT_SECONDS:
                late.append(unit)
        self._stop(late, now)
        stuck = [
            unit
            for unit in self._units.values()
            if unit.state is _State.STOPPING
            and now > unit.since + self._config.drain_timeout_seconds + EXIT_SECONDS
            and now > unit.stopped_at + EXIT_SECONDS
        ]
        self._stop(stuck, now, force=True)

    def _stop(self, units: list[_Unit], now: float, *, force: bool = False) -> None:
        if not units or self._busy.stopping:
            return
        for unit in units:
            unit.stopped_at, unit.is_forced = now, force
            self._enter(unit, _State.STOPPING, now)
        self._ask_to_stop(units, force)

    def _stop_again(self, now: float) -> None:
        """Repeat the stops that have failed, those by force first."""
        units = [unit for unit in self._units.values() if unit.is_unstopped]
        force = any(unit.is_forced for unit in units)
        first = [unit for unit in units if unit.is_forced is force]
        self._stop_again_at = now if len(first) < len(units) else math.inf
        if first:
            self._ask_to_stop(first, force)

    def _ask_to_stop(self, units: Sequence[_Unit], force: bool) -> None:
        for unit in units:
            unit.is_unstopped = False
        self._busy.stopping = units
        self._out.append(StopUnits(tuple(unit.name for unit in units), force))

    # --- the end ----------------------------------------------------------------------------------------------------

    def _stop_requested(self, event: StopRequested, now: float) -> None:
        if self._ending is not None:
            self._ending.force_at = now
            return
        if event.reason:
            self._log(event.reason, logging.ERROR if event.code else logging.INFO)
        force_at = now + self._config.drain_timeout_seconds + EXIT_SECONDS  # units hand objects over after draining
        self._ending = _Ending(event.code, now, force_at, force_at + EXIT_SECONDS, self._busy.listing)
        self._list_at = now

    def _settle_ending(self, ending: _Ending, now: float) -> None:
        """Stop all units; end when there are none, or when they cannot be stopped or found."""
        knows_none = not self._units and not self._busy.starting and (ending.has_looked or self._is_refused)
        if self._config.leave_units or (knows_none and (self._has_listed or self._is_refused)):
            self._out.append(EndManager(ending.code))
            return
        if knows_none or now >= ending.give_up_at:
            left = f"units that could not be stopped: {', '.join(sorted(self._units))}"
            unknown = f"units of an earlier life, if there are any, stay: {self._listing_failure or 'no listing came'}"
            self._log(left if self._units else unknown, logging.ERROR)
            self._out.append(EndManager(ending.code or 1))
            return
        force = now >= ending.force_at
        asked_before = ending.force_at if force else ending.at
        rest = [unit for unit in self._units.values() if unit.accepted and unit.stopped_at < asked_before]
        self._stop(rest, now, force=force)

    # --- reports ----------------------------------------------------------------------------------------------------

    def _report(self, now: float) -> None:
        status = self._status(now)
        if now < self._report_at and self._reported == replace(status, paused_seconds=0.0):
            return
        self._report_at = now + self._config.heartbeat_seconds
        self._reported = replace(status, paused_seconds=0.0)
        self._out.append(SendStatus(status))

    def _status(self, now: float) -> ManagerStatus:
        offers = self._config.offers
        pending = [unit for unit in self._units.values() if unit.state in _PENDING]
        return ManagerStatus(
            self._config.kind,
            self._config.maximum if self._ending is None else 0,
            tuple(offer.capabilities for offer in offers),
            tuple(offer.python for offer in offers),
            tuple(offer.cloudpickle for offer in offers),
            tuple(offer.unit_size for offer in offers),
            tuple(offer.quantities for offer in offers),
            tuple(unit.name for unit in pending),
            tuple(unit.offer for unit in pending),
            shortened(self._listing_failure or self._failure or self._hindrance(), FAILURE),
            self._pause(now),
            median(self._startups) if self._startups else 0.0,
        )

    def _pause(self, now: float) -> float:
        """How long nothing is started, in seconds."""
        if self._ending is not None:
            return 0.0
        is_blind = not self._has_listed and bool(self._listing_failure)
        return max(0.0, self._paused_until - now, self._config.poll_seconds if is_blind else 0.0)

    def _enter(self, unit: _Unit, state: _State, now: float) -> None:
        if unit.state is not state:
            unit.state, unit.since = state, now

    def _log(self, text: str, level: int = logging.INFO) -> None:
        self._out.append(Log(level, f"worker manager {self._config.id}: {shortened(text, FAILURE)}"))

    def check(self) -> None:
        """Assert the invariants; for tests."""
        assert all(name == unit.name for name, unit in self._units.items())
        assert all(0 <= unit.offer < len(self._config.offers) for unit in self._units.values())
        if self._config.maximum >= 0:
            fresh = [unit for unit in self._units.values() if not unit.adopted]
            assert sum(self._config.offers[unit.offer].unit_size for unit in fresh) <= self._config.maximum
