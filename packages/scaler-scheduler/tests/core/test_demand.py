"""The demand that scaling policies see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_io.links.events import PeerLost
from scaler_scheduler.core.demand import DemandCounter
from scaler_scheduler.scaling.capacity import Demand

if TYPE_CHECKING:
    from conftest import SchedulerDriver


class Counted:
    def __init__(self, driver: SchedulerDriver) -> None:
        self._driver, self._counter = driver, DemandCounter()

    def __call__(self) -> dict[tuple[str, ...], Demand]:
        state = self._driver.core.state
        found = self._counter.count(state.waiting.lanes(), state.suspects, state.agents.values(), self._driver.now)
        return {tuple(name for name, _ in demand.requirement.capabilities): demand for demand in found}


@pytest.fixture
def demand(driver: SchedulerDriver) -> Counted:
    return Counted(driver)


def test_waiting_tasks_count_by_requirement(driver: SchedulerDriver, demand: Counted) -> None:
    client = driver.client()
    driver.submit(client, 3)
    driver.submit(client, 2, capability_names=("gpu",), capability_values=(-1,))
    counted = demand()
    assert (counted[()].tasks, counted[()].unmeasured, counted[()].seconds) == (3, 3, 0.0)
    assert counted["gpu",].tasks == 2


def test_measured_functions_count_with_their_time(driver: SchedulerDriver, demand: Counted) -> None:
    client, agent = driver.client(), driver.agent()
    driver.submit(client)
    driver.done(agent, driver.runs(agent), seconds=6.0)
    driver.submit(client, 4)
    counted = demand()[()]
    assert (counted.tasks, counted.unmeasured, counted.running) == (3, 0, 1)
    assert counted.seconds == pytest.approx(18.0) and counted.running_seconds == pytest.approx(6.0)
    driver.now += 4.0
    assert demand()[()].running_seconds == pytest.approx(2.0)
    driver.now += 16.0
    assert demand()[()].running_seconds == pytest.approx(10.0), "a run beyond its mean needs half of what has passed"


def test_suspects_without_a_host_count(driver: SchedulerDriver, demand: Counted) -> None:
    """Or no host would be started for a task whose host was lost."""
    driver.submit(driver.client())
    driver.feed(driver.agent(), PeerLost("killed"))
    assert demand()[()].tasks == 1


def test_a_long_lane_is_sampled_and_counted_exactly(driver: SchedulerDriver, demand: Counted) -> None:
    client, agent = driver.client(), driver.agent()
    driver.submit(client)
    driver.done(agent, driver.runs(agent), seconds=2.0)
    tasks = driver.submit(client, 5000)
    counted = demand()[()]
    assert counted.tasks + counted.running == len(tasks)
    assert counted.seconds == pytest.approx(2.0 * counted.tasks)


def test_tasks_that_ended_or_wait_for_nested_ones_do_not_count(driver: SchedulerDriver, demand: Counted) -> None:
    client, agent = driver.client(), driver.agent()
    driver.submit(client)
    runs = driver.runs(agent)
    driver.core.state.agents[agent].blocked.update(runs.values())
    assert demand() == {}
    driver.core.state.agents[agent].blocked.clear()
    driver.done(agent, runs)
    assert demand() == {}
