"""Dispatch: log texts about tasks that no worker can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scaler_io.links.events import PeerLost
from scaler_scheduler.core.queue import REPORTED_LIMIT

if TYPE_CHECKING:
    from conftest import SchedulerDriver

GPU: dict[str, Any] = {"capability_names": ("gpu",), "capability_values": (-1,)}


def warnings(driver: SchedulerDriver) -> list[str]:
    """New log texts about capabilities that no worker offers."""
    said = [text for text in driver.logs if "no connected worker offers" in text]
    driver.logs.clear()
    return said


def test_it_is_said_again_when_the_agent_that_offered_it_has_left(driver: SchedulerDriver) -> None:
    client, _ = driver.client(), driver.agent(b"plain")
    driver.submit(client, **GPU)
    assert len(warnings(driver)) == 1
    driver.submit(client, **GPU)
    assert not warnings(driver)
    able = driver.agent(b"able", capabilities=["gpu"])
    while runs := driver.runs(able):
        driver.done(able, runs)
    driver.feed(able, PeerLost("gone", True))
    assert not warnings(driver), "nothing waits for it"
    driver.submit(client, **GPU)
    assert len(warnings(driver)) == 1


def test_it_is_said_when_tasks_wait_already(driver: SchedulerDriver) -> None:
    client = driver.client()
    driver.submit(client, **GPU)
    assert not warnings(driver), "no worker is connected at all"
    driver.agent(b"plain")
    assert len(warnings(driver)) == 1
    able = driver.agent(b"able", capabilities=["gpu"])
    driver.feed(able, PeerLost("gone", True))
    assert len(warnings(driver)) == 1, "its run waits again"


def test_it_is_said_to_everybody_but_not_without_end(driver: SchedulerDriver) -> None:
    client, _ = driver.client(), driver.agent(b"plain")
    for number in range(3 * REPORTED_LIMIT):
        driver.submit(client, capability_names=(f"c{number}",), capability_values=(-1,))
    assert len(warnings(driver)) == REPORTED_LIMIT
    driver.feed(client, PeerLost("left"))
    assert not driver.core.state.waiting._reported
    driver.submit(driver.client(b"other"), **GPU)
    assert len(warnings(driver)) == 1
