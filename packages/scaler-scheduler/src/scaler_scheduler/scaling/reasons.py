"""Reasons of a target, as sentences for users. Pure, no IO."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaler_protocol.limits import shortened
from scaler_protocol.plurals import counted
from scaler_protocol.ranges import Text
from scaler_scheduler.requirements import Requirement, is_met_by_offer, unmet_by_offer
from scaler_scheduler.scaling.capacity import CapacitySnapshot, Manager
from scaler_scheduler.scaling.control_law import late_seconds
from scaler_scheduler.scaling.fleet import ManagerBudget

FAILURE = Text(1000)
"""The limit of what is repeated of a provider's error."""


def notes(
    snapshot: CapacitySnapshot, budgets: Sequence[ManagerBudget], budget: ManagerBudget, workers: int, surplus: int
) -> Iterator[str]:
    """The sentences that explain a target of so many workers, of which `surplus` are not needed now."""
    manager = budget.manager
    smallest = min((offer.unit_size for offer in manager.offers), default=1)
    draining = sum(offer.draining for offer in manager.offers)
    if surplus > 0:
        yield f"{surplus:,} not needed now, kept until the cool-down ends"
    if smallest > budget.limit:
        yield f"at most {counted(budget.limit, 'worker')} are allowed, which is less than one unit of {smallest}"
    elif workers + smallest > budget.limit:
        yield "it may not have more"
    elif workers + draining + smallest > budget.limit:
        yield f"it may not have more beside {counted(draining, 'draining worker')}"
    if budget.reserved:
        yield f"{counted(budget.reserved, 'worker')} less, to make place for tasks that only another unit can run"
    for other in budgets:
        yield from _passed_over(other, "this manager" if other is budget else f"manager {other.manager.id}")
    for demand in snapshot.demands:
        if demand.tasks and (lacks := _lacks(demand.requirement, snapshot)):
            yield f"nobody offers {', '.join(lacks)}, for {counted(demand.tasks, 'task')}"


def _passed_over(budget: ManagerBudget, name: str) -> Iterator[str]:
    """Why others are asked instead of a manager."""
    manager = budget.manager
    if manager.paused:
        failure = shortened(manager.failure or "its provider failed", FAILURE)
        yield f"{name} is passed over after an error: {failure}"
    elif budget.late:
        seconds = late_seconds(manager.startup_seconds)
        yield f"{counted(budget.late, 'worker')} of {name} did not start within {seconds:.0f} s: others are asked first"


def can_run(manager: Manager, requirement: Requirement) -> bool:
    """Whether an offer of a manager meets a requirement."""
    return any(is_met_by_offer(requirement, offer.worker_class) for offer in manager.offers)


def _lacks(requirement: Requirement, snapshot: CapacitySnapshot) -> list[str]:
    """Capabilities that the nearest workers and offers lack for a requirement, as text; empty if some meet it."""
    lacks = [requirement.unmet_by(worker_class) for worker_class, _ in snapshot.unmanaged]
    offers = (offer for manager in snapshot.managers for offer in manager.offers)
    lacks += (unmet_by_offer(requirement, offer.worker_class) for offer in offers)
    return min(lacks, key=len, default=[])
