"""Task options: what `submit_verbose`, `map`, `starmap` and `get` take besides a function and arguments. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scaler_client.parameters import check, check_positive_seconds, flag
from scaler_protocol.capabilities import Capabilities
from scaler_protocol.capabilities import capabilities as canonical
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import PRIORITY, RETRIES


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Validated options of calls."""

    capabilities: Capabilities
    reserialize: bool
    priority: int
    retries: int
    timeout_seconds: float
    speculate: bool = False
    worker: bytes = b""
    """The id of the only worker that may run the calls; empty: any."""

    @classmethod
    def of(
        cls,
        given: Mapping[str, int] | None,
        reserialize: bool,
        priority: int,
        retries: int,
        timeout: float | None,
        speculate: bool = False,
        timeout_name: str = "task_timeout_seconds",
    ) -> TaskOptions:
        """From the parameters of calls, which name the timeout differently.

        Raises CapabilityError, ValueError, TypeError.
        """
        check("priority", priority, PRIORITY)
        check("retries", retries, RETRIES)
        if timeout is not None:
            check_positive_seconds(timeout_name, timeout, ", or None for the default of the cluster")
        anew = flag("reserialize", reserialize)
        twice = flag("speculate", speculate)
        return cls(canonical(given), anew, int(priority), int(retries), float(timeout or 0.0), twice)


NO_OPTIONS: Final = TaskOptions((), reserialize=False, priority=0, retries=0, timeout_seconds=0.0)
"""Those of calls without any."""
