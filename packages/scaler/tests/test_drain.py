"""`scaler drain`: which agents are meant. With real agents: tests/test_drain.py."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from scaler_launch.drain import DRAIN, NotDrainedError, _DrainedAgents, _ending, chosen
from scaler_protocol.monitoring import EventKind, MonitorStatus
from scaler_ui.model.model import MonitorEvent

STATUS: Final = MonitorStatus(
    1, 1000.0, agents=(11, 12, 13, 14), agent_names=("h:1", "h:2", "k:1", "k:1"), agent_hosts=("h", "h", "k", "k"),
    agent_units=("u1", "", "", "u4"), agent_workers=(1,) * 4,
)  # fmt: skip


@pytest.mark.parametrize(
    ("agents", "hosts", "numbers"),
    [
        (["h:2"], [], {12}),
        (["u1"], [], {11}),
        (["k:1"], [], {13, 14}),
        ([], ["h"], {11, 12}),
        (["u4", "h:1"], ["h"], {11, 12, 14}),
    ],
)
def test_agents_are_named_by_name_unit_or_host(agents: list[str], hosts: list[str], numbers: set[int]) -> None:
    assert chosen(STATUS, agents, hosts).keys() == numbers


@pytest.mark.parametrize(
    ("status", "agents", "hosts", "text"),
    [
        (STATUS, ["h:1", "h:22"], [], r"no agent or unit is called 'h:22'; did you mean h:2\?; nothing was drained"),
        (STATUS, ["wrong"], [], "called 'wrong'; connected: h:1, h:2, k:1, u1, u4; nothing"),
        (STATUS, ["h"], ["node"], "no agent or unit is called 'h'"),
        (STATUS, [], [""], "no host with an agent is called ''; connected: h, k; nothing"),
        (MonitorStatus(1, 1.0), [], ["h"], "no host with an agent is called 'h'; none is connected; nothing"),
    ],
)
def test_an_unknown_name_drains_nobody(status: MonitorStatus, agents: list[str], hosts: list[str], text: str) -> None:
    with pytest.raises(NotDrainedError, match=text):
        chosen(status, agents, hosts)


def test_somebody_must_be_named() -> None:
    with pytest.raises(ValueError, match="name agents, as `scaler status --json` lists them, or hosts with --host"):
        DRAIN.parse(["tcp://127.0.0.1:2345", "--no-wait"], {})
    assert DRAIN.parse(["tcp://127.0.0.1:2345", "--host", "h", "k"], {}).host == ("h", "k")


@pytest.mark.parametrize(
    ("level", "text", "ending", "is_well"),
    [
        (logging.INFO, "agent h:1 is gone: the agent stops", "h:1 has left", True),
        (logging.WARNING, "agent h:11 is gone: killed", "h:1 has left", True),
        (logging.WARNING, "agent h:1 is gone: killed", "h:1 was lost: killed", False),
        (logging.WARNING, "agent h:1 has left 2 objects behind: full", "h:1 has left 2 objects behind: full. ", False),
    ],
)
def test_only_an_agent_that_has_handed_all_over_has_left_well(
    level: int, text: str, ending: str, is_well: bool
) -> None:
    said, well = _ending("h:1", [MonitorEvent(1, 1.0, level, EventKind.AGENT, 0, "h", text)])
    assert (said.startswith(ending), well) == (True, is_well)


def test_the_clock_of_the_scheduler_may_be_set_back_meanwhile() -> None:
    model = SimpleNamespace(status=MonitorStatus(1, 1000.0, uptime=50.0), events=())
    drained = _DrainedAgents(cast(Any, None), cast(Any, SimpleNamespace(model=model)), cast(Any, "address"))
    drained._left = {11: "h:1"}
    assert drained._news(waits=True) == []
    model.status = MonitorStatus(1, 5.0, uptime=51.0)
    assert drained._news(waits=True) == [(11, "h:1 has left", True)]
