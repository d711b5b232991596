"""Managers: connected worker managers, how many workers each should have, and which agents are drained.

Once per DECIDE_SECONDS the scaling policy sees the demand and the capacity, and sets a target for each offer of each
manager. A manager starts units up to the target by itself, and cancels units that have not joined; units that have
joined are drained here: those with the fewest runs first, then the youngest.

Invariants (`check`): ids of managers are distinct; a unit is reported to its manager when its agent joins, drains and
leaves, once each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from scaler_io.links.events import PeerLost
from scaler_protocol.capabilities import Capabilities, parse_capabilities, parse_quantities
from scaler_protocol.capacity import DesiredWorkers, ManagerStatus, UnitState
from scaler_protocol.errors import CapabilityError, ProtocolError
from scaler_protocol.handshake import Hello
from scaler_protocol.limits import MANAGED, shortened
from scaler_protocol.monitoring import EventKind
from scaler_protocol.plurals import counted
from scaler_scheduler.core.manager_record import ManagerRecord
from scaler_scheduler.core.records import AgentRecord
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.requirements import Runtime, WorkerClass, worker_class_of

if TYPE_CHECKING:
    from scaler_scheduler.core.capacity_view import CapacityView
    from scaler_scheduler.scaling.capacity import ScalingPolicy

DECIDE_SECONDS = 1.0
"""Interval between decisions of the policy."""
ARRIVAL_SECONDS = 0.1
"""After tasks have begun to wait, the policy decides within this time."""


class Managers:
    """The worker managers of a scheduler."""

    def __init__(self, state: SchedulerState, make_policy: Callable[[], ScalingPolicy] | None) -> None:
        """Most clusters have no managers: the policy and what it sees are imported and made for the first one."""
        self._state = state
        self._make_policy = make_policy
        self._policy: ScalingPolicy | None = None
        self._by_peer: dict[bytes, ManagerRecord] = {}
        self._capacity: CapacityView | None = None
        self._decide_at = 0.0
        self._hold_until = 0.0
        """After a restart: when decisions begin; 0 if no manager was connected to an earlier scheduler."""
        self._was_waiting = False

    def __contains__(self, peer: object) -> bool:
        return peer in self._by_peer

    def __iter__(self) -> Iterator[ManagerRecord]:
        return iter(self._by_peer.values())

    def refusal(self, hello: Hello) -> str:
        """Why a manager may not connect, as text; empty if it may."""
        if not hello.name:
            return "a worker manager needs an id: give --worker-manager-id"
        for manager in self:
            if manager.id == hello.name and manager.peer != hello.identity:
                return f"worker manager {hello.name!r} is connected already, from {manager.host}: choose another id"
        return ""

    def hold(self, now: float) -> None:
        """A peer was connected to an earlier scheduler; after the first one, decisions are held back.

        Clients and agents need the time to report what they still want and have: an empty queue would drain the fleet.
        """
        if not self._hold_until:
            self._hold_until = now + self._state.config.recovery_seconds

    def joined(self, peer: bytes, hello: Hello) -> None:
        """A manager has connected, or has begun a new stream: it is told all of its units."""
        if self._capacity is None:
            from scaler_scheduler.core.capacity_view import CapacityView

            self._capacity = CapacityView(self._state)
            self._policy = self._make_policy() if self._make_policy is not None else None
        manager = ManagerRecord(peer, hello.name, hello.host, self._state.event_log.next_number())
        self._by_peer[peer] = manager
        self._state.log(
            f"worker manager {manager.id} connected from {manager.host}", EventKind.MANAGER, subject=manager.id
        )

    def left(self, peer: bytes, event: PeerLost) -> None:
        """A manager is gone; its units stay, and are reported to it when it is back."""
        manager = self._by_peer.pop(peer)
        self._list_offers()
        level = logging.INFO if event.farewell else logging.WARNING
        self._state.log(
            f"worker manager {manager.id} is gone: {event.reason}", EventKind.MANAGER, level, subject=manager.id
        )

    def unit_of(self, hello: Hello) -> tuple[str, str]:
        """The manager and the unit of an agent that connects, as it says; both empty for one started by hand.

        A worker adapter may not have told its agents: one that names no manager is taken for the oldest unit that a
        manager of that kind is waiting for.
        """
        if not hello.manager:
            taken = {agent.unit for agent in self._state.agents.values()}
            for manager in self:
                if manager.status is not None and manager.id in self._state.config.adapters:
                    for unit in manager.status.pending_units:
                        if unit not in taken:
                            return manager.id, unit
        return hello.manager, hello.unit

    def agent_changed(self, agent: AgentRecord) -> None:
        """An agent has joined, drains, or is gone."""
        self._decide_at = min(self._decide_at, self._state.event_log.now + ARRIVAL_SECONDS)
        if agent.unit:
            for manager in self:
                if manager.id == agent.manager and manager.status is not None:
                    manager.changed_units[agent.unit] = None

    def status(self, peer: bytes, status: ManagerStatus, now: float) -> None:
        """A manager reports; raises ProtocolError, without any change, for a report that contradicts itself."""
        manager = self._by_peer.get(peer)
        if manager is None:
            raise ProtocolError("only a worker manager may send this message")
        offers = zip(
            status.offer_capabilities,
            status.offer_quantities,
            status.offer_pythons,
            status.offer_cloudpickles,
            strict=True,
        )
        try:
            worker_classes = tuple(self._worker_class(*offer) for offer in offers)
        except CapabilityError as error:
            raise ProtocolError(f"an offer of worker manager {manager.id}: {error}") from None
        if not worker_classes:
            raise ProtocolError(f"worker manager {manager.id} offers no workers")
        if any(offer >= len(worker_classes) for offer in status.pending_offers):
            raise ProtocolError(f"pending_offers names an offer beyond {len(worker_classes)} offers")
        sizes = (status.unit_sizes[offer] for offer in status.pending_offers)
        if (pending := sum(sizes)) > MANAGED.most:
            raise ProtocolError(f"{pending:,} workers of pending_units are more than a manager can have")
        first = manager.status is None
        manager.status = status
        if first:
            manager.changed_units.update((agent.unit, None) for agent in self._agents_of(manager) if agent.unit)
        self._learn_offers(manager, status, worker_classes)
        if len(manager.desired) != len(worker_classes):
            manager.desired = ()
        self._list_offers()
        if now < self._hold_until:
            return
        if first:
            self._decide(now)
        self._send(manager)

    def _learn_offers(self, manager: ManagerRecord, status: ManagerStatus, reported: tuple[WorkerClass, ...]) -> None:
        """Note which offer each unit is of; units that have joined tell what the workers of their offer really are."""
        if manager.reported != reported:
            manager.seen.clear()
        manager.reported = reported
        known = {agent.unit: manager.unit_offers.get(agent.unit) for agent in self._agents_of(manager)}
        manager.unit_offers = {unit: offer for unit, offer in known.items() if offer is not None}
        manager.unit_offers.update(zip(status.pending_units, status.pending_offers, strict=True))
        for agent in self._agents_of(manager):
            if (offer := manager.unit_offers.get(agent.unit, len(reported))) < len(reported):
                manager.seen[offer] = agent.worker_class
        manager.worker_classes = tuple(manager.seen.get(at, offered) for at, offered in enumerate(reported))

    def _list_offers(self) -> None:
        """Tell the dispatch what could be started."""
        self._state.offered = tuple({worker_class for manager in self for worker_class in manager.worker_classes})

    # --- decisions --------------------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Decide if it is time; send what has changed."""
        if not self._by_peer or now < self._hold_until:
            return
        waits = bool(self._state.waiting.count)
        if waits and not self._was_waiting:
            self._decide_at = min(self._decide_at, now + ARRIVAL_SECONDS)
        self._was_waiting = waits
        if now >= self._decide_at:
            self._decide(now)
        for manager in self:
            if manager.changed_units:
                self._send(manager)

    def due(self) -> float | None:
        """When to decide next."""
        return max(self._decide_at, self._hold_until) if self._by_peer else None

    def _decide(self, now: float) -> None:
        self._decide_at = now + DECIDE_SECONDS
        reporting = [manager for manager in self if manager.status is not None]
        for manager in reporting:
            self._log_failure(manager)
        assert self._capacity is not None
        snapshot = self._capacity.snapshot(reporting, now)
        targets = self._policy.decide(snapshot, now) if self._policy is not None else ()
        for manager, target in zip(reporting, targets, strict=self._policy is not None):
            if target.workers is not None:
                if target.workers != manager.desired:
                    self._state.log(
                        f"worker manager {manager.id}: {counted(sum(target.workers), 'worker')} wanted,"
                        f" {manager.joined} joined, {manager.starting} starting: {target.reason}",
                        EventKind.MANAGER,
                        subject=manager.id,
                    )
                    manager.desired, manager.reason = target.workers, target.reason
                    self._send(manager)
                self._drain_surplus(manager, target.workers)
            manager.reason = target.reason

    def _log_failure(self, manager: ManagerRecord) -> None:
        """Log what a manager reports of its provider, at most once per decision and not again while it is the same."""
        assert manager.status is not None
        failure, before = manager.status.failure, manager.logged_failure
        manager.logged_failure = failure
        if failure and failure != before:
            text = f"worker manager {manager.id}: {failure}"
            self._state.log(text, EventKind.MANAGER, logging.WARNING, subject=manager.id)

    def _drain_surplus(self, manager: ManagerRecord, workers: Sequence[int]) -> None:
        """Drain units of offers with more joined workers than the target."""
        for offer, wanted in enumerate(workers):
            living = [
                agent
                for agent in self._agents_of(manager)
                if not agent.is_draining and manager.offer_of(agent) == offer
            ]
            surplus = sum(agent.workers for agent in living) - wanted
            living.sort(key=lambda agent: (agent.active, -agent.number))
            for agent in living:
                if agent.workers > surplus:
                    break
                surplus -= agent.workers
                self.drain(agent, manager.reason)

    def drain(self, agent: AgentRecord, reason: str) -> None:
        """Have an agent finish its runs, hand over what it keeps, and leave."""
        self._state.drain(agent)
        text = f"agent {agent.name or agent.host} is told to drain: {reason}"
        self._state.log(text, EventKind.AGENT, subject=agent.host)
        agent.workers = 0
        self._state.with_room[agent] = None
        self.agent_changed(agent)

    def _agents_of(self, manager: ManagerRecord) -> Iterator[AgentRecord]:
        return (agent for agent in self._state.agents.values() if agent.manager == manager.id)

    def _send(self, manager: ManagerRecord) -> None:
        changed = self._take_changed(manager)
        reason = shortened(manager.reason)
        self._state.send(manager.peer, DesiredWorkers(manager.desired, reason, tuple(changed), tuple(changed.values())))

    def _take_changed(self, manager: ManagerRecord) -> dict[str, int]:
        """The units whose state has changed since the manager was told, with their states.

        A unit may have two agents: the first one's host is lost, which is noticed late, and its provider has started it
        again. It is gone when both are.
        """
        if not manager.changed_units:
            return {}
        states = dict.fromkeys(manager.changed_units, UnitState.GONE)
        for agent in self._agents_of(manager):
            if agent.unit in states and states[agent.unit] != UnitState.JOINED:
                states[agent.unit] = UnitState.DRAINING if agent.is_draining else UnitState.JOINED
        manager.changed_units.clear()
        told = manager.unit_states
        changed = {unit: state for unit, state in states.items() if state != told.get(unit, UnitState.GONE)}
        told.update(changed)
        for unit, state in changed.items():
            if state == UnitState.GONE:
                del told[unit]
        return changed

    def _worker_class(self, capabilities: str, quantities: str, python: str, cloudpickle: str) -> WorkerClass:
        """The class of an offer; raises CapabilityError."""
        offered: Capabilities = tuple(sorted(parse_capabilities(capabilities).items()))
        runtime: Runtime = (_minor(python), _minor(cloudpickle)) if python else None
        worker_class, cluster = worker_class_of(offered, runtime, parse_quantities(quantities)), self._state.cluster
        if cluster is None:
            return worker_class
        if conflict := cluster.conflict(name for name, _ in offered):
            raise CapabilityError(conflict)
        return cluster.widened(worker_class)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        ids = [manager.id for manager in self]
        assert len(ids) == len(set(ids)), ids
        for manager in self:
            assert len(manager.desired) in (0, len(manager.worker_classes))
            assert manager.status is not None or not (manager.changed_units or manager.unit_states)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
