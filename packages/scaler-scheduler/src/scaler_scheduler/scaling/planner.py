"""Turns needs into targets: the control law over managers, their offers, and requirements. Pure, no IO.

Theory. Needs are met one after the other, those that the fewest supplies can meet first, as in bin packing of
constrained items. Each is met from supplies in the order of their rank, so what can run everything stays free for
what nothing else can run, and what is used last is drained first. Supplies of equal rank share evenly.

Workers that have been starting for too long (`late_seconds`) may wait in a queue for hours. They are not relied on:
what they were to do is ordered of others, and of their own manager only what these cannot start and they are too few
for. They are the last to be kept, so they are cancelled when others do the work.

A manager that is full does not leave a requirement without any worker for ever: a need that nobody could meet for the
cool-down takes the place of one unit.

Invariants: targets are whole units, and a manager's targets are at most its maximum; what is ordered leaves place for
units that are draining. A need that nobody can meet orders nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from scaler_protocol.capabilities import Capabilities
from scaler_protocol.plurals import counted
from scaler_scheduler.requirements import Requirement
from scaler_scheduler.scaling.capacity import CapacitySnapshot, Demand, Manager, Target
from scaler_scheduler.scaling.control_law import COOLDOWN_SECONDS, TARGET_SECONDS, keep_seconds
from scaler_scheduler.scaling.filling import Room, Stock, UnitBin, pour
from scaler_scheduler.scaling.fleet import Fleet, ManagerBudget, Need, OfferHistory, OfferKey, Supply
from scaler_scheduler.scaling.reasons import notes
from scaler_scheduler.scaling.rules import Rule


class Aim(Protocol):
    """The aim of a policy: the needs for which it wants workers."""

    def needs(self, demands: Sequence[Demand], fleet: Fleet) -> list[Need]:
        """The needs of the whole cluster."""
        ...

    def summary(self, demands: Sequence[Demand], manager: Manager) -> str:
        """Words for the part of them that a manager can meet."""
        ...


class LawPolicy:
    """Gives each manager the workers that its share of the needs takes."""

    def __init__(
        self, aim: Aim, rules: Mapping[str, Rule] | None = None, cooldown_seconds: float = COOLDOWN_SECONDS
    ) -> None:
        """Without `rules` all managers have the same priority."""
        self._aim, self._rules, self._cooldown = aim, rules, cooldown_seconds
        self._histories: dict[OfferKey, OfferHistory] = {}
        self._stuck_since: dict[Requirement, float] = {}

    def decide(self, snapshot: CapacitySnapshot, now: float) -> list[Target]:
        """One target for each manager, in their order; see `ScalingPolicy`."""
        self._observe(snapshot, now)
        fleet = Fleet(snapshot, self._rules, self._histories, now)
        needs = self._aim.needs(snapshot.demands, fleet)
        needs.sort(key=lambda need: (not need.is_stuck, len(need.supplies)))
        kept = _kept(needs, fleet.supplies)
        ordered = self._ordered(needs, fleet.supplies, now)
        return [
            self._target(snapshot, fleet, budget, supplies, kept, ordered, now)
            for budget, supplies in zip(fleet.budgets, fleet.offered, strict=True)
        ]

    def _observe(self, snapshot: CapacitySnapshot, now: float) -> None:
        """Remember how long units have been starting; forget the offers that are gone."""
        histories = {}
        for manager in snapshot.managers:
            for place, offer in enumerate(manager.offers):
                key = (manager.id, place, offer.worker_class, offer.unit_size)
                history = histories[key] = self._histories.get(key) or OfferHistory(first_seen=now)
                history.pending.observe(offer.starting, now)
        self._histories = histories

    def _ordered(self, needs: Sequence[Need], supplies: Sequence[Supply], now: float) -> dict[Supply, int]:
        """Workers to start in addition, by supply."""
        bins = {
            supply: UnitBin(
                supply.unit_size, supply.budget.room if supply.budget else Room(0), supply.total, supply.quantities
            )
            for supply in supplies
        }
        there = {supply: supply.stock(supply.joined) for supply in supplies}
        coming = {supply: supply.stock(supply.expected) for supply in supplies}
        late = {supply: supply.stock(supply.late if supply.able else 0) for supply in supplies}
        stuck_since = {}
        for need in needs:
            startup = _startup(need, now)
            rest = _meet(need, there, dict.fromkeys(need.supplies, TARGET_SECONDS + startup))
            worth = {supply: TARGET_SECONDS + supply.history.pending.mean(now, startup) for supply in need.supplies}
            rest = _meet(rest, coming, worth)
            amount = unmet = min(rest.seconds / TARGET_SECONDS, rest.tasks)
            for rank in need.ranks():
                unmet = pour(unmet, _of(need, [supply for supply in rank if supply.able and not supply.late], bins))
            rest = _meet(rest, late, worth)
            unmet = max(0.0, min(rest.seconds / TARGET_SECONDS, rest.tasks) - (amount - unmet))
            for rank in need.ranks():
                unmet = pour(unmet, _of(need, [supply for supply in rank if supply.able and supply.late], bins))
            if need.requirement is not None and need.is_stuck and 0 < unmet == amount:
                stuck_since[need.requirement] = self._stuck_since.get(need.requirement, now)
                if now - stuck_since[need.requirement] >= self._cooldown:
                    _claim(need)
        self._stuck_since = stuck_since
        return {supply: chosen.opened for supply, chosen in bins.items()}

    def _target(
        self,
        snapshot: CapacitySnapshot,
        fleet: Fleet,
        budget: ManagerBudget,
        supplies: Sequence[Supply],
        kept: Mapping[Supply, int],
        ordered: Mapping[Supply, int],
        now: float,
    ) -> Target:
        manager = budget.manager
        if not budget.ruled:
            return Target(manager.id, None, "no rule names this manager: it keeps what it has")
        workers = []
        for supply in supplies:
            total, more, history = supply.total, ordered[supply], supply.history
            is_new = history.first_seen == now
            needed = total + more if more or is_new else kept[supply]
            peak = history.peak.add(needed, now, keep_seconds(self._cooldown, manager.startup_seconds))
            workers.append(total + more if more else min(total, peak))
        _shrink(workers, supplies, budget.limit - budget.reserved)
        summary = self._aim.summary(snapshot.demands, manager)
        surplus = sum(workers) - sum(kept[supply] + ordered[supply] for supply in supplies)
        reasons = [f"{summary}: {counted(sum(workers), 'worker')}"]
        reasons += notes(snapshot, fleet.budgets, budget, sum(workers), surplus)
        return Target(manager.id, tuple(workers), "; ".join(reasons))


def _kept(needs: Sequence[Need], supplies: Sequence[Supply]) -> dict[Supply, int]:
    """How many workers of what there is are needed now, by supply."""
    bins = {
        supply: UnitBin(supply.unit_size, Room(supply.total - supply.late), quantities=supply.quantities)
        for supply in supplies
    }
    late = {supply: UnitBin(supply.unit_size, Room(supply.late), quantities=supply.quantities) for supply in supplies}
    for need in needs:
        amount = min(need.tasks, max(need.seconds / TARGET_SECONDS, need.busy))
        for chosen in (bins, late):
            for rank in need.ranks():
                amount = pour(amount, _of(need, rank, chosen))
    return {supply: bins[supply].opened + late[supply].opened for supply in supplies}


def _of(need: Need, supplies: Iterable[Supply], bins: Mapping[Supply, UnitBin]) -> dict[UnitBin, Capabilities]:
    """The bins of these supplies, with what a task takes of the quantities there."""
    return {bins[supply]: supply.share_of(need.requirement) for supply in supplies}


def _meet(need: Need, stocks: Mapping[Supply, Stock], worth: Mapping[Supply, float]) -> Need:
    """Use up workers, each worth so many seconds of work; returns what is left of the need."""
    tasks, seconds = need.tasks, need.seconds
    for supply in need.supplies:
        used = stocks[supply].use(min(tasks, seconds / worth[supply]), supply.share_of(need.requirement))
        tasks, seconds = tasks - used, seconds - used * worth[supply]
    return Need(need.requirement, need.supplies, tasks, seconds)


def _startup(need: Need, now: float) -> float:
    """How long a unit that is ordered now takes to join, in seconds; 0 if nothing is known of it."""
    known = (
        supply.budget.manager.startup_seconds or supply.history.pending.oldest(now)
        for supply in need.supplies
        if supply.budget is not None and supply.able
    )
    return min(known, default=0.0)


def _claim(need: Need) -> None:
    """Reserve a unit's place at a manager that is full."""
    for supply in need.supplies:
        budget = supply.budget
        if budget is not None and supply.able and budget.reserved + supply.unit_size <= budget.limit:
            budget.reserved += supply.unit_size
            return


def _shrink(workers: list[int], supplies: Sequence[Supply], limit: int) -> None:
    """Take units from the offers that have most until their sum is within the limit.

    The largest offer exceeds what it will have by at least a fair share of the excess, so that many units are taken at
    once.
    """
    excess = sum(workers) - max(limit, 0)
    while excess > 0:
        place = max(range(len(workers)), key=lambda place: workers[place])
        size = supplies[place].unit_size
        taken = min(workers[place], max(1, excess // (len(workers) * size)) * size)
        workers[place] -= taken
        excess -= taken
