"""ManagerRecord: what the scheduler knows of a worker manager."""

from __future__ import annotations

from dataclasses import field

from scaler_protocol.capacity import ManagerStatus
from scaler_protocol.lazy_dataclass import dataclass
from scaler_scheduler.core.records import AgentRecord
from scaler_scheduler.requirements import WorkerClass


@dataclass(slots=True, eq=False)
class ManagerRecord:
    """One connected worker manager."""

    peer: bytes
    id: str
    host: str
    number: int
    status: ManagerStatus | None = None
    reported: tuple[WorkerClass, ...] = ()
    """The worker classes of the offers in the manager's status."""
    seen: dict[int, WorkerClass] = field(default_factory=dict)
    """By the position of the offer, the worker class that its units reported: an image may have another Python."""
    worker_classes: tuple[WorkerClass, ...] = ()
    """The worker class of each offer, as far as it is known."""
    unit_offers: dict[str, int] = field(default_factory=dict)
    """The offer of each unit that the manager has reported; those that are gone are dropped with the next status."""
    unit_states: dict[str, int] = field(default_factory=dict)
    """The state of each unit whose agent is connected, as the manager was told; empty before its first status."""
    changed_units: dict[str, None] = field(default_factory=dict)
    """Units whose state may have changed since the last DesiredWorkers."""
    desired: tuple[int, ...] = ()
    """The last target of each offer; empty before the first decision, until which the manager keeps its units."""
    reason: str = ""
    logged_failure: str = ""
    joined: int = 0
    starting: int = 0
    draining: int = 0

    def offer_of(self, agent: AgentRecord) -> int:
        """The position of the offer that an agent is a unit of."""
        offer = self.unit_offers.get(agent.unit)
        if offer is not None and offer < len(self.worker_classes):
            return offer
        try:
            return self.worker_classes.index(agent.worker_class)
        except ValueError:
            return 0
