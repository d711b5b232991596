"""`scaler status` and `scaler wait`: what they show of a MonitorStatus."""

from __future__ import annotations

from typing import Final

from scaler_io.service.metrics import families
from scaler_launch.status import as_text, summary
from scaler_protocol.messages import WorkerState
from scaler_protocol.monitoring import MonitorStatus
from scaler_ui.model import cluster_views, subjects, text_view, views
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.findings import findings
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.tables import fields

STATUS: Final = MonitorStatus(
    1, 1000.0, "tcp://h:1", uptime=5.0, agents=(1, 2, 3), agent_names=("a", "b", "c"), agent_hosts=("h", "h", "k"),
    agent_workers=(2, 0, 8), agent_capabilities=("", "", "gpu=1"), agent_managers=("grid", "grid", ""),
    agent_units=("u1", "u2", ""), agent_draining=(False, True, False),
    agent_loads=(0.0,) * 3, agent_disks_free=(0,) * 3, agent_shared_free=(0,) * 3,
)  # fmt: skip


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


NESTED: Final = MonitorStatus(
    1, 1000.0, "tcp://h:1", waiting=3, held=1, assigned=6, sessions=3,
    client_sessions=(1, 2, 3), client_names=("ann@h", "", ""), client_hosts=("h", "", ""), client_tasks=(6, 2, 2),
    agents=(1,), agent_names=("a",), agent_hosts=("h",), agent_workers=(2,), agent_queue_sizes=(10,),
    agent_capabilities=("",), agent_runtimes=("",), agent_cpus=(0.1,), agent_rsses=(7,), agent_free=(2**33,),
    agent_assigned=(6,), agent_queued=(2,), agent_round_trips=(0.001,), agent_status_ages=(0.1,), agent_managers=("",),
    agent_units=("",), agent_draining=(False,), agent_loads=(2.0,), agent_disks_free=(0,), agent_shared_free=(0,),
    worker_agents=(1,) * 5, worker_names=("0", "1", "2", "3", "4"), worker_pids=(10, 11, 12, 13, 14),
    worker_states=(*[WorkerState.BLOCKED] * 2, *[WorkerState.RUNNING] * 2, WorkerState.IDLE),
    worker_runs=(1, 2, 3, 4, 0), worker_cpus=(0.0,) * 5, worker_rsses=(9,) * 5, worker_queues=(0,) * 5,
    worker_seconds=(1.0,) * 5,
)  # fmt: skip
"""Two workers whose two tasks wait for tasks of theirs: two others run in their place, two are queued."""


def test_every_view_counts_workers_tasks_and_clients_alike_while_tasks_nest() -> None:
    model = MonitorModel()
    model.take(NESTED, 0.0)
    sentence = "2 of 2 workers busy, 2 blocked parents, 2 queued on hosts, 3 waiting, 1 held."
    assert findings(model, 0.0)[0].text == sentence

    figures = views.figures(model)
    names = ("workers", "clients", "waiting", "held", "queued", "running")
    assert [figures[name] for name in names] == ["2", "1", "3", "1", "2", "4"]
    (host,) = subjects.hosts(model, PageRequest()).rows
    (offer,) = cluster_views.capacity(model, PageRequest()).rows
    assert [(row["workers"], row["busy"]) for row in (host, offer)] == [(2, 2), (2, 2)]
    facts = {fact.name: fact.text for fact in subjects.host_facts(model, "h") or []}
    assert (facts["workers"], facts["busy"]) == ("2", "2")

    shown = fields(model, 0.0)
    assert [shown["total"][name] for name in ("workers", "busy", "processes")] == [2, 2, 5]
    assert text_view.total(shown, 5, 80).startswith("Total 2 worker(s), 5 processes of 1 agent(s): cpu ")
    assert [shown["task_manager"][name] for name in ("waiting", "held", "queued", "running")] == [3, 1, 2, 4]

    metrics = [sample for family in families(NESTED, None) for sample in family.samples]
    samples = {(each.name, *each.labels.values()): each.value for each in metrics}
    assert [samples["scaler_workers", state] for state in ("busy", "idle")] == [2, 0]
    assert sum(value for (name, *_), value in samples.items() if name == "scaler_worker_processes") == 5
    assert [samples["scaler_tasks", state] for state in ("waiting", "held", "queued", "running")] == [3, 1, 2, 4]
    assert samples["scaler_clients",] == 1

    lines = as_text(summary(NESTED)).splitlines()
    assert lines[1] == "clients   1"
    assert lines[2].startswith("tasks     3 waiting, 1 held, 2 queued, 4 running, ") and lines[3] == "workers   2"
