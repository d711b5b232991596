"""Settings of the scheduler's core."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from scaler_protocol.capabilities import Capabilities
from scaler_protocol.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from scaler_scheduler.scaling.capacity import ScalingPolicy


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Times are in seconds, sizes in bytes; -1 tasks means no limit."""

    protected: bool = True
    allocate_policy: str = "even_load"
    max_number_of_tasks_waiting: int = -1
    max_session_bytes: int = 2**62
    """Bytes of the scheduler for the tasks of one session; those of all sessions may take twice as much."""
    client_timeout_seconds: float = 60.0
    worker_timeout_seconds: float = 60.0
    agent_grace_seconds: float = 1.5
    """How long a broken connection of an agent may last before its tasks run elsewhere."""
    lost_run_limit: int = 3
    horizon_seconds: float = 0.02
    """Seconds of measured work that an agent is given in advance for each worker."""
    recovery_seconds: float = 5.0
    result_retention_seconds: float = 86_400.0
    """How long results of named sessions are kept after they came or were last read."""
    result_limit: int = 2**30
    """Bytes of results of named sessions in memory; those above 16 KiB are in object storage."""
    replicas: int = 1
    """With 2, object storage copies requested results of 256 KiB and more from the host that made them."""
    scaling: Callable[[], ScalingPolicy] | None = None
    """Makes the policy that sets how many workers each worker manager has; None: managers are asked for none."""
    adapters: frozenset[str] = frozenset()
    """Ids of the worker managers of worker adapters, which may be unable to tell an agent which unit it is."""
    measured: bool = False
    """Whether waits and runs are measured although no monitor is there."""
    cluster_capabilities: Capabilities = ()
    """Quantities that the whole cluster has: its runs never have more of them at one time."""
    storage_address: str = ""
