"""What each policy asks for, case by case."""

from __future__ import annotations

import pytest

from scaler_protocol.capabilities import capabilities
from scaler_scheduler.requirements import Requirement, WorkerClass
from scaler_scheduler.scaling.capacity import CapacitySnapshot, Demand, Manager, Offer, ScalingPolicy, Target
from scaler_scheduler.scaling.policies import POLICIES, capability, no, static, vanilla, waterfall
from scaler_scheduler.scaling.rules import parse_rules

PYTHON = ("3.11", "3.1")
CPU = WorkerClass((), PYTHON)
GPU = WorkerClass(capabilities({"gpu": 2}), PYTHON)
ANY = Requirement((), PYTHON)
ON_GPU = Requirement(capabilities({"gpu": 1}), PYTHON)
ON_TPU = Requirement(capabilities({"tpu": 4}), PYTHON)
COOLDOWN = 30.0


def manager(id: str = "native", *offers: Offer, maximum: int = -1, failure: str = "", startup: float = 0) -> Manager:
    """A manager with one offer unless there are others; with a failure it is paused."""
    return Manager(
        id=id,
        kind="test",
        maximum=maximum,
        offers=offers or (Offer(worker_class=CPU),),
        paused=bool(failure),
        failure=failure,
        startup_seconds=startup,
    )


def cpu(joined: int = 0, starting: int = 0, draining: int = 0, unit_size: int = 1) -> Offer:
    """Workers without capabilities."""
    return Offer(worker_class=CPU, unit_size=unit_size, joined=joined, starting=starting, draining=draining)


def gpu(joined: int = 0, starting: int = 0, unit_size: int = 1) -> Offer:
    """Workers with two GPUs."""
    return Offer(worker_class=GPU, unit_size=unit_size, joined=joined, starting=starting)


def work(tasks: int, seconds: float = 0.0, requirement: Requirement = ANY, running: int = 0) -> Demand:
    """Tasks that wait; without seconds none has been measured."""
    unmeasured = 0 if seconds else tasks
    return Demand(requirement=requirement, tasks=tasks, seconds=seconds, unmeasured=unmeasured, running=running)


def decide(policy: ScalingPolicy, demands: list[Demand], managers: list[Manager], now: float = 0) -> list[Target]:
    """What the policy answers."""
    return list(policy.decide(CapacitySnapshot(demands=tuple(demands), managers=tuple(managers)), now))


def asked(policy: ScalingPolicy, demands: list[Demand], managers: list[Manager], now: float = 0) -> list[int]:
    """The workers of all offers, one after the other."""
    targets = decide(policy, demands, managers, now)
    return [workers for target in targets for workers in target.workers or ()]


@pytest.fixture(params=["vanilla", "capability"])
def following(request: pytest.FixtureRequest) -> ScalingPolicy:
    """A policy that follows the work."""
    return POLICIES[request.param]("", COOLDOWN)


def test_no_gives_no_orders() -> None:
    policy = no("", COOLDOWN)
    assert decide(policy, [work(100)], [manager()]) == [Target("native", None, "scaling=no: it keeps what it has")]


@pytest.mark.parametrize(
    ("live", "startup", "wanted"), [(0, 0, 8), (0, 60, 8), (2, 5, 7), (2, 30, 3), (2, 60, 2)]
)  # fmt: skip
def test_the_worked_example(following: ScalingPolicy, live: int, startup: float, wanted: int) -> None:
    fleet = manager("native", cpu(joined=live), maximum=10, startup=startup)
    assert asked(following, [work(15, 90)], [fleet]) == [wanted]


def test_draining_workers_that_leave_no_place_are_a_reason(following: ScalingPolicy) -> None:
    (target,) = decide(following, [work(15, 90)], [manager("native", cpu(draining=4), maximum=4)])
    assert target.workers == (0,) and target.reason.endswith(
        "0 workers; it may not have more beside 4 draining workers"
    )
    (target,) = decide(following, [work(15, 90)], [manager("native", cpu(draining=4), maximum=100)])
    assert "may not have more" not in target.reason


def test_unmeasured_tasks_get_a_worker_each(following: ScalingPolicy) -> None:
    assert asked(following, [work(15)], [manager(maximum=10)]) == [10]
    assert asked(following, [work(3)], [manager("other", maximum=10)]) == [3]


def test_there_are_never_more_workers_than_tasks(following: ScalingPolicy) -> None:
    assert asked(following, [work(3, 3 * 3600)], [manager()]) == [3]


def test_units_are_whole_and_within_the_maximum(following: ScalingPolicy) -> None:
    assert asked(following, [work(15, 90)], [manager("native", cpu(unit_size=3))]) == [9]
    assert asked(following, [work(15, 90)], [manager("other", cpu(unit_size=4), maximum=7)]) == [4]


def test_a_maximum_below_one_unit_is_explained(following: ScalingPolicy) -> None:
    (target,) = decide(following, [work(15, 90)], [manager("native", cpu(unit_size=4), maximum=3)])
    assert target.workers == (0,)
    assert target.reason == (
        "90 s of work for 15 tasks, target 12 s: 0 workers; "
        "at most 3 workers are allowed, which is less than one unit of 4"
    )


def test_workers_that_are_starting_are_not_ordered_again(following: ScalingPolicy) -> None:
    assert asked(following, [work(15, 90)], [manager("native", cpu(starting=8), maximum=10)]) == [8]
    assert asked(following, [work(20, 120)], [manager("native", cpu(starting=8), maximum=10)]) == [10]


def test_work_that_comes_while_units_start_is_not_ordered_twice(following: ScalingPolicy) -> None:
    first = manager("native", cpu(starting=5), startup=60)
    assert asked(following, [work(60, 60)], [first], now=0) == [5]
    # Until a unit that is ordered now is up and has worked for 12 s, these will have worked for 40 s each.
    assert asked(following, [work(200, 200)], [first], now=28) == [5]
    assert asked(following, [work(212, 212)], [first], now=28) == [6]


def test_draining_workers_are_no_capacity_but_take_place(following: ScalingPolicy) -> None:
    assert asked(following, [work(15, 90)], [manager("native", cpu(draining=4), maximum=10)]) == [6]
    assert asked(following, [work(15, 90)], [manager("other", cpu(draining=4))]) == [8]


def test_idle_workers_stay_for_the_cool_down(following: ScalingPolicy) -> None:
    fleet = manager("native", cpu(joined=8), maximum=20)
    assert asked(following, [work(96, 96)], [fleet], now=0) == [8]
    (target,) = decide(following, [], [fleet], now=30)
    assert target.workers == (8,)
    assert target.reason == "no tasks that it can run: 8 workers; 8 not needed now, kept until the cool-down ends"
    assert asked(following, [], [fleet], now=31) == [0]


def test_busy_workers_are_needed_however_little_work_there_is(following: ScalingPolicy) -> None:
    fleet = manager("native", cpu(joined=8))
    tail = Demand(requirement=ANY, running=3, running_seconds=1)
    assert asked(following, [tail], [fleet], now=0) == [8]
    assert asked(following, [tail], [fleet], now=31) == [3]


def test_workers_found_at_the_start_of_the_scheduler_are_not_given_up_at_once(following: ScalingPolicy) -> None:
    assert asked(following, [], [manager("native", cpu(joined=8))], now=1000) == [8]


def test_a_slow_fleet_is_kept_longer(following: ScalingPolicy) -> None:
    fleet = manager("native", cpu(joined=8), startup=60)
    assert asked(following, [], [fleet], now=0) == [8]
    assert asked(following, [], [fleet], now=120) == [8]
    assert asked(following, [], [fleet], now=121) == [0]


def test_a_task_that_only_another_unit_can_run_starts_it(following: ScalingPolicy) -> None:
    fleet = [manager("native", cpu(joined=8), maximum=8), manager("cloud", gpu(unit_size=4))]
    assert asked(following, [work(1, requirement=ON_GPU)], fleet) == [8, 4]
    assert asked(following, [work(100, 1), work(1, 0.01, ON_GPU)], fleet) == [8, 4]


def test_what_nobody_can_run_asks_nothing_of_anybody(following: ScalingPolicy) -> None:
    (target,) = decide(following, [work(7, requirement=ON_TPU)], [manager()])
    assert target.workers == (0,)
    assert target.reason == ("no tasks that it can run: 0 workers; nobody offers tpu=4, for 7 tasks")


def test_vanilla_takes_all_work_together() -> None:
    demands, fleet = [work(10, 120), work(10, 120, ON_GPU)], [manager(), manager("cloud", gpu())]
    assert asked(vanilla(), demands, fleet) == [19, 1]


def test_capability_keeps_requirements_apart() -> None:
    demands, fleet = [work(10, 120), work(10, 120, ON_GPU)], [manager(), manager("cloud", gpu())]
    assert asked(capability("", COOLDOWN), demands, fleet) == [10, 10]


def test_what_can_run_everything_stays_free_for_what_needs_it() -> None:
    demands, fleet = [work(10, 120), work(3, 36, ON_GPU)], [manager("all", cpu(), gpu(), maximum=8)]
    assert asked(capability("", COOLDOWN), demands, fleet) == [5, 3]


def test_live_workers_serve_the_most_constrained_tasks_first() -> None:
    fleet = [manager("all", cpu(joined=2), gpu(joined=2))]
    assert asked(capability("", COOLDOWN), [work(4, 48), work(2, 24, ON_GPU)], fleet) == [4, 2]


def test_a_full_manager_makes_place_for_tasks_that_none_of_its_workers_can_run(following: ScalingPolicy) -> None:
    demands = [work(1000, 36000), work(1, requirement=ON_GPU)]
    full = manager("all", cpu(joined=4), gpu(), maximum=4)
    gives = manager("all", cpu(joined=3, draining=1), gpu(), maximum=4)
    assert asked(following, demands, [full], now=0) == [4, 0]
    assert asked(following, demands, [full], now=29) == [4, 0]
    (target,) = decide(following, demands, [full], now=30)
    assert target.workers == (3, 0)
    assert "1 worker less, to make place for tasks that only another unit can run" in target.reason
    assert asked(following, demands, [gives], now=31) == [3, 0]
    assert asked(following, demands, [manager("all", cpu(joined=3), gpu(), maximum=4)], now=32) == [3, 1]
    assert asked(following, demands, [manager("all", cpu(joined=3), gpu(starting=1), maximum=4)], now=33) == [3, 1]


def test_managers_share(following: ScalingPolicy) -> None:
    assert asked(following, [work(10, 120)], [manager("a"), manager("b")]) == [5, 5]
    assert asked(following, [work(10, 120)], [manager("c", maximum=2), manager("d")]) == [2, 8]
    assert asked(following, [work(10, 120)], [manager("e", cpu(joined=4)), manager("f")]) == [5, 5]


def test_a_manager_that_fails_is_passed_over_with_the_reason_at_both(following: ScalingPolicy) -> None:
    one, other = decide(following, [work(10, 120)], [manager("a", failure="sbatch: no such partition"), manager("b")])
    assert (one.workers, other.workers) == ((0,), (10,))
    assert one.reason.endswith("this manager is passed over after an error: sbatch: no such partition")
    assert other.reason.endswith("manager a is passed over after an error: sbatch: no such partition")


def test_what_a_failing_manager_has_already_is_used_and_kept(following: ScalingPolicy) -> None:
    failing = manager("a", cpu(joined=4, starting=2), failure="quota exceeded")
    assert asked(following, [work(10, 120)], [failing, manager("b")]) == [6, 6]


def test_a_manager_whose_units_wait_for_long_is_passed_over_and_gives_them_up_when_others_do_the_work(
    following: ScalingPolicy,
) -> None:
    def queued(workers: int = 5) -> Manager:
        return manager("slurm", cpu(starting=workers))

    idle = manager("cloud")
    assert asked(following, [work(10, 120)], [manager("slurm"), idle], now=0) == [5, 5]
    assert asked(following, [work(10, 120)], [queued(), manager("cloud", cpu(starting=5))], now=1) == [5, 5]
    there = manager("cloud", cpu(joined=5))
    assert asked(following, [work(10, 120)], [queued(), there], now=60) == [5, 5], "they are expected to come soon"
    one, other = decide(following, [work(10, 120)], [queued(), there], now=62)
    assert (one.workers, other.workers) == ((5,), (10,))
    assert one.reason.endswith("5 workers of this manager did not start within 60 s: others are asked first")
    assert other.reason.endswith("5 workers of manager slurm did not start within 60 s: others are asked first")
    there = manager("cloud", cpu(joined=10))
    assert asked(following, [work(10, 120)], [queued(), there], now=70) == [5, 10], "kept for the cool-down"
    assert asked(following, [work(10, 120)], [queued(), there], now=101) == [0, 10]


def test_a_queue_that_is_nobody_else_s_gets_each_unit_once(following: ScalingPolicy) -> None:
    assert asked(following, [work(10, 120)], [manager("slurm")], now=0) == [10]
    for now in (1, 61, 62, 3600):
        assert asked(following, [work(10, 120)], [manager("slurm", cpu(starting=10))], now) == [10]


def test_units_that_are_always_slow_are_waited_for_longer(following: ScalingPolicy) -> None:
    fleet = [manager("slurm", cpu(starting=10), startup=100), manager("cloud")]
    assert asked(following, [work(10, 120)], fleet, now=0) == [10, 0]
    assert asked(following, [work(10, 120)], fleet, now=300) == [10, 0]
    assert asked(following, [work(10, 120)], fleet, now=301) == [10, 10]


def test_workers_started_by_hand_count(following: ScalingPolicy) -> None:
    snapshot = CapacitySnapshot(demands=(work(10, 120),), managers=(manager(),), unmanaged=((CPU, 4), (GPU, 2)))
    (target,) = following.decide(snapshot, 0)
    assert target.workers == (4,)


def test_a_waterfall_fills_the_lowest_number_first() -> None:
    rules = parse_rules("1,own,3\n2,left\n2,right\n3,last")
    managers = [manager(name, maximum=10) for name in ("last", "right", "left", "own")]
    assert asked(waterfall(rules, COOLDOWN), [work(8, 96)], managers) == [0, 3, 2, 3]
    assert asked(waterfall(rules, COOLDOWN), [work(30, 360)], managers) == [7, 10, 10, 3]


def test_a_waterfall_passes_over_managers_that_are_away_or_fail() -> None:
    rules = parse_rules("1,away\n1,fails\n2,next")
    managers = [manager("fails", failure="quota exceeded"), manager("next")]
    assert asked(waterfall(rules, COOLDOWN), [work(8, 96)], managers) == [0, 8]


def test_a_waterfall_drains_the_lowest_priority_first() -> None:
    policy = waterfall(parse_rules("1,own\n2,cloud"), COOLDOWN)
    managers = [manager("cloud", cpu(joined=4)), manager("own", cpu(joined=4))]
    asked(policy, [work(8, 96)], managers, now=0)
    for now in range(100):
        wanted = asked(policy, [Demand(requirement=ANY, running=5)], managers, now)
    assert wanted == [1, 4]


def test_a_waterfall_starts_what_can_run_the_task() -> None:
    policy = waterfall(parse_rules("1,own\n2,cloud"), COOLDOWN)
    assert asked(policy, [work(8, 96, ON_GPU)], [manager("own"), manager("cloud", gpu())]) == [0, 8]


def test_a_manager_without_a_rule_gets_no_orders() -> None:
    policy = waterfall(parse_rules("1,own"), COOLDOWN)
    own, other = decide(policy, [work(8, 96)], [manager("own"), manager("other", cpu(joined=4))])
    assert own.workers == (4,)
    assert (other.workers, other.reason) == (None, "no rule names this manager: it keeps what it has")


def test_static_is_a_number_of_workers_in_all() -> None:
    managers = [manager("a", maximum=10), manager("b", maximum=1), manager("c")]
    assert asked(static("5", COOLDOWN), [], managers) == [2, 1, 2]
    assert asked(static("5", COOLDOWN), [work(100, 3600)], [manager("a", cpu(joined=5))]) == [5]
    assert asked(static("5", COOLDOWN), [], [manager("a", cpu(unit_size=4))]) == [8]
    assert asked(static("0", COOLDOWN), [work(100)], [manager("a")]) == [0]


def test_static_replaces_what_a_failing_manager_cannot_start() -> None:
    managers = [manager("a", cpu(joined=1, starting=1), failure="quota exceeded"), manager("b", cpu(joined=1))]
    (one, other) = decide(static("4", COOLDOWN), [], managers)
    assert (one.workers, other.workers) == ((2,), (3,))
    assert one.reason.startswith("4 workers in all by scaling=static:4: 2 workers; ")


@pytest.mark.parametrize(
    ("name", "argument", "message"),
    [
        ("static", "", "static: lacks a number of workers: write static:N, like static:4"),
        ("static", "-1", "static:-1 lacks a number of workers: write static:N, like static:4"),
        ("static", "many", "static:many lacks a number of workers: write static:N, like static:4"),
        ("no", "3", "no:3 has an argument, but no takes none: write no"),
        ("vanilla", "3", "vanilla:3 has an argument, but vanilla takes none: write vanilla"),
        ("capability", "gpu", "capability:gpu has an argument, but capability takes none: write capability"),
    ],
)
def test_a_wrong_argument_is_refused_with_the_remedy(name: str, argument: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        POLICIES[name](argument, COOLDOWN)
    assert str(raised.value) == message


def test_an_offer_of_unknown_python_is_assumed_to_fit(following: ScalingPolicy) -> None:
    unknown = Offer(worker_class=WorkerClass((), None))
    assert asked(following, [work(3)], [manager("cloud", unknown)]) == [3]
    assert asked(following, [work(3, requirement=ON_GPU)], [manager("cloud", unknown)]) == [0]


LICENSED = WorkerClass(capabilities({"license": 2}), PYTHON, ("license",), (2,))
ON_LICENSE = Requirement(capabilities({"license": 1}), PYTHON)


def licensed(joined: int = 0, starting: int = 0) -> Offer:
    """Hosts of eight workers, which have two licenses together."""
    return Offer(worker_class=LICENSED, unit_size=8, joined=joined, starting=starting)


def test_there_are_as_many_units_as_have_what_tasks_take(following: ScalingPolicy) -> None:
    assert asked(following, [work(6, 6000.0, ON_LICENSE)], [manager("a", licensed(8))]) == [24]


def test_workers_beside_those_that_take_it_are_for_others(following: ScalingPolicy) -> None:
    assert asked(following, [work(6, 6000.0, ON_LICENSE), work(18, 18_000.0)], [manager("a", licensed())]) == [24]


def test_a_task_that_takes_all_of_a_unit_needs_one_of_its_own(following: ScalingPolicy) -> None:
    both = Requirement(capabilities({"license": 2}), PYTHON)
    assert asked(following, [work(3, 3000.0, both)], [manager("a", licensed())]) == [24]


def test_hosts_are_kept_for_what_they_have_and_not_for_their_workers(following: ScalingPolicy) -> None:
    demands, managers = [work(0, requirement=ON_LICENSE, running=4)], [manager("a", licensed(24))]
    asked(following, demands, managers)
    assert asked(following, demands, managers, 2 * COOLDOWN) == [16]


def test_no_more_is_started_than_the_cluster_lets_run(following: ScalingPolicy) -> None:
    snapshot = CapacitySnapshot(
        demands=(work(100, 100_000.0, ON_LICENSE),),
        managers=(manager("a", Offer(worker_class=LICENSED)),),
        cluster=(("license", 2),),
    )
    [target] = following.decide(snapshot, 0.0)
    assert target.workers == (2,)
