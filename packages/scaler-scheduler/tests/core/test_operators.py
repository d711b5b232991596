"""Operators: what they may do, and what becomes of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from scaler_io.links.events import PeerJoined, PeerLost
from scaler_protocol import messages
from scaler_protocol.codec import encode
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Hello, Role, Welcome
from scaler_protocol.ids import function_id
from scaler_protocol.messages import Cancel, Status, Withdraw
from scaler_protocol.operations import Drain, Resized
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.state import DRAINED_LIMIT

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FUNCTION = function_id(b"body")
OPERATOR = b"o" * 16


@pytest.fixture
def operated(driver: SchedulerDriver) -> SchedulerDriver:
    hello = Hello(Role.OPERATOR, OPERATOR, 1, name="web")
    assert isinstance(driver.core.admit(hello), Welcome)
    driver.feed(OPERATOR, PeerJoined(hello, False))
    return driver


def test_any_task_can_be_cancelled_and_its_owner_is_told(operated: SchedulerDriver) -> None:
    client, agent = operated.client(), operated.agent()
    running, waiting, kept = operated.submit(client, 3)
    runs = operated.runs(agent)
    assert runs.keys() == {running}
    operated.feed(OPERATOR, Cancel((running, waiting, 12345)))
    assert operated.outcomes(client) == {task: (Status.CANCELLED, b"") for task in (running, waiting)}
    assert [message.runs for message in operated.take(agent, Withdraw)] == [(runs[running],)]
    operated.done(agent, runs, Status.CANCELLED, b"")
    assert operated.outcomes(client) == {} and operated.runs(agent).keys() == {kept}
    assert operated.core.state.event_log.not_found == 1


def test_what_depends_on_a_cancelled_task_shares_its_fate(operated: SchedulerDriver) -> None:
    client = operated.client()
    (task,) = operated.submit(client)
    dependent = messages.Submit(
        (messages.Group(FUNCTION),), (task + 9,), Payloads([b"call"]), dependents=(0,), needs=(task,)
    )
    operated.feed(client, dependent)
    operated.feed(OPERATOR, Cancel((task,)))
    assert {task: status for task, (status, _) in operated.outcomes(client).items()} == {task: 3, task + 9: 3}


def test_a_worker_is_drained_by_its_agent(operated: SchedulerDriver) -> None:
    client, agent = operated.client(), operated.agent(workers=2)
    operated.submit(client, 4)
    assert len(operated.runs(agent)) == 2
    number = operated.core.state.agents[agent].number
    operated.feed(OPERATOR, Drain(number, 77))
    assert operated.take(agent, Drain) == [Drain(number, 77)]
    operated.feed(agent, Resized(0))
    other = operated.agent(b"other", workers=2)
    assert len(operated.runs(other)) == 2 and operated.runs(agent) == {}
    operated.feed(OPERATOR, Drain(99, 1))
    assert operated.logs[-1] == "web wants to drain process 1 of an agent that is gone"


def test_nobody_else_may(operated: SchedulerDriver) -> None:
    client, agent, other = operated.client(), operated.agent(), operated.client(b"d")
    (task,) = operated.submit(client)
    operated.feed(other, Cancel((task,)))
    assert operated.core.state.find(task) is not None
    for peer in (client, agent):
        with pytest.raises(ProtocolError, match="operator"):
            operated.feed(peer, Drain(operated.core.state.agents[agent].number, 1))
    for message in (Resized(1), messages.Submit((messages.Group(FUNCTION),), (1,), Payloads([b""]))):
        with pytest.raises(ProtocolError):
            operated.feed(OPERATOR, message)
    operated.feed(OPERATOR, PeerLost("left"))
    with pytest.raises(ProtocolError):
        operated.feed(OPERATOR, Drain(1, 1))


def test_what_monitors_are_told_can_be_written_whatever_clients_say(operated: SchedulerDriver) -> None:
    """JSON may spell texts that UTF-8 can not write."""
    client, agent = operated.client(), operated.agent()
    operated.submit(client)
    failed = b'{"error": "DeserializeError", "message": "a \\udc80", "details": {}}'
    operated.done(agent, operated.runs(agent), Status.FAILED, failed)  # its monitor is sent the text
    told = operated.core.history(0.0)
    assert list(told.failures) == ["a \\udc80"] and encode(told)


def test_an_agent_that_comes_back_is_told_to_drain_again(operated: SchedulerDriver) -> None:
    agent = operated.agent()
    operated.feed(OPERATOR, Drain(operated.core.state.agents[agent].number, 0))
    assert operated.take(agent, Drain)
    operated.feed(agent, PeerLost("its connection is gone"))
    operated.agent(peer_incarnation=7)  # the order was lost with the connection
    assert operated.take(agent, Drain) == [Drain(operated.core.state.agents[agent].number, 0)]
    operated.feed(agent, messages.Reconcile())
    operated.submit(operated.client())
    assert not operated.runs(agent)
    operated.feed(agent, PeerLost("drained", farewell=True))
    assert not operated.core.state.drained


def test_so_many_drain_orders_are_remembered(operated: SchedulerDriver) -> None:
    for number in range(DRAINED_LIMIT + 2):
        agent = operated.agent(str(number).encode())
        operated.feed(OPERATOR, Drain(operated.core.state.agents[agent].number, 0))
        operated.feed(agent, PeerLost("killed"))
    assert len(operated.core.state.drained) == DRAINED_LIMIT


def test_operators_are_told_what_an_agent_has_left_behind(operated: SchedulerDriver) -> None:
    agent = operated.agent()
    operated.feed(agent, PeerLost("object storage is full", farewell=True, objects_left=2))
    [*_, event] = operated.core.state.event_log.history.events
    assert (event.level, event.text) == (
        logging.WARNING,
        "agent agent has left 2 objects behind: object storage is full",
    )
