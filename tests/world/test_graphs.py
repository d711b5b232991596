"""Graphs in the World: every fault in the middle of one, and nothing is left over."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random
from typing import Any

import pytest

from scaler_client.core.resubmissions import RESUBMISSION_LIMIT
from scaler_protocol.errors import ObjectNotFoundError
from scaler_protocol.messages import Status
from world.callers import WorldFuture
from world.cluster import World
from world.plans import Plan
from world.test_restart import check_nothing_ran_twice

SEEDS = range(3)


def start(world: World, seed: int, nodes: int = 60, *, failing: float = 0.0) -> list[WorldFuture]:
    """A random graph of a client, in layers of 12: nodes take up to three of the layer before, the last ones and some
    others are asked for."""
    random = Random(seed)
    needs: list[list[int]] = []
    for at in range(nodes):
        layer = range(max(0, at // 12 * 12 - 12), at // 12 * 12)
        needs.append(random.sample(layer, random.randint(1, 3)) if layer else [])
    plans = [Plan(random.uniform(0.001, 0.03), f"n{at}", raises=random.random() < failing) for at in range(nodes)]
    taken = {need for each in needs for need in each}
    asked = [at for at in range(nodes) if at not in taken or random.random() < 0.1]
    return world.client.graph(plans, needs, asked)


@pytest.mark.parametrize("seed", SEEDS)
def test_undisturbed(seed: int) -> None:
    world = World(seed, hosts=[2, 1])
    futures = start(world, seed)
    world.finish()
    world.check_as_expected(futures)
    assert len(world.history) == 60 and len(world.client.answers) == len(futures), "only what was asked for comes back"
    world.rest()


@pytest.mark.parametrize("seed", SEEDS)
def test_failing_nodes(seed: int) -> None:
    world = World(seed, hosts=[2, 1])
    futures = start(world, seed, failing=0.1)
    world.finish()
    world.check_as_expected(futures)
    world.rest()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("away", [0.0, 0.5])
def test_a_restarted_scheduler_is_told_again(seed: int, away: float) -> None:
    world = World(seed, hosts=[2, 1])
    futures = start(world, seed)
    world.run(0.05 + 0.03 * seed)
    assert world.client.unfinished and world.history
    world.restart_scheduler(away)
    world.finish(60.0)
    world.check_as_expected(futures)
    check_nothing_ran_twice(world)
    world.rest(10.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_journal_of_a_graph_says_what_the_scheduler_knows(seed: int) -> None:
    world = World(seed, hosts=[2, 1], journal=True)
    futures = [*start(world, seed), *start(world, seed + 10, failing=0.05)]
    while world.client.unfinished:
        world.run(0.02)
        journal = world.scheduler.journal
        assert journal is not None
        journal.ledger.tidy()
        journal.check()
    world.check_as_expected(futures)
    world.rest()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("journal", [False, True])
def test_after_a_restart_runs_what_is_needed_and_held_by_nobody(seed: int, lost: bool, journal: bool) -> None:
    world = World(seed, hosts=[2, 1], journal=journal)
    # Chains, a cancelled one among them, and a node in the middle of each that is asked for.
    needs = [[at - 1] if at % 20 else [] for at in range(80)]
    futures = world.client.graph(
        [Plan(0.02, f"n{at}") for at in range(80)], needs, [*range(9, 80, 20), *range(19, 80, 20)]
    )
    world.run(0.05 + 0.07 * seed)
    world.client.cancel(futures[4])
    world.run(0.1)
    first = min(execution.task for execution in world.history)
    delivered = {future.task_id - first for future in futures if future.status == Status.VALUE}
    ran = len(world.history)
    world.restart_scheduler()
    if lost:
        world.hosts[1].kill()
    world.finish(60.0)
    world.check_as_expected(futures)
    after = {execution.task - first for execution in world.history[ran:]}
    assert not [at for at in after for end in delivered if at // 20 == end // 20 and at <= end], "they were there"
    assert not after & set(range(10, 20)), "these were not requested"
    if not lost:
        check_nothing_ran_twice(world)
    world.rest(10.0)


def test_after_a_restart_a_cancelled_key_takes_along_what_only_it_needed() -> None:
    world = World(hosts=[2])
    needs = [[at - 1] if at % 200 else [] for at in range(400)]
    futures = world.client.graph([Plan(0.05, f"n{at}") for at in range(400)], needs, [199, 399])
    world.run(0.5)
    world.restart_scheduler()
    ran = len(world.history)
    world.until(lambda: len(world.history) > ran + 20, 20.0)
    world.client.cancel(futures[0])
    world.run(0.2)
    first, ran = min(execution.task for execution in world.history), len(world.history)
    world.finish(60.0)
    world.check_as_expected(futures)
    assert all(execution.task - first >= 200 for execution in world.history[ran:])
    world.rest(10.0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("misses", "away", "journal"),
    [
        *product([1, RESUBMISSION_LIMIT, RESUBMISSION_LIMIT + 1], [None, 0.2], [False]),
        *product([1, RESUBMISSION_LIMIT, RESUBMISSION_LIMIT + 1], [0.2], [True]),
    ],
)
def test_nodes_that_miss_an_object_run_again_with_what_they_take(
    seed: int, misses: int, away: float | None, journal: bool
) -> None:
    world = World(seed, hosts=[2, 1], journal=journal)
    random = Random(seed)
    needs = [random.sample(range(at), min(at, random.randint(0, 3))) for at in range(40)]
    missing = random.randrange(40)
    plans = [Plan(random.uniform(0.001, 0.03), f"n{at}", misses=misses * (at == missing)) for at in range(40)]
    taken = {need for each in needs for need in each}
    asked = [at for at in range(40) if at not in taken or random.random() < 0.1]
    futures = world.client.graph(plans, needs, asked)
    bystander = world.client.submit(Plan(value="apart"))
    if away is not None:
        world.run(0.05 + 0.05 * seed)
        world.restart_scheduler(away)
    world.finish(60.0)
    world.check_as_expected([*futures, *bystander])
    failed = [future for future in futures if future.status == Status.FAILED]
    assert all(isinstance(future.error, ObjectNotFoundError) for future in failed)
    assert bool(failed) == (misses > RESUBMISSION_LIMIT)
    world.rest(10.0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize("misses", [(RESUBMISSION_LIMIT,), (RESUBMISSION_LIMIT + 1,), (1, 1)])
def test_a_loss_that_a_restarted_scheduler_reports_again_is_counted_once(
    seed: int, journal: bool, misses: tuple[int, ...]
) -> None:
    for seconds in (0.06, 0.12, 0.18, 0.24, 0.3, 0.33, 0.36):
        world = World(seed, hosts=[2, 1], journal=journal)
        random = Random(seed)
        needs = [random.sample(range(at), min(at, random.randint(0, 3))) for at in range(40)]
        missing = dict(zip(random.sample(range(40), len(misses)), misses, strict=True))
        plans = [Plan(random.uniform(0.001, 0.03), f"n{at}", misses=missing.get(at, 0)) for at in range(40)]
        taken = {need for each in needs for need in each}
        futures = world.client.graph(plans, needs, [at for at in range(40) if at not in taken])
        world.run(seconds)
        world.restart_scheduler(0.2)
        world.finish(60.0)
        world.check_as_expected(futures)
        world.rest(10.0)


@pytest.mark.parametrize("journal", [False, True])
def test_nodes_and_tasks_whose_object_cannot_be_stored_again(journal: bool) -> None:
    world = World(hosts=[2], journal=journal)
    world.client.can_restore = False
    plans = [Plan(0.01, "a", misses=1), Plan(0.01, "b"), Plan(0.01, "c"), Plan(0.01, "d")]
    first, last, other = world.client.graph(plans, [[], [0], [], [1]], [1, 3, 2])
    lost, apart = world.client.submit(Plan(misses=1), Plan(value="apart"))
    world.finish()
    world.check_as_expected([other, apart])
    assert all(isinstance(future.error, ObjectNotFoundError) for future in (first, last, lost))
    world.rest(10.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_graph_that_rests_is_cancelled(seed: int) -> None:
    world = World(seed, hosts=[2])
    plans = [Plan(0.01, "a"), Plan(0.01, "b", misses=1), Plan(5.0, "long"), Plan(0.01, "c")]
    missing, long, last = world.client.graph(plans, [[], [0], [], [1]], [1, 2, 3])
    world.run(0.5)
    assert world.executions(missing) and missing.status is None and last.status is None
    if seed == 0:
        world.client.cancel(long)
    elif seed == 1:
        world.client.cancel(missing, long, last)
    else:
        world.client.cancel(missing)
    world.finish(60.0)
    world.check_as_expected([last] if seed == 0 else [])
    ended = [(Status.VALUE, Status.CANCELLED), (Status.CANCELLED, Status.CANCELLED), (Status.CANCELLED, Status.VALUE)]
    for future, status in zip((missing, long), ended[seed], strict=True):
        assert future.status == status
    world.rest(10.0)


def test_a_graph_that_comes_before_its_workers() -> None:
    world = World(hosts=[])
    futures = start(world, 1)
    world.run(0.5)
    assert not world.history and world.client.unfinished
    world.add_host(2)
    world.finish()
    world.check_as_expected(futures)
    world.rest()


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_and_hosts_that_are_lost(seed: int) -> None:
    world = World(seed, hosts=[2, 2, 1])
    futures = start(world, seed)
    world.run(0.1)
    world.kill_worker(world.hosts[0])
    world.hosts[1].kill()
    world.finish(60.0)
    world.check_as_expected(futures)
    world.rest(10.0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_cancelling_one_or_all(seed: int, seconds: float) -> None:
    world = World(seed, hosts=[2])
    futures = start(world, seed)
    other = start(world, seed + 10)
    world.run(seconds)
    world.client.cancel(*[future for future in futures if future.outcome() is None])
    pending = [future for future in other if future.outcome() is None]
    world.client.cancel(*pending[:1])
    world.finish()
    assert all(future.outcome() is not None for future in other)
    world.rest()


def test_a_client_that_leaves() -> None:
    world = World(hosts=[2])
    start(world, 5)
    world.run(0.1)
    world.client.leave(world.network.now)
    world.rest(10.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_connections_that_are_cut(seed: int) -> None:
    world = World(seed, hosts=[2])
    futures = start(world, seed)
    for _ in range(3):
        world.run(0.06)
        world.connection(world.client).cut()
    world.finish(60.0)
    world.check_as_expected(futures)
    world.rest(10.0)


# --- chains of cheap nodes ------------------------------------------------------------------------------------------


def start_chains(world: World, seed: int, chains: int = 3, length: int = 60) -> list[WorldFuture]:
    """Chains of cheap nodes that end in one sum, and one of them in a node of its own, too."""
    random = Random(seed)
    needs: list[list[int]] = []
    for _ in range(chains):
        needs += [[len(needs) + at - 1] if at else [] for at in range(length)]
    needs += [[(chain + 1) * length - 1 for chain in range(chains)], [length // 2]]
    plans = [Plan(random.uniform(0.0001, 0.0005), f"n{at}") for at in range(len(needs))]
    return world.client.graph(plans, needs, [len(needs) - 2, len(needs) - 1], size=50)


def moves(world: World, chains: int = 3, length: int = 60) -> int:
    """How often a node of a chain ran elsewhere than the one before it."""
    first = min(execution.task for execution in world.history)
    where = {execution.task - first: (execution.host, execution.worker) for execution in world.history}
    return sum(where[at] != where[at - 1] for at in range(chains * length) if at % length)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_chain_of_cheap_nodes_stays_on_one_worker(seed: int) -> None:
    world = World(seed, hosts=[2, 1])
    futures = start_chains(world, seed)
    world.finish()
    world.check_as_expected(futures)
    assert len(world.history) == 3 * 60 + 2 and moves(world) < 20
    world.rest()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("fault", ["worker", "host", "scheduler", "cut", "cancel", "leave", "two sessions"])
def test_faults_in_the_middle_of_chains(seed: int, fault: str) -> None:
    world = World(seed, hosts=[2, 2])
    futures = start_chains(world, seed)
    world.run(0.006 + 0.004 * seed)
    if fault == "worker":
        world.kill_worker(world.hosts[seed % 2])
    elif fault == "host":
        world.hosts[seed % 2].kill()
    elif fault == "scheduler":
        world.restart_scheduler(0.05 * seed)
    elif fault == "cut":
        world.connection(world.client).cut()
    elif fault == "cancel":
        world.client.cancel(*[future for future in futures if future.outcome() is None][:1])
    elif fault == "leave":
        world.client.leave(world.network.now)
    else:
        futures += start_chains(world, seed + 10)
    world.finish(60.0)
    if fault not in ("cancel", "leave"):
        world.check_as_expected(futures)
    if fault in ("scheduler", "cut"):
        check_nothing_ran_twice(world)
    world.rest(10.0)


@pytest.mark.parametrize("place", [0, 1, 30, 58, 59])
@pytest.mark.parametrize("how", ["raises", "kills_worker"])
def test_a_node_of_a_chain_that_fails_wherever_it_stands(place: int, how: str) -> None:
    world = World(place, hosts=[2])
    warm = start_chains(world, 1)
    world.finish()
    needs = [[at - 1] if at else [] for at in range(60)]
    failing: dict[str, Any] = {how: 9}
    plans = [Plan(0.0002, f"n{at}", **(failing if at == place else {})) for at in range(60)]
    futures = world.client.graph(plans, needs, [59], size=50)
    world.finish(60.0)
    world.check_as_expected(warm + futures)
    world.rest(10.0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("reads", [False, True])
def test_what_storage_loses_once_runs_once_more(seed: int, reads: bool) -> None:
    """At each moment of a graph; with `reads`, results are read at once from then on."""
    for step in range(14):
        world = World(seed, hosts=[2, 1], stored=True)
        random = Random(seed)
        needs = [random.sample(range(at // 6 * 6 - 6, at // 6 * 6), 2) if at >= 6 else [] for at in range(24)]
        plans = [Plan(random.uniform(0.001, 0.03), f"n{at}") for at in range(24)]
        futures = world.client.graph(plans, needs, range(18, 24))
        world.run(0.02 * step)
        world.restart_storage()
        while reads and any(future.status is None for future in futures):
            for future in futures:
                if future.status == Status.VALUE:
                    world.client.read(future)
            world.run(0.01)
        world.finish(60.0)
        for future in futures:
            world.client.read(future)
        world.finish(60.0)
        world.check_as_expected(futures)
        runs = Counter(execution.plan.value for execution in world.history if execution.how == "value")
        assert len(runs) == 24 and max(runs.values()) <= 2, (step, runs)
        world.rest(10.0)
