"""Scaling policies over recorded and adversarial loads, in virtual time."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from scaler_scheduler.scaling.capacity import CapacitySnapshot, ScalingPolicy, Target
from scaler_scheduler.scaling.policies import POLICIES, waterfall
from scaler_scheduler.scaling.rules import parse_rules
from support.fleet_loads import CPU, GPU, ON_GPU, LoadCase, at_once, cases, takes
from support.fleet_table import outcomes, table
from support.virtual_fleet import Arrival, Provider, VirtualFleet

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
COOLDOWN = 30.0
CASES = cases()
FOLLOWING = ("vanilla", "capability")
every_load = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def named(name: str) -> Callable[[], ScalingPolicy]:
    """What makes the policy of this name."""
    return lambda: POLICIES[name]("", COOLDOWN)


@pytest.mark.parametrize("policy", FOLLOWING)
@pytest.mark.parametrize("startup", [0.0, 0.5, 2.0, 10.0, 60.0])
def test_fifteen_tasks_of_six_seconds_take_fourteen_and_one_start(policy: str, startup: float) -> None:
    provider = Provider(maximum=10, startup=lambda _: startup)
    outcome = VirtualFleet(at_once(15, 6.0), [provider], named(policy)()).run()
    assert outcome.done <= 14 + startup
    assert outcome.starts == 10


@every_load
@pytest.mark.parametrize("policy", FOLLOWING)
def test_no_load_makes_a_fleet_oscillate(case: LoadCase, policy: str) -> None:
    outcome = VirtualFleet(case.load, case.providers, named(policy)()).run()
    assert outcome.rest == 0
    assert outcome.turns <= 3
    assert outcome.starts == outcome.stops


@every_load
def test_it_is_about_as_fast_as_dask_and_the_oracle(case: LoadCase) -> None:
    oracle, ours, dask = outcomes(case, named("capability"))
    assert ours.done <= 1.1 * dask.done + 1
    assert ours.done <= 1.25 * oracle.done + 12 + 1.1 * case.startup or case.name.startswith("one of two providers")


def test_a_constant_load_keeps_its_workers() -> None:
    constant = [case for case in CASES if case.name.startswith("constant")]
    assert len(constant) == 2
    for case in constant:
        outcome = VirtualFleet(case.load, case.providers, named("vanilla")()).run()
        assert outcome.turns == 1
        assert outcome.starts <= 24  # 8 workers' worth of work that varies, and what has piled up during the start


def test_a_failing_provider_is_passed_over() -> None:
    failing = Provider("failing", 20, startup=takes(2), fails=(0.0, 10_000.0))
    alone = VirtualFleet(at_once(500, 2.0), [Provider("sound", 20, startup=takes(2))], named("vanilla")()).run()
    both = [failing, Provider("sound", 20, startup=takes(2))]
    assert VirtualFleet(at_once(500, 2.0), both, named("vanilla")()).run().done <= alone.done + 1


def test_a_waterfall_uses_the_next_manager_only_when_the_first_is_full() -> None:
    rules = parse_rules("1,own\n2,cloud")
    providers = [Provider("cloud", 40, startup=takes(5)), Provider("own", 8, startup=takes(1))]
    small = _Recorder(waterfall(rules, COOLDOWN))
    VirtualFleet(at_once(8, 6.0), providers, small).run()
    assert small.most == {"cloud": 0, "own": 8}
    big = _Recorder(waterfall(rules, COOLDOWN))
    VirtualFleet(at_once(400, 6.0), providers, big).run()
    assert big.most == {"cloud": 40, "own": 8}


def test_a_task_that_only_another_unit_can_run_starts_one_on_a_full_manager() -> None:
    provider = Provider(maximum=4, classes=(CPU, GPU), startup=takes(1))
    load = [*at_once(1000, 1.0), Arrival(20.0, 1.0, "special", ON_GPU)]
    recorder = _Recorder(POLICIES["capability"]("", COOLDOWN))
    outcome = VirtualFleet(load, [provider], recorder).run()
    assert {(4, 0), (3, 0), (3, 1)} <= recorder.offers
    assert outcome.done < 300


class _Recorder:
    """A policy that remembers what another one asked for."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self._policy = policy
        self.most: dict[str, int] = {}
        self.offers: set[tuple[int, ...]] = set()

    def decide(self, snapshot: CapacitySnapshot, now: float) -> list[Target]:
        targets = list(self._policy.decide(snapshot, now))
        for target in targets:
            assert target.workers is not None
            self.most[target.manager] = max(self.most.get(target.manager, 0), sum(target.workers))
            self.offers.add(target.workers)
        return targets


def test_the_document_has_the_table() -> None:
    computed = list(table(CASES, named("capability")))
    lines = PAGE.read_text("utf-8").splitlines()
    first = lines.index(computed[0])
    shown = lines[first : first + len(computed)]
    for line, now in zip(shown, computed, strict=True):
        assert line.split("|")[1] == now.split("|")[1]
        assert _figures(line) == pytest.approx(_figures(now), rel=0.05, abs=1), "copy what bench/scaling.py prints"


def _figures(row: str) -> list[float]:
    """The numbers of a row, without those in the name of the load."""
    cells = " ".join(row.split("|")[2:])
    return [float(number.replace(",", "")) for number in re.findall(r"[\d.,]*\d", cells)]
