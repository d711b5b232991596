"""The policies that come with Scaler, by name. Pure, no IO.

A policy is chosen by a word, `name` or `name:argument`. The factory of a name takes the argument, which is empty where
there is none, and the cool-down in seconds; it raises ValueError for an argument that it does not understand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from scaler_protocol.plurals import counted
from scaler_scheduler.scaling.capacity import CapacitySnapshot, Demand, Manager, ScalingPolicy, Target
from scaler_scheduler.scaling.control_law import COOLDOWN_SECONDS, TARGET_SECONDS, outstanding_seconds
from scaler_scheduler.scaling.fleet import Fleet, Need
from scaler_scheduler.scaling.planner import LawPolicy
from scaler_scheduler.scaling.reasons import can_run
from scaler_scheduler.scaling.rules import Rule

MOST_WORKERS = 2**32 - 1
"""The most workers that a message to a manager can name."""

PolicyFactory = Callable[[str, float], ScalingPolicy]


class NoScaling:
    """The policy `no`: gives no orders."""

    def decide(self, snapshot: CapacitySnapshot, now: float) -> Sequence[Target]:
        """A target without a number for each manager."""
        return [Target(manager.id, None, "scaling=no: it keeps what it has") for manager in snapshot.managers]


class EachRequirement:
    """The aim of `capability`: workers for each requirement, from those that can run it."""

    def needs(self, demands: Sequence[Demand], fleet: Fleet) -> list[Need]:
        """One need per demand; no larger than what can run at one time."""
        return [self._need(demand, fleet) for demand in demands]

    @staticmethod
    def _need(demand: Demand, fleet: Fleet) -> Need:
        most = fleet.most_at_once(demand.requirement)
        return Need(
            demand.requirement,
            fleet.able_to_run(demand.requirement),
            min(most, demand.tasks + demand.running),
            min(most * TARGET_SECONDS, outstanding_seconds(demand)),
            demand.running,
        )

    def summary(self, demands: Sequence[Demand], manager: Manager) -> str:
        """The outstanding work that this manager's workers could do, even if others get it."""
        return _summary_of_work(demands, manager)


class WholeCluster:
    """The aim of `vanilla`: all work is one demand, shared by all who can run some of it.

    A worker for one task of each requirement comes first, so a task that nobody else can run has a worker. Requirements
    for which a worker is not enough, because they take of quantities, are needs of their own.
    """

    def needs(self, demands: Sequence[Demand], fleet: Fleet) -> list[Need]:
        """One task's worth of each demand, and the rest of all."""
        every = [need for need in EachRequirement().needs(demands, fleet) if need.tasks and need.supplies]
        sharing = [need for need in every if any(supply.share_of(need.requirement) for supply in need.supplies)]
        firsts = [need for need in every if need not in sharing]
        useful = {supply for need in firsts for supply in need.supplies}
        rest = Need(None, [supply for supply in fleet.supplies if supply in useful])
        for need in firsts:
            seconds, busy = need.seconds / need.tasks, min(need.busy, 1)
            rest.tasks += need.tasks - 1
            rest.seconds += need.seconds - seconds
            rest.busy += need.busy - busy
            need.tasks, need.seconds, need.busy = 1, seconds, busy
        return [*sharing, *firsts, rest]

    def summary(self, demands: Sequence[Demand], manager: Manager) -> str:
        """The outstanding work that this manager's workers could do, even if others get it."""
        return _summary_of_work(demands, manager)


class FixedNumber:
    """The aim of `static:N`: so many workers, whatever there is to do."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def needs(self, demands: Sequence[Demand], fleet: Fleet) -> list[Need]:
        """One endless task for each worker."""
        return [Need(None, [supply for supply in fleet.supplies if supply.budget], self._workers, float("inf"))]

    def summary(self, demands: Sequence[Demand], manager: Manager) -> str:
        """The number."""
        return f"{counted(self._workers, 'worker')} in all by scaling=static:{self._workers}"


def no(argument: str, cooldown_seconds: float) -> ScalingPolicy:
    """`scaling=no`."""
    _refuse_argument("no", argument)
    return NoScaling()


def static(argument: str, cooldown_seconds: float) -> ScalingPolicy:
    """`scaling=static:N`: N workers in all, shared by the managers."""
    if not argument.isascii() or not argument.isdigit():
        raise ValueError(f"static:{argument} lacks a number of workers: write static:N, like static:4")
    if len(argument) > len(str(MOST_WORKERS)) or int(argument) > MOST_WORKERS:
        raise ValueError(f"static:N has a number of {len(argument):,} digits: write at most {MOST_WORKERS}")
    return LawPolicy(FixedNumber(int(argument)), cooldown_seconds=cooldown_seconds)


def vanilla(argument: str = "", cooldown_seconds: float = COOLDOWN_SECONDS) -> ScalingPolicy:
    """`scaling=vanilla`: workers for all work, evenly from all managers."""
    _refuse_argument("vanilla", argument)
    return LawPolicy(WholeCluster(), cooldown_seconds=cooldown_seconds)


def capability(argument: str, cooldown_seconds: float) -> ScalingPolicy:
    """`scaling=capability`: workers for each requirement, from the managers that offer what it takes."""
    _refuse_argument("capability", argument)
    return LawPolicy(EachRequirement(), cooldown_seconds=cooldown_seconds)


def waterfall(rules: Mapping[str, Rule], cooldown_seconds: float) -> ScalingPolicy:
    """`waterfall_v1`: as `capability`, from the managers in the order of their rules."""
    return LawPolicy(EachRequirement(), rules, cooldown_seconds)


def _summary_of_work(demands: Sequence[Demand], manager: Manager) -> str:
    mine = [demand for demand in demands if can_run(manager, demand.requirement)]
    tasks = sum(demand.tasks + demand.running for demand in mine)
    if not tasks:
        return "no tasks that it can run"
    seconds = sum(map(outstanding_seconds, mine))
    return f"{seconds:,.0f} s of work for {counted(tasks, 'task')}, target {TARGET_SECONDS:.0f} s"


def _refuse_argument(name: str, argument: str) -> None:
    if argument:
        raise ValueError(f"{name}:{argument} has an argument, but {name} takes none: write {name}")


POLICIES: Mapping[str, PolicyFactory] = {"no": no, "static": static, "vanilla": vanilla, "capability": capability}
