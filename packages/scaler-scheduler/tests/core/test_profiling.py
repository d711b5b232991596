"""Profiles: who may ask, what all agents are told, how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_io.links.events import PeerJoined, PeerLost
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.operations import ProfilePart, TakeProfile
from scaler_scheduler.core.profiling import PATIENCE_SECONDS, SHARE, STACK_BYTES

if TYPE_CHECKING:
    from conftest import SchedulerDriver

OPERATOR, OTHER = b"o" * 16, b"p" * 16
ASKED = TakeProfile(5, "jobs:price", 30.0)


@pytest.fixture
def operated(driver: SchedulerDriver) -> SchedulerDriver:
    for peer, name in ((OPERATOR, "ann"), (OTHER, "bob")):
        driver.feed(peer, PeerJoined(Hello(Role.OPERATOR, peer, 1, name=name), False))
    return driver


def number(driver: SchedulerDriver, agent: bytes) -> int:
    """What the agent was asked for."""
    [asked] = driver.take(agent, TakeProfile)
    assert (asked.function, asked.seconds) == ("jobs:price", 30.0)
    return asked.request


def test_answers_of_all_agents_are_passed_on(operated: SchedulerDriver) -> None:
    agents = operated.agent(b"first"), operated.agent(b"second", workers=4)
    operated.feed(OPERATOR, ASKED)
    assert operated.logs[-1] == "ann takes a profile of jobs:price for 30 s"
    requests = [number(operated, agent) for agent in agents]
    for agent, request, workers in zip(agents, requests, (1, 4), strict=True):
        operated.feed(agent, ProfilePart(request, ["jobs:price;f"], [7], workers))
        operated.feed(agent, ProfilePart(request, ["again"], [7], workers))
    assert operated.take(OPERATOR, ProfilePart) == [
        ProfilePart(5, ("jobs:price;f",), (7,), 1, left=1),
        ProfilePart(5, ("jobs:price;f",), (7,), 4, left=0),
    ]
    operated.feed(OTHER, ASKED)
    assert [number(operated, agent) for agent in agents] == [requests[0] + 1] * 2


def test_a_second_one_is_told_when_to_ask_again(operated: SchedulerDriver) -> None:
    operated.agent()
    operated.feed(OPERATOR, ASKED)
    operated.later(18.0)
    operated.feed(OTHER, TakeProfile(6, "", 1.0))
    problem = "ann takes a profile of jobs:price now: ask again in 12 s"
    assert operated.take(OTHER, ProfilePart) == [ProfilePart(6, problem=problem)]


def test_without_workers_there_is_no_profile(operated: SchedulerDriver) -> None:
    operated.feed(OPERATOR, ASKED)
    assert operated.take(OPERATOR, ProfilePart) == [ProfilePart(5, problem="no workers are connected")]


def test_nobody_else_may(operated: SchedulerDriver) -> None:
    client, agent = operated.client(), operated.agent()
    for peer in (client, agent):
        with pytest.raises(ProtocolError, match="only an operator may take a profile"):
            operated.feed(peer, ASKED)
    with pytest.raises(ProtocolError):
        operated.feed(client, ProfilePart(1))
    operated.feed(agent, ProfilePart(1, ["f"], [1], 1))  # nobody has asked
    assert operated.take(OPERATOR, ProfilePart) == []


def test_agents_that_leave_or_are_silent_are_not_waited_for(operated: SchedulerDriver) -> None:
    agents = operated.agent(b"first"), operated.agent(b"second")
    operated.feed(OPERATOR, ASKED)
    operated.feed(agents[0], PeerLost("gone"))
    assert operated.take(OPERATOR, ProfilePart) == []
    operated.feed(agents[1], PeerLost("gone"))
    [end] = operated.take(OPERATOR, ProfilePart)
    assert end == ProfilePart(5, problem="the last host left before it had answered")
    operated.agent(b"third")
    operated.feed(OPERATOR, ASKED)
    due = operated.core.due()
    assert due is not None and due <= operated.now + 30 + PATIENCE_SECONDS
    operated.later(30 + PATIENCE_SECONDS)
    assert operated.take(OPERATOR, ProfilePart) == [ProfilePart(5, problem="1 host did not answer")]


def test_an_operator_that_leaves_makes_room_for_another(operated: SchedulerDriver) -> None:
    agent = operated.agent()
    operated.feed(OPERATOR, ASKED)
    late = number(operated, agent)
    operated.feed(OPERATOR, PeerLost("gone"))
    operated.feed(OTHER, ASKED)
    operated.feed(agent, ProfilePart(late, ["old"], [1], 1), ProfilePart(number(operated, agent), ["new"], [1], 1))
    assert [part.stacks for part in operated.take(OTHER, ProfilePart)] == [("new",)]


def test_agents_share_the_room_and_one_that_takes_more_is_refused(operated: SchedulerDriver) -> None:
    agents = [operated.agent(f"agent {each}".encode()) for each in range(100)]
    operated.feed(OPERATOR, ASKED)
    [asked] = operated.take(agents[0], TakeProfile)
    assert asked.limit == STACK_BYTES // 100 < SHARE[1]
    with pytest.raises(ProtocolError, match="the stacks of a profile have more than"):
        operated.feed(agents[0], ProfilePart(asked.request, ["f" * 8000] * 60, [1] * 60, 1))
    assert operated.take(OPERATOR, ProfilePart) == []
