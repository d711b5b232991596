"""Clients that ask for the workers, or wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_io.links.events import PeerLost
from scaler_protocol.capacity import ListWorkers, WorkerList
from scaler_protocol.errors import ProtocolError

if TYPE_CHECKING:
    from conftest import SchedulerDriver


def test_a_client_is_told_the_workers_at_once(driver: SchedulerDriver) -> None:
    client = driver.client()
    driver.agent(b"one", workers=2, capabilities=("gpu",))
    driver.agent(b"two", workers=3, manager="grid", unit="u")
    driver.feed(client, ListWorkers(7))
    assert driver.take(client, WorkerList) == [WorkerList(7, ("one", "two"), (2, 3), ("gpu", ""), ("", "grid"))]


def test_a_client_waits_for_workers(driver: SchedulerDriver) -> None:
    client = driver.client()
    driver.agent(b"one", workers=2)
    driver.feed(client, ListWorkers(7, 4), ListWorkers(8, 2))
    assert [answer.request for answer in driver.take(client, WorkerList)] == [8]
    driver.agent(b"two", workers=2)
    assert [answer.request for answer in driver.take(client, WorkerList)] == [7]


def test_only_clients_ask_and_those_that_left_are_forgotten(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    with pytest.raises(ProtocolError, match="only a client"):
        driver.feed(agent, ListWorkers(1))
    driver.feed(client, ListWorkers(1, 100))
    driver.feed(client, PeerLost("gone"))
    driver.agent(b"big", workers=200)
    assert driver.take(client, WorkerList) == []
