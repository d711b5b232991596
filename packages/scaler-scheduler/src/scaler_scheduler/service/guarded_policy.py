"""A scaling policy from a plug-in: its errors are reported, and do not end the scheduler."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from scaler_protocol.limits import DEFAULTS, WORDS, shortened
from scaler_protocol.ranges import Text
from scaler_scheduler.scaling.capacity import CapacitySnapshot, Manager, ScalingPolicy, Target

LOGGER = logging.getLogger("scaler")
_NUMBER: Final = DEFAULTS["uint32"]
_REASON: Final = Text(WORDS.most // 2)
"""Half of what a message may hold, so that others can quote it."""


class GuardedPolicy:
    """Passes on what a plug-in decides, if it keeps the promises of `ScalingPolicy.decide`."""

    def __init__(self, name: str, policy: ScalingPolicy) -> None:
        self._name, self._policy = name, policy
        self._last_error = ""

    def decide(self, snapshot: CapacitySnapshot, now: float) -> Sequence[Target]:
        """The plug-in's targets; where it fails, every manager keeps what it has, and the reason is the error."""
        try:
            targets = _checked(snapshot, self._policy.decide(snapshot, now))
        except (Exception, SystemExit) as error:
            reason = shortened(f"scaling policy {self._name} failed: {_in_words(error)}", _REASON)
            if reason != self._last_error:
                LOGGER.exception("Scheduler: %s", reason)
            self._last_error = reason
            return [Target(manager.id, None, reason) for manager in snapshot.managers]
        self._last_error = ""
        return targets


def _in_words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as unprintable:
        return f"{type(error).__name__}, whose text cannot be shown: {type(unprintable).__name__}"


def _checked(snapshot: CapacitySnapshot, answer: Iterable[Target]) -> list[Target]:
    """The targets, each with a tuple; raises ValueError naming what is wrong about them."""
    targets = list(answer)
    wanted, given = [manager.id for manager in snapshot.managers], [target.manager for target in targets]
    if given != wanted:
        raise ValueError(f"its targets are for {given}, the managers are {wanted}")
    return [_checked_target(manager, target) for manager, target in zip(snapshot.managers, targets, strict=True)]


def _checked_target(manager: Manager, target: Target) -> Target:
    if fault := _REASON.fault(target.reason):
        raise ValueError(f"the reason for {manager.id} {fault}")
    if target.workers is None:
        return target
    workers = tuple(target.workers)
    if len(workers) != len(manager.offers):
        raise ValueError(f"{len(workers)} numbers of workers for the {len(manager.offers)} offers of {manager.id}")
    for offer, number in zip(manager.offers, workers, strict=True):
        if fault := _NUMBER.fault(number):
            raise ValueError(f"the number of workers of {manager.id} {fault}")
        if number % offer.unit_size:
            raise ValueError(f"{number} workers of {manager.id} are no multiple of its unit of {offer.unit_size}")
    if 0 <= manager.maximum < sum(workers):
        raise ValueError(f"{sum(workers)} workers of {manager.id} are more than its maximum of {manager.maximum}")
    return Target(manager.id, workers, target.reason)
