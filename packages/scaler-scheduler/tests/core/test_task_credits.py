"""How many tasks each client may have unfinished."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_io.links.events import PeerLost
from scaler_protocol.handshake import Hello, Role, Welcome
from scaler_protocol.messages import TaskCredit
from scaler_protocol.operations import Resized
from scaler_scheduler.core.config import SchedulerConfig

if TYPE_CHECKING:
    from conftest import SchedulerDriver


def limit(driver: SchedulerDriver, tasks: int) -> None:
    """Limit the tasks that wait."""
    driver.config = SchedulerConfig(max_number_of_tasks_waiting=tasks)
    driver.__post_init__()


def welcomed(driver: SchedulerDriver, name: bytes) -> int:
    """The credit in the Welcome of a client, which then joins."""
    answer = driver.core.admit(Hello(Role.CLIENT, name.ljust(16, b"."), 1, session=name[0]))
    driver.client(name)
    assert isinstance(answer, Welcome)
    return answer.task_credit


def told(driver: SchedulerDriver, client: bytes) -> list[int]:
    """The credits in the messages to a client."""
    return [message.tasks for message in driver.take(client, TaskCredit)]


def test_without_a_limit_no_client_has_a_credit(driver: SchedulerDriver) -> None:
    limit(driver, -1)
    assert welcomed(driver, b"one") == 0
    driver.agent(workers=3)
    driver.client(b"two")
    assert told(driver, b"one".ljust(16, b".")) == []


def test_each_client_has_the_workers_and_an_equal_share_of_the_limit(driver: SchedulerDriver) -> None:
    limit(driver, 100)
    first, agent = driver.client(b"first"), driver.agent(workers=8)
    assert told(driver, first) == [108]
    assert welcomed(driver, b"second") == 58
    second = b"second".ljust(16, b".")
    assert (told(driver, first), told(driver, second)) == ([58], [58])
    driver.feed(agent, Resized(2))
    assert (told(driver, first), told(driver, second)) == ([52], [52])
    driver.feed(second, PeerLost("goodbye"))
    driver.feed(agent, PeerLost("goodbye", farewell=True))
    assert told(driver, first) == [102, 100]


@pytest.mark.parametrize("tasks", [0, 1, 2])
def test_every_client_may_submit_something(driver: SchedulerDriver, tasks: int) -> None:
    limit(driver, tasks)
    clients = [driver.client(bytes([ord("a") + at])) for at in range(3)]
    assert welcomed(driver, b"z") == 1
    assert told(driver, clients[2])[-1:] in ([], [1])


def test_what_exceeds_the_credit_is_taken(driver: SchedulerDriver) -> None:
    limit(driver, 5)
    client = driver.client()
    driver.submit(client, 9)
    assert driver.outcomes(client) == {} and driver.core.state.waiting.count == 9
