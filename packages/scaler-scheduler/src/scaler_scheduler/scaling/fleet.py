"""The workers of a snapshot as supplies, and the tasks as needs which they can meet. Pure, no IO."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import groupby

from scaler_protocol.capabilities import Capabilities
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import MANAGED
from scaler_scheduler.requirements import Requirement, WorkerClass, is_met_by_offer
from scaler_scheduler.scaling.capacity import CapacitySnapshot, Manager, Offer
from scaler_scheduler.scaling.control_law import PendingAges, RecentPeak, late_seconds
from scaler_scheduler.scaling.filling import Room, Stock
from scaler_scheduler.scaling.rules import Rule

OfferKey = tuple[str, int, WorkerClass, int]
"""Manager, position among its offers, worker class, unit size; if any of these changes, the offer has no history."""

UNLIMITED = MANAGED.most
"""Workers: more than any cluster has, and what a message can hold."""


@dataclass(slots=True, eq=False)
class OfferHistory:
    """The history of an offer; `first_seen` is in seconds."""

    first_seen: float
    peak: RecentPeak = field(default_factory=RecentPeak)
    pending: PendingAges = field(default_factory=PendingAges)


@dataclass(slots=True, eq=False)
class ManagerBudget:
    """The limits of a manager in this decision."""

    manager: Manager
    priority: int
    limit: int
    """The most workers of all offers together."""
    room: Room
    """Workers that may be ordered now."""
    ruled: bool
    """Whether the policy may give it orders."""
    reserved: int = 0
    """Workers that it has to give up for tasks that only another one of its offers can run."""

    late: int = 0
    """Workers that should have started long ago."""

    @property
    def able(self) -> bool:
        """Whether it may start units now."""
        return self.ruled and not self.manager.paused


@dataclass(slots=True, eq=False)
class Supply:
    """The workers of one offer, or unmanaged ones of one class."""

    worker_class: WorkerClass
    joined: int
    starting: int = 0
    late: int = 0
    """Of those starting: how many should have come long ago."""
    unit_size: int = 1
    budget: ManagerBudget | None = None
    """None if it is unmanaged."""
    history: OfferHistory = field(default_factory=lambda: OfferHistory(0.0))
    quantities: Capabilities = ()
    """What the workers of a unit have together."""

    def stock(self, workers: int) -> Stock:
        """So many of its workers."""
        return Stock().add(workers, self.unit_size, self.quantities)

    def share_of(self, requirement: Requirement | None) -> Capabilities:
        """What a task takes of the quantities of its unit: of three licenses, one that needs two takes all."""
        if requirement is None or not self.quantities:
            return ()
        totals = dict(self.quantities)
        return tuple(
            (name, totals[name] // max(1, totals[name] // wanted)) for name, wanted in requirement.part_of(totals)
        )

    def can_run(self, requirement: Requirement) -> bool:
        """Whether its workers meet a requirement."""
        if self.budget is None:
            return not requirement.unmet_by(self.worker_class)
        return is_met_by_offer(requirement, self.worker_class)

    @property
    def rank(self) -> tuple[int, int, int]:
        """Lower is used first: unmanaged workers, then by priority, then those that can run the fewest other tasks."""
        if self.budget is None or not self.budget.ruled:
            return 0, 0, len(self.worker_class.capabilities)
        return 1, self.budget.priority, len(self.worker_class.capabilities)

    @property
    def total(self) -> int:
        """Workers that have joined or are starting."""
        return self.joined + self.starting

    @property
    def able(self) -> bool:
        """Whether units of it may be started now."""
        return self.budget is not None and self.budget.able and self.unit_size <= self.budget.limit

    @property
    def expected(self) -> int:
        """Workers that start now and can be counted on: a manager that fails, or waits in a queue, may not get them."""
        return self.starting - self.late if self.budget is not None and not self.budget.manager.paused else 0


@dataclass(slots=True, eq=False)
class Need:
    """Work that the same supplies can do."""

    requirement: Requirement | None
    """None where requirements are taken together."""
    supplies: Sequence[Supply]
    """Those that can do it, by rank."""
    tasks: float = 0.0
    seconds: float = 0.0
    busy: float = 0.0
    """Tasks of it that run now."""

    @property
    def is_stuck(self) -> bool:
        """Whether no worker that is there, or can be counted on, can do it."""
        return not any(supply.joined or supply.expected for supply in self.supplies)

    def ranks(self) -> Iterator[list[Supply]]:
        """Its supplies, those of equal rank together."""
        for _, group in groupby(self.supplies, key=lambda supply: supply.rank):
            yield list(group)


class Fleet:
    """All supplies of a snapshot."""

    def __init__(
        self,
        snapshot: CapacitySnapshot,
        rules: Mapping[str, Rule] | None,
        histories: Mapping[OfferKey, OfferHistory],
        now: float,
    ) -> None:
        """`histories` has each offer; without `rules` all managers share."""
        self.budgets = [_budget(manager, rules) for manager in snapshot.managers]
        self.offered = [
            [
                _supply(
                    offer,
                    budget,
                    histories[budget.manager.id, place, offer.worker_class, offer.unit_size],
                    _quantities(offer.worker_class, snapshot.cluster),
                    now,
                )
                for place, offer in enumerate(budget.manager.offers)
            ]
            for budget in self.budgets
        ]
        unmanaged = [_unmanaged(*row, snapshot.cluster) for row in snapshot.unmanaged]
        self._cluster = dict(snapshot.cluster)
        managed = [supply for supplies in self.offered for supply in supplies]
        self.supplies = sorted([*unmanaged, *managed], key=lambda supply: supply.rank)

    def able_to_run(self, requirement: Requirement) -> list[Supply]:
        """The supplies whose workers meet a requirement, by rank."""
        return [supply for supply in self.supplies if supply.can_run(requirement)]

    def most_at_once(self, requirement: Requirement) -> float:
        """How many tasks of a requirement can run at one time, by what the whole cluster has."""
        share = requirement.part_of(self._cluster)
        return min((self._cluster[name] // wanted for name, wanted in share), default=math.inf)


def _quantities(worker_class: WorkerClass, cluster: Capabilities) -> Capabilities:
    """What a unit of such workers has together, without what is the cluster's."""
    totals = zip(worker_class.consumables, worker_class.totals, strict=True)
    names = {name for name, _ in cluster}
    return tuple((name, total) for name, total in totals if name not in names)


def _unmanaged(worker_class: WorkerClass, workers: int, cluster: Capabilities) -> Supply:
    quantities = _quantities(worker_class, cluster)
    return Supply(worker_class, workers, unit_size=workers if quantities else 1, quantities=quantities)


def _supply(offer: Offer, budget: ManagerBudget, history: OfferHistory, quantities: Capabilities, now: float) -> Supply:
    starting = _whole(offer.starting, offer.unit_size)
    late = _whole(history.pending.older(now, late_seconds(budget.manager.startup_seconds)), offer.unit_size)
    budget.late += late
    return Supply(
        offer.worker_class,
        _whole(offer.joined, offer.unit_size),
        starting,
        min(starting, late),
        offer.unit_size,
        budget,
        history,
        quantities,
    )


def _whole(workers: int, unit_size: int) -> int:
    """Workers of whole units: some of a unit's workers may be missing."""
    return -(-workers // unit_size) * unit_size


def _budget(manager: Manager, rules: Mapping[str, Rule] | None) -> ManagerBudget:
    rule = Rule(0, manager.id) if rules is None else rules.get(manager.id)
    limits = [limit for limit in (manager.maximum, rule.maximum if rule else -1) if limit >= 0]
    limit = min([*limits, UNLIMITED])
    used = sum(_whole(offer.joined, offer.unit_size) + _whole(offer.starting, offer.unit_size) + offer.draining
               for offer in manager.offers)  # fmt: skip
    return ManagerBudget(manager, rule.priority if rule else 0, limit, Room(max(0, limit - used)), rule is not None)
