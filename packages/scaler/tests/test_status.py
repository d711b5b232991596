"""`scaler status` and `scaler wait`: what they show of a MonitorStatus."""

from __future__ import annotations

from typing import Final

from scaler_launch.status import as_text, summary, workers
from scaler_protocol.monitoring import MonitorStatus

STATUS: Final = MonitorStatus(
    1, 1000.0, "tcp://h:1", uptime=5.0, agents=(1, 2, 3), agent_names=("a", "b", "c"), agent_hosts=("h", "h", "k"),
    agent_workers=(2, 0, 8), agent_capabilities=("", "", "gpu=1"), agent_managers=("grid", "grid", ""),
    agent_units=("u1", "u2", ""), agent_draining=(False, True, False),
    agent_loads=(0.0,) * 3, agent_disks_free=(0,) * 3, agent_shared_free=(0,) * 3,
)  # fmt: skip


def test_workers_of_draining_agents_do_not_count() -> None:
    assert workers(STATUS) == 10


def test_workers_and_units_are_listed_by_host() -> None:
    assert summary(STATUS)["workers"] == [
        {
            "host": "h", "manager": "grid", "capabilities": "", "workers": 2, "draining": 1,
            "agents": ["a", "b"], "units": ["u1", "u2"],
        },
        {
            "host": "k", "manager": "", "capabilities": "gpu=1", "workers": 8, "draining": 0,
            "agents": ["c"], "units": [],
        },
    ]  # fmt: skip


def test_the_text_names_hosts_managers_and_draining_agents() -> None:
    lines = as_text(summary(STATUS)).splitlines()
    assert lines[3:] == ["workers   10", "      2 on h (grid, 1 agent drains)", "      8 on k (started by hand) gpu=1"]
