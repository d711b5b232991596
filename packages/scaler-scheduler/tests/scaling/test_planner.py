"""What holds for every policy that gives orders, whatever the cluster and its tasks look like."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler_protocol.capabilities import capabilities
from scaler_scheduler.requirements import Requirement, WorkerClass
from scaler_scheduler.scaling.capacity import CapacitySnapshot, Demand, Manager, Offer, ScalingPolicy, Target
from scaler_scheduler.scaling.control_law import LONGEST_KEEP_SECONDS
from scaler_scheduler.scaling.policies import capability, static, vanilla, waterfall
from scaler_scheduler.scaling.rules import Rule

COOLDOWN = 30.0
CLASSES = [WorkerClass(capabilities(given), None) for given in ({}, {"gpu": 1}, {"gpu": 2, "ssd": -1}, {"ssd": -1})]
REQUIREMENTS = [Requirement(capabilities(given), None) for given in ({}, {"gpu": 2}, {"ssd": -1}, {"tpu": 1})]
ALIKE = [Manager(id=name, offers=(Offer(worker_class=CLASSES[0]),)) for name in "abc"]
RULES = {"a": Rule(1, "a", 5), "b": Rule(1, "b"), "c": Rule(2, "c")}
POLICIES: dict[str, Callable[[], ScalingPolicy]] = {
    "vanilla": lambda: vanilla("", COOLDOWN),
    "capability": lambda: capability("", COOLDOWN),
    "waterfall": lambda: waterfall(RULES, COOLDOWN),
    "static": lambda: static("7", COOLDOWN),
}
FOLLOWING = [POLICIES[name] for name in ("vanilla", "capability", "waterfall")]
every = pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
following = pytest.mark.parametrize("policy", FOLLOWING, ids=["vanilla", "capability", "waterfall"])

counts = st.integers(0, 6)
# A strategy that is made with each draw is also checked with each draw.
sizes = st.integers(1, 4)
unmeasured_counts = [st.integers(0, tasks) for tasks in range(51)]
to_20, to_50 = st.integers(0, 20), st.integers(0, 50)
task_seconds, ages = st.floats(0.001, 1000), st.floats(0, 100)
some_classes = st.lists(st.sampled_from(CLASSES), max_size=3)
some_requirements = st.lists(st.sampled_from(REQUIREMENTS), unique=True)
maxima, startups = st.sampled_from([-1, 0, 1, 3, 10, 40]), st.sampled_from([0.0, 1.0, 20.0, 400.0])
names, flags = st.sampled_from(["", "a", "ab", "abc"]), st.booleans()
unmanaged_workers = st.lists(st.tuples(st.sampled_from(CLASSES), counts), max_size=2, unique_by=lambda item: item[0])


@st.composite
def demand(draw: st.DrawFn, requirement: Requirement) -> Demand:
    """Some tasks of a requirement, measured or not, waiting and running."""
    tasks = draw(to_50)
    unmeasured = draw(unmeasured_counts[tasks])
    running = draw(to_20)
    return Demand(
        requirement=requirement,
        tasks=tasks,
        seconds=(tasks - unmeasured) * draw(task_seconds),
        unmeasured=unmeasured,
        elapsed=draw(ages),
        running=running,
        running_seconds=running * draw(ages),
    )


@st.composite
def offers(draw: st.DrawFn) -> tuple[Offer, ...]:
    """Offers of different classes, with units in every state."""
    chosen = draw(some_classes)
    return tuple(
        Offer(
            worker_class=worker_class,
            unit_size=(size := draw(sizes)),
            joined=size * draw(counts),
            starting=size * draw(counts),
            draining=size * draw(counts),
        )
        for worker_class in chosen
    )


some_offers = offers()


@st.composite
def snapshots(draw: st.DrawFn) -> CapacitySnapshot:
    """A cluster of up to three managers."""
    managers = [
        Manager(
            id=name,
            maximum=draw(maxima),
            offers=draw(some_offers),
            paused=draw(flags),
            startup_seconds=draw(startups),
        )
        for name in draw(names)
    ]
    unmanaged = draw(unmanaged_workers)
    chosen = draw(some_requirements)
    demands = tuple(draw(demand(requirement)) for requirement in chosen)
    return CapacitySnapshot(demands=demands, managers=tuple(managers), unmanaged=tuple(unmanaged))


def check(snapshot: CapacitySnapshot, targets: Sequence[Target]) -> None:
    """The promises of ScalingPolicy.decide, and that nothing is ordered where nothing may be."""
    assert [target.manager for target in targets] == [manager.id for manager in snapshot.managers]
    for manager, target in zip(snapshot.managers, targets, strict=True):
        assert target.reason
        assert target.workers is not None and len(target.workers) == len(manager.offers)
        for offer, workers in zip(manager.offers, target.workers, strict=True):
            assert workers >= 0 and workers % offer.unit_size == 0
        there = sum(offer.joined + offer.starting for offer in manager.offers)
        draining = sum(offer.draining for offer in manager.offers)
        if manager.maximum >= 0:
            assert sum(target.workers) <= manager.maximum
            assert sum(target.workers) <= max(there, manager.maximum - draining)
        if manager.paused:
            for offer, workers in zip(manager.offers, target.workers, strict=True):
                assert workers <= offer.joined + offer.starting


@every
@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 20.0, 100.0]), snapshots()), min_size=1, max_size=4))
def test_targets_are_whole_units_within_the_maximum(
    policy: Callable[[], ScalingPolicy], steps: Sequence[tuple[float, CapacitySnapshot]]
) -> None:
    decider, now = policy(), 0.0
    for passed, snapshot in steps:
        now += passed
        check(snapshot, decider.decide(snapshot, now))


@following
@settings(max_examples=40)
@given(snapshots())
def test_without_tasks_nothing_is_left_after_the_cool_down(
    policy: Callable[[], ScalingPolicy], snapshot: CapacitySnapshot
) -> None:
    decider = policy()
    decider.decide(snapshot, 0)
    idle = replace(snapshot, demands=())
    longest = max([COOLDOWN, *(2 * manager.startup_seconds for manager in snapshot.managers)])
    targets = decider.decide(idle, min(longest, LONGEST_KEEP_SECONDS) + 1)
    assert not any(sum(target.workers or ()) for target in targets)


@following
@settings(max_examples=40)
@given(snapshots(), demand(Requirement(capabilities({"fpga": 1}), None)))
def test_a_demand_that_nobody_can_serve_asks_nothing_of_anybody(
    policy: Callable[[], ScalingPolicy], snapshot: CapacitySnapshot, unserved: Demand
) -> None:
    more = replace(snapshot, demands=(*snapshot.demands, unserved))
    without = [target.workers for target in policy().decide(snapshot, 0)]
    assert [target.workers for target in policy().decide(more, 0)] == without


@following
@given(demand(REQUIREMENTS[0]), st.integers(0, 50), st.floats(0, 1000), st.lists(counts, min_size=6, max_size=6))
def test_more_work_never_gets_fewer_workers(
    policy: Callable[[], ScalingPolicy], less: Demand, tasks: int, seconds: float, live: Sequence[int]
) -> None:
    more = replace(less, tasks=less.tasks + tasks, seconds=less.seconds + tasks * seconds)
    managers = tuple(
        replace(manager, maximum=20, offers=(replace(manager.offers[0], joined=joined, starting=starting),))
        for manager, joined, starting in zip(ALIKE, live[:3], live[3:], strict=True)
    )
    wanted = []
    for demands in ((less,), (more,)):
        targets = policy().decide(CapacitySnapshot(demands=demands, managers=managers), 0)
        wanted.append(sum(sum(target.workers or ()) for target in targets))
    assert wanted[0] <= wanted[1]


@following
@settings(max_examples=20)
@given(st.integers(1, 40), st.floats(0.1, 500), st.sampled_from([0.0, 5.0, 60.0]), st.integers(1, 4))
def test_constant_load_changes_its_direction_at_most_once(
    policy: Callable[[], ScalingPolicy], tasks: int, seconds: float, startup: float, unit_size: int
) -> None:
    """Started units join at once or are drained at once; the backlog stays as it is."""
    decider, workers, seen = policy(), [0, 0, 0], [0]
    backlog = Demand(requirement=REQUIREMENTS[0], tasks=tasks, seconds=tasks * seconds)
    for now in range(0, 1000, 5):
        managers = tuple(
            replace(
                manager,
                startup_seconds=startup,
                offers=(replace(manager.offers[0], unit_size=unit_size, joined=joined),),
            )
            for manager, joined in zip(ALIKE, workers, strict=True)
        )
        targets = decider.decide(CapacitySnapshot(demands=(backlog,), managers=managers), now)
        workers = [sum(target.workers or ()) for target in targets]
        seen.append(sum(workers))
    moves = [after - before for before, after in pairwise(seen) if after != before]
    turns = sum(one * other < 0 for one, other in pairwise(moves))
    assert turns <= 1 and len(set(seen[-100:])) == 1


@every
def test_a_manager_with_far_more_than_its_maximum_costs_little(policy: Callable[[], ScalingPolicy]) -> None:
    offer = Offer(worker_class=CLASSES[0], starting=2**31 // 256)
    begun = time.process_time()
    (target,) = policy().decide(CapacitySnapshot(managers=(Manager(id="a", maximum=3, offers=(offer,) * 256),)), 0.0)
    assert target.workers is not None and sum(target.workers) <= 3
    assert time.process_time() - begun < 2


def test_a_target_fits_into_a_message() -> None:
    snapshot = CapacitySnapshot(managers=(Manager(id="a", offers=(Offer(worker_class=CLASSES[0]),)),))
    (target,) = static(str(2**32 - 1), COOLDOWN).decide(snapshot, 0.0)
    assert target.workers == (2**31 - 1,)
