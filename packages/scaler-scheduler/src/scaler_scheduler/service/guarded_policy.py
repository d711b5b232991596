"""A scaling policy of somebody else: its errors are reported, and do not end the scheduler."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from scaler_scheduler.scaling.capacity import CapacitySnapshot, Manager, ScalingPolicy, Target

LOGGER = logging.getLogger("scaler")


class GuardedPolicy:
    """Passes on what a plug-in decides, if it keeps the promises of `ScalingPolicy.decide`."""

    def __init__(self, name: str, policy: ScalingPolicy) -> None:
        self._name, self._policy = name, policy
        self._last_error = ""

    def decide(self, snapshot: CapacitySnapshot, now: float) -> Sequence[Target]:
        """The plug-in's targets; where it fails, every manager keeps what it has, and the reason is the error."""
        try:
            targets = self._policy.decide(snapshot, now)
            _check(snapshot, targets)
        except Exception as error:
            reason = f"scaling policy {self._name} failed: {type(error).__name__}: {error}"
            if reason != self._last_error:
                LOGGER.exception("Scheduler: %s", reason)
            self._last_error = reason
            return [Target(manager.id, None, reason) for manager in snapshot.managers]
        self._last_error = ""
        return targets


def _check(snapshot: CapacitySnapshot, targets: Sequence[Target]) -> None:
    """Raises ValueError naming what is wrong about the targets."""
    wanted, given = [manager.id for manager in snapshot.managers], [target.manager for target in targets]
    if given != wanted:
        raise ValueError(f"its targets are for {given}, the managers are {wanted}")
    for manager, target in zip(snapshot.managers, targets, strict=True):
        if target.workers is not None:
            _check_workers(manager, target.workers)


def _check_workers(manager: Manager, workers: Sequence[int]) -> None:
    if len(workers) != len(manager.offers):
        raise ValueError(f"{len(workers)} numbers of workers for the {len(manager.offers)} offers of {manager.id}")
    for offer, number in zip(manager.offers, workers, strict=True):
        if number < 0 or number % offer.unit_size:
            raise ValueError(f"{number} workers of {manager.id} are no multiple of its unit of {offer.unit_size}")
    if 0 <= manager.maximum < sum(workers):
        raise ValueError(f"{sum(workers)} workers of {manager.id} are more than its maximum of {manager.maximum}")
