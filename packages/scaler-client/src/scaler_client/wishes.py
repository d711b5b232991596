"""How calls are to be run, beside what they call. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scaler_protocol.capabilities import Capabilities
from scaler_protocol.capabilities import capabilities as canonical


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
        if timeout is not None and timeout <= 0:
            raise ValueError(f"task_timeout_seconds={timeout!r}: a task has more than 0 seconds, or None for no limit")
        if not 0 <= retries < 2**16:
            raise ValueError(f"retries={retries!r}: 0 to 65535")
        return cls(canonical(given), reserialize, priority, retries, timeout or 0.0)
