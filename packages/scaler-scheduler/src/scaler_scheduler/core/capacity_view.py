"""The capacity and the demand of a cluster, as a scaling policy sees them. Imported for the first worker manager."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from scaler_scheduler.core.demand import DemandCounter
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.requirements import WorkerClass
from scaler_scheduler.scaling.capacity import CapacitySnapshot, Manager, Offer

if TYPE_CHECKING:
    from scaler_scheduler.core.manager_record import ManagerRecord


class CapacityView:
    """Makes the snapshots for a policy; remembers since when each run has been on a worker."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._demand = DemandCounter()

    def snapshot(self, reporting: Sequence[ManagerRecord], now: float) -> CapacitySnapshot:
        """Demand and capacity at `now`, in seconds, with these managers, whose numbers of workers it updates."""
        agents = self._state.agents.values()
        managed = {manager.id for manager in reporting}
        unmanaged: dict[WorkerClass, int] = {}
        sharing: list[tuple[WorkerClass, int]] = []
        for agent in agents:
            if agent.manager in managed or not agent.workers:
                continue
            if agent.consumables is not None and agent.consumables.totals:
                sharing.append((agent.worker_class, agent.workers))
            else:
                unmanaged[agent.worker_class] = unmanaged.get(agent.worker_class, 0) + agent.workers
        cluster = self._state.cluster.totals if self._state.cluster is not None else {}
        return CapacitySnapshot(
            demands=self._demand.count(
                self._state.waiting.lanes(), chain(self._state.suspects, self._state.exclusive), agents, now
            ),
            managers=tuple(self._manager(manager) for manager in reporting),
            unmanaged=(*unmanaged.items(), *sharing),
            cluster=tuple(cluster.items()),
        )

    def _manager(self, manager: ManagerRecord) -> Manager:
        status = manager.status
        assert status is not None
        joined, draining = [0] * len(manager.worker_classes), [0] * len(manager.worker_classes)
        units = set()
        for agent in self._state.agents.values():
            if agent.manager != manager.id:
                continue
            offer = manager.offer_of(agent)
            units.add(agent.unit)
            if agent.is_draining:
                draining[offer] += status.unit_sizes[offer]
            else:
                joined[offer] += agent.workers
        starting = [0] * len(manager.worker_classes)
        for unit, offer in zip(status.pending_units, status.pending_offers, strict=True):
            if unit not in units:
                starting[offer] += status.unit_sizes[offer]
        manager.joined, manager.starting, manager.draining = sum(joined), sum(starting), sum(draining)
        return Manager(
            id=manager.id,
            kind=status.kind,
            maximum=status.maximum,
            offers=tuple(
                Offer(
                    worker_class=worker_class,
                    unit_size=status.unit_sizes[at],
                    joined=joined[at],
                    starting=starting[at],
                    draining=draining[at],
                )
                for at, worker_class in enumerate(manager.worker_classes)
            ),
            paused=status.paused_seconds > 0,
            failure=status.failure,
            startup_seconds=status.startup_seconds,
        )
