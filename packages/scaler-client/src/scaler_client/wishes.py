"""How calls are to be run, beside what they call. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scaler_protocol.capabilities import Capabilities
from scaler_protocol.capabilities import capabilities as canonical
from scaler_protocol.limits import PRIORITY, RETRIES, SECONDS
from scaler_protocol.ranges import Limit


@dataclass(frozen=True, slots=True)
class Wishes:
    """How calls are to be run."""

    capabilities: Capabilities
    reserialize: bool
    priority: int
    retries: int
    timeout_seconds: float

    @classmethod
    def of(
        cls, given: Mapping[str, int] | None, reserialize: bool, priority: int, retries: int, timeout: float | None
    ) -> Wishes:
        """From the parameters of `submit_verbose` and `map`; raises CapabilityError, ValueError."""
        _check("priority", priority, PRIORITY)
        _check("retries", retries, RETRIES)
        if timeout is not None:
            _check("task_timeout_seconds", timeout, SECONDS)
            if not timeout:
                raise ValueError("task_timeout_seconds is 0: a task has more than 0 seconds, or None for no limit")
        return cls(canonical(given), reserialize, int(priority), int(retries), float(timeout or 0.0))


def _check(name: str, value: object, limit: Limit) -> None:
    if fault := limit.fault(value):
        raise ValueError(f"{name} {fault}")
