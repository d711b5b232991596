"""Worker managers, units and tasks in virtual time: what a scaling policy would have done under a load."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, pairwise
from random import Random
from statistics import median

from scaler_scheduler.core.function_record import FunctionRecord
from scaler_scheduler.requirements import Requirement, WorkerClass
from scaler_scheduler.scaling.capacity import CapacitySnapshot, Demand, Manager, Offer, ScalingPolicy, Target

TICK_SECONDS = 1.0
"""How often the policy decides."""
BACK_OFF = (5.0, 60.0)
"""First and longest pause of a manager after a failure, in seconds."""
TAIL_SECONDS = 900.0
"""How long a fleet without tasks is watched."""


NOTHING_SPECIAL = Requirement((), None)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A task: when it comes and how long it runs, in seconds."""

    at: float
    seconds: float
    function: str = "f"
    requirement: Requirement = NOTHING_SPECIAL


@dataclass(frozen=True, slots=True)
class Provider:
    """A manager, and how its provider behaves."""

    id: str = "fleet"
    maximum: int = 10
    classes: tuple[WorkerClass, ...] = (WorkerClass((), None),)
    unit_size: int = 1
    startup: Callable[[Random], float] = lambda _: 0.0
    fails: tuple[float, float] = (0.0, 0.0)
    """From when to when no unit can be started."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a load; times are in seconds from its first task."""

    done: float
    """When the last task ended."""
    mean_wait: float
    """From the arrival of a task to its start."""
    utilisation: float
    """Share of the time of all workers, from their order to their end, in which they ran tasks."""
    starts: int
    stops: int
    """Workers started and stopped."""
    turns: int
    """How often the number of workers turned from growing to shrinking or back."""
    minutes: float
    """Until the fleet was at rest."""
    rest: int
    """Workers that are left."""


@dataclass(slots=True, eq=False)
class VirtualUnit:
    """One unit of a provider."""

    ordered: float
    number: int
    free: int
    joined: bool = False
    draining: bool = False
    runs: dict[int, tuple[Arrival, float]] = field(default_factory=dict)
    """Tasks by number, with the time of their start."""


@dataclass(slots=True, eq=False)
class VirtualManager:
    """One provider's manager: it knows its units, and starts and stops them to reach the target."""

    provider: Provider
    units: list[list[VirtualUnit]]
    """By offer."""
    startups: list[float] = field(default_factory=list)
    paused_until: float = 0.0
    back_off: float = BACK_OFF[0]

    def workers(self) -> int:
        """Workers that are there or starting, and do not drain."""
        return sum(self.provider.unit_size for unit in chain.from_iterable(self.units) if not unit.draining)

    def snapshot(self, now: float) -> Manager:
        """What the scheduler would tell the policy."""
        size = self.provider.unit_size
        offers = []
        for worker_class, units in zip(self.provider.classes, self.units, strict=True):
            draining = sum(size for unit in units if unit.draining)
            joined = sum(size for unit in units if unit.joined and not unit.draining)
            starting = len(units) * size - draining - joined
            offers.append(
                Offer(worker_class=worker_class, unit_size=size, joined=joined, starting=starting, draining=draining)
            )
        return Manager(
            id=self.provider.id,
            maximum=self.provider.maximum,
            offers=tuple(offers),
            paused=now < self.paused_until,
            failure="no capacity" if now < self.paused_until else "",
            startup_seconds=median(self.startups[-9:]) if self.startups else 0.0,
        )


class VirtualFleet:
    """One load on some providers under one policy."""

    def __init__(self, load: Sequence[Arrival], providers: Sequence[Provider], policy: ScalingPolicy | None) -> None:
        """Without a policy all workers that the providers allow are there from the beginning."""
        self._policy = policy
        self._managers = [VirtualManager(provider, [[] for _ in provider.classes]) for provider in providers]
        self._random = Random(1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._numbers = count(), count()
        self._now, self._last, self._left = 0.0, 0.0, len(load)
        self._waiting: dict[Requirement, deque[Arrival]] = {}
        self._functions: dict[str, FunctionRecord] = {}
        self._workers = [0]
        self._starts = self._stops = 0
        self._busy = self._paid = self._waits = 0.0
        self._tasks = len(load)
        for arrival in load:
            self._at(arrival.at, partial(self._arrive, arrival))
        if policy is None:
            self._prestart()

    def run(self) -> Outcome:
        """Play the load, and what follows until the fleet is at rest."""
        self._at(0.0, self._tick)
        while self._events:
            self._now, _, act = heapq.heappop(self._events)
            act()
        for manager in self._managers:
            for unit in chain.from_iterable(manager.units):
                self._paid += (self._now - unit.ordered) * manager.provider.unit_size
        moves = [after - before for before, after in pairwise(self._workers) if after != before]
        return Outcome(
            done=self._last,
            mean_wait=self._waits / self._tasks,
            utilisation=self._busy / self._paid if self._paid else 0.0,
            starts=self._starts,
            stops=self._stops,
            turns=sum(one * other < 0 for one, other in pairwise(moves)),
            minutes=self._now / 60,
            rest=self._workers[-1],
        )

    # --- events -----------------------------------------------------------------------------------------------------

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    def _arrive(self, arrival: Arrival) -> None:
        self._waiting.setdefault(arrival.requirement, deque()).append(arrival)
        self._functions.setdefault(arrival.function, FunctionRecord(b""))
        self._dispatch()

    def _join(self, manager: VirtualManager, place: int, unit: VirtualUnit) -> None:
        if unit in manager.units[place]:
            unit.joined = True
            manager.startups.append(self._now - unit.ordered)
            self._dispatch()

    def _finish(self, manager: VirtualManager, place: int, unit: VirtualUnit, number: int) -> None:
        arrival, _ = unit.runs.pop(number)
        unit.free += 1
        self._functions[arrival.function].measured(arrival.seconds, 1)
        self._busy += arrival.seconds
        self._last, self._left = self._now, self._left - 1
        if unit.draining and not unit.runs:
            self._remove(manager, place, unit)
        self._dispatch()

    def _tick(self) -> None:
        if self._policy is not None:
            managers = tuple(manager.snapshot(self._now) for manager in self._managers)
            snapshot = CapacitySnapshot(demands=tuple(self._demands()), managers=managers)
            for manager, target in zip(self._managers, self._policy.decide(snapshot, self._now), strict=True):
                self._follow(manager, target)
            self._workers.append(sum(manager.workers() for manager in self._managers))
        if self._left or (self._workers[-1] and self._now < self._last + TAIL_SECONDS):
            self._at(self._now + TICK_SECONDS, self._tick)

    # --- the scheduler ----------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Give waiting tasks to free workers: constrained tasks first, to plain workers first."""
        for requirement in sorted(self._waiting, key=lambda requirement: -len(requirement.capabilities)):
            queue = self._waiting[requirement]
            if not queue:
                continue
            for manager, place, unit in self._free_units(requirement):
                while unit.free and queue:
                    self._start(manager, place, unit, queue.popleft())

    def _free_units(self, requirement: Requirement) -> list[tuple[VirtualManager, int, VirtualUnit]]:
        found = [
            (manager, place, unit)
            for manager in self._managers
            for place, worker_class in enumerate(manager.provider.classes)
            if not requirement.unmet_by(worker_class)
            for unit in manager.units[place]
            if unit.joined and not unit.draining and unit.free
        ]
        found.sort(key=lambda free: len(free[0].provider.classes[free[1]].capabilities))
        return found

    def _start(self, manager: VirtualManager, place: int, unit: VirtualUnit, arrival: Arrival) -> None:
        number = next(self._numbers)
        unit.free -= 1
        unit.runs[number] = (arrival, self._now)
        self._waits += self._now - arrival.at
        self._at(self._now + arrival.seconds, lambda: self._finish(manager, place, unit, number))

    def _demands(self) -> Iterator[Demand]:
        running: dict[Requirement, list[tuple[Arrival, float]]] = {}
        for manager in self._managers:
            for unit in chain.from_iterable(manager.units):
                for arrival, since in () if unit.draining else unit.runs.values():
                    running.setdefault(arrival.requirement, []).append((arrival, since))
        for requirement in self._waiting.keys() | running.keys():
            yield self._demand(requirement, running.get(requirement, []))

    def _demand(self, requirement: Requirement, runs: Sequence[tuple[Arrival, float]]) -> Demand:
        queue = self._waiting.get(requirement, ())
        seconds = running_seconds = elapsed = 0.0
        unmeasured = 0
        for function, tasks in Counter(arrival.function for arrival in queue).items():
            mean = self._functions[function].seconds
            unmeasured += tasks if mean is None else 0
            seconds += tasks * (mean or 0.0)
        for arrival, since in runs:
            passed, mean = self._now - since, self._functions[arrival.function].seconds
            elapsed = max(elapsed, passed if mean is None else 0.0)
            running_seconds += max((mean or 0.0) - passed, passed / 2)
        return Demand(
            requirement=requirement,
            tasks=len(queue),
            seconds=seconds,
            unmeasured=unmeasured,
            elapsed=elapsed,
            running=len(runs),
            running_seconds=running_seconds,
        )

    # --- the managers -----------------------------------------------------------------------------------------------

    def _follow(self, manager: VirtualManager, target: Target) -> None:
        """Start units, cancel those that have not joined, drain those that have least to do."""
        for place, workers in enumerate(target.workers or ()):
            units = [unit for unit in manager.units[place] if not unit.draining]
            missing = workers // manager.provider.unit_size - len(units)
            for _ in range(missing):
                if not self._order_unit(manager, place):
                    break
            units.sort(key=lambda unit: (unit.joined, len(unit.runs), -unit.number))
            for unit in units[: max(0, -missing)]:
                unit.draining = True
                if not unit.runs:
                    self._remove(manager, place, unit)

    def _order_unit(self, manager: VirtualManager, place: int) -> bool:
        """Start one unit; returns False, and pauses the manager, if its provider fails."""
        provider = manager.provider
        if self._now < manager.paused_until:
            return False
        if provider.fails[0] <= self._now < provider.fails[1]:
            manager.paused_until = self._now + manager.back_off
            manager.back_off = min(2 * manager.back_off, BACK_OFF[1])
            return False
        manager.back_off = BACK_OFF[0]
        unit = VirtualUnit(self._now, next(self._numbers), provider.unit_size)
        manager.units[place].append(unit)
        self._starts += provider.unit_size
        self._at(self._now + provider.startup(self._random), lambda: self._join(manager, place, unit))
        return True

    def _remove(self, manager: VirtualManager, place: int, unit: VirtualUnit) -> None:
        manager.units[place].remove(unit)
        self._stops += manager.provider.unit_size
        self._paid += (self._now - unit.ordered) * manager.provider.unit_size

    def _prestart(self) -> None:
        for manager in self._managers:
            size, places = manager.provider.unit_size, len(manager.provider.classes)
            for number in range(manager.provider.maximum // size):
                manager.units[number % places].append(VirtualUnit(0.0, number, size, joined=True))
