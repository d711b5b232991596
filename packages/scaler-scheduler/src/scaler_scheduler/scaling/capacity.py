"""Input and output of a scaling policy: demands, managers and their offers, targets. Pure, no IO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from scaler_protocol.capabilities import Capabilities
from scaler_protocol.capacity import NO_LIMIT
from scaler_protocol.lazy_dataclass import dataclass
from scaler_scheduler.requirements import Requirement, WorkerClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The unfinished tasks of one requirement. Durations are in seconds, one mean per function."""

    requirement: Requirement
    tasks: int = 0
    """Ready to run but not running: waiting at the scheduler, and queued at agents."""
    seconds: float = 0.0
    """The sum of their measured durations; those of functions never measured are not included."""
    unmeasured: int = 0
    """Those of `tasks` whose function has never been measured."""
    elapsed: float = 0.0
    """How long the longest run of a function never measured has lasted so far; 0 if there is none."""
    running: int = 0
    """Tasks that run now, on workers that are not draining."""
    running_seconds: float = 0.0
    """How long those still need in sum: each its mean less what has passed, but at least half of what has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A class of workers that a manager can start, and how many it has. All counts are in workers."""

    worker_class: WorkerClass
    unit_size: int = 1
    """Workers of one unit, which starts and ends as a whole."""
    joined: int = 0
    """Connected to the scheduler, and not draining."""
    starting: int = 0
    """Asked of the provider, and not connected yet."""
    draining: int = 0
    """Finishing their tasks before they end: no capacity, but they still count for the maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """A connected worker manager."""

    id: str
    kind: str = ""
    maximum: int = NO_LIMIT
    """The most workers of all its offers together, or -1 for no limit."""
    offers: tuple[Offer, ...] = ()
    paused: bool = False
    """Whether it backs off after a failure, and starts nothing now."""
    failure: str = ""
    """The last error of its provider."""
    startup_seconds: float = 0.0
    """From asking for a unit until its workers join: the median of those seen; 0 while none has been seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacitySnapshot:
    """The demand and the capacity of a cluster at one moment."""

    demands: tuple[Demand, ...] = ()
    managers: tuple[Manager, ...] = ()
    """Their ids differ."""
    unmanaged: tuple[tuple[WorkerClass, int], ...] = ()
    """Workers that no connected manager started: started by hand, or their manager is away. Not the draining ones.

    Those that have quantities together are a row each.
    """
    cluster: Capabilities = ()
    """Quantities that the whole cluster has; worker classes name them, too."""


@dataclass(frozen=True, slots=True)
class Target:
    """How many workers a manager should have."""

    manager: str
    """Its id."""
    workers: tuple[int, ...] | None
    """In the order of its offers: joined and starting ones included, draining ones not; None: keep what there is."""
    reason: str
    """A sentence for users."""


class ScalingPolicy(Protocol):
    """Decides how many workers there should be. It may remember earlier calls; it has no clock of its own."""

    def decide(self, snapshot: CapacitySnapshot, now: float) -> Sequence[Target]:
        """One target for each manager of the snapshot, in their order; `now` is in seconds and never goes back.

        A target is a multiple of the unit size of its offer. The targets of a manager and its draining workers stay
        within its maximum, except where a manager had more already: then its target is at most the maximum.
        """
        ...
