"""What pages say about one thing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scaler_protocol.messages import Status
from scaler_protocol.monitoring import EventKind, TaskEvents, TaskStep
from scaler_ui.model import subjects, views
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.graph_looks import GraphLooks
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.subjects import Facts

if TYPE_CHECKING:
    from conftest import Publications


@pytest.fixture
def model(publications: Publications) -> MonitorModel:
    """Task 1 has raised on agent 1, which runs task 2; 3 waits, and is of a function with an odd name."""
    return publications.model_of(
        publications.status(2, at=1000.0, agent_hosts=("red", "blue")),
        publications.groups((9, "m:f", 7, 0, "", ""), (8, "a/b c", 8, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, 1, 2, time=1000.0),
        publications.batch(TaskStep.WAITING, 8, 3, time=1001.0),
        publications.batch(TaskStep.ENDED, 2, 1, statuses=bytes([Status.RAISED]), time=1002.0),
        publications.batch(TaskStep.ASSIGNED, 1, 2, time=1003.0, first_run=501),
        TaskEvents(
            text_numbers=(1, 2),
            text_kinds=(EventKind.WORKER, EventKind.AGENT),
            text_subjects=("blue", "gone"),
            text_times=(1002.0, 1002.0),
            text_levels=(30, 30),
            text_tasks=(0, 0),
            texts=("a worker died", "a host was lost"),
        ),
        publications.status(
            2,
            at=1005.0,
            agent_hosts=("red", "blue"),
            worker_seconds=[2.0, 0.0, 0.0, 0.0],
            graphs=(4,),
            graph_sessions=(7,),
            graph_nodes=(10,),
            graph_succeeded=(5,),
            graph_failed=(0,),
            graph_cancelled=(0,),
            graph_assigned=(3,),
            graph_running=(1,),
            graph_start_times=(1000.0,),
            graph_end_times=(0.0,),
        ),
    )


def told(facts: Facts | None) -> dict[str, tuple[str, str]]:
    assert facts is not None
    return {fact.name: fact.links[0] if fact.links else (fact.text, "") for fact in facts}


def test_a_task_has_links_to_all_that_it_belongs_to(model: MonitorModel) -> None:
    facts = told(subjects.task_facts(model, 1))
    assert facts["state"] == ("raised", "") and facts["duration"] == ("1.5 ms", "")
    assert facts["function"] == ("m:f", "/function/m:f") and facts["client"] == ("Client|a", "/client/Client%7Ca")
    assert facts["host"] == ("blue", "/host/blue") and facts["worker"] == ("vm:2-77", "/worker/vm:2-77")
    facts = told(subjects.task_facts(model, 3))
    assert facts["function"] == ("a/b c", "/function/a%2Fb%20c") and facts["worker"] == ("", "")
    assert facts["graph"] == ("", "")
    model.take(TaskEvents(edge_graphs=(4,), edge_first_tasks=(2,), edge_counts=(0,)), 50.0)
    assert [told(subjects.task_facts(model, task))["graph"] for task in (1, 2)] == [("", ""), ("4", "/graph/4")]
    assert subjects.task_facts(model, 99) is None


def test_a_worker_is_found_by_the_name_of_its_agent(model: MonitorModel) -> None:
    facts = told(subjects.worker_facts(model, "vm:1", 100, 50.0))
    assert facts["state"] == ("running", "") and facts["task"] == ("2", "/task/2") and facts["for"] == ("2.0 s", "")
    assert told(subjects.worker_facts(model, "vm:2", 77, 50.0))["state"] == ("gone", "")
    assert subjects.worker_facts(model, "vm:3", 77, 50.0) is None


def test_hosts_have_their_deaths_and_those_that_are_lost_are_listed(model: MonitorModel) -> None:
    rows = {row["host"]: row for row in subjects.hosts(model, PageRequest(order="host")).rows}
    assert {name: (row["state"], row["workers"], row["busy"], row["deaths"]) for name, row in rows.items()} == {
        "red": ("up", 2, 1, 0),
        "blue": ("up", 2, 0, 1),
        "gone": ("gone", 0, 0, 0),
    }
    assert told(subjects.host_facts(model, "blue"))["tasks"] == ("0", "/tasks?host=blue")
    assert told(subjects.host_facts(model, "gone"))["state"] == ("gone", "") and subjects.host_facts(model, "x") is None
    (row,) = [row for row in subjects.runners(model, "red", PageRequest(order="elapsed")).rows if row["task"]]
    assert (row["task"], row["function"], row["elapsed"], row["worker"]) == ("2", "m:f", "2.0 s", "vm:1-100")


def test_load_and_room_of_hosts_are_shown(publications: Publications) -> None:
    columns: dict[str, Any] = {"agent_disks_free": (2**30, 0), "agent_shared_free": (2**20, 2**33)}
    status = publications.status(2, agent_hosts=("red", "blue"), agent_loads=(0.5, 12.0), **columns)
    model = publications.model_of(status)
    rows = {row["host"]: row for row in subjects.hosts(model, PageRequest(order="load")).rows}
    assert list(rows) == ["blue", "red"]
    assert [(row["load"], row["disk"], row["shared"]) for row in rows.values()] == [
        ("12.00", "", "8.0 GiB"),
        ("0.50", "1.0 GiB", "1.0 MiB"),
    ]
    facts = told(subjects.host_facts(model, "red"))
    assert [facts[name][0] for name in ("load", "free disk", "free shared memory")] == ["0.50", "1.0 GiB", "1.0 MiB"]


def test_hosts_of_clients_and_subjects_of_events_are_links_if_they_have_pages(publications: Publications) -> None:
    event: dict[str, Any] = {
        "text_kinds": (EventKind.WORKER, EventKind.CLIENT, EventKind.CLIENT),
        "text_subjects": ("vm", "a", "an operator"),
        "text_times": (1.0, 2.0, 3.0),
        "text_levels": (20, 20, 20),
        "text_tasks": (0, 0, 0),
        "texts": ("x", "y", "z"),
    }
    names = {"client_sessions": (1, 2), "client_names": ("a", "b"), "client_tasks": (0, 0)}
    status = publications.status(1, client_hosts=("vm", "laptop"), **names)
    model = publications.model_of(status, TaskEvents(text_numbers=(1, 2, 3), **event))
    hosts = {row["name"]: (row["host"], row["machine"]) for row in views.clients(model, PageRequest()).rows}
    assert hosts == {"a": ("vm", "vm"), "b": ("laptop", "")}
    rows = views.events(model, PageRequest(order="time", descending=False)).rows
    assert [(row["host"], row["client"]) for row in rows] == [("vm", ""), ("", "a"), ("", "")]


def test_clients_functions_and_graphs(model: MonitorModel) -> None:
    facts = told(subjects.client_facts(model, "Client|a"))
    assert facts["tasks"] == ("6", "/tasks?client=Client%7Ca") and facts["seen to end"] == ("1", "")
    facts = told(subjects.function_facts(model, "m:f"))
    assert facts["raised"] == ("1", "/tasks?function=m:f&state=raised") and facts["ended"][0] == "1"
    assert told(subjects.function_facts(model, "a/b c"))["ended"] == ("none", "")
    facts = told(subjects.graph_facts(model, GraphLooks(model), 4))
    assert [facts[name][0] for name in ("done", "running", "queued", "waiting")] == ["5", "1", "2", "2"]
    assert subjects.client_facts(model, "x") is None and subjects.function_facts(model, "x") is None
    assert subjects.graph_facts(model, GraphLooks(model), 5) is None and subjects.function_facts(model, "") is None


@pytest.mark.parametrize(
    ("asked", "ids"),
    [
        (PageRequest(function="m:f"), {"1", "2"}),
        (PageRequest(client="(in a task)"), {"3"}),
        (PageRequest(host="blue"), {"1"}),
        (PageRequest(host="red", function="m:f"), {"2"}),
        (PageRequest(function="m:f", state="raised"), {"1"}),
        (PageRequest(function="no:such"), set()),
        (PageRequest(client="nobody"), set()),
        (PageRequest(text="CLIENT|a"), {"1", "2"}),
    ],
)
def test_tasks_are_narrowed_down(model: MonitorModel, asked: PageRequest, ids: set[str]) -> None:
    page = views.tasks(model, asked)
    assert {row["id"] for row in page.rows} == ids and page.total == len(ids)


def test_tasks_of_a_worker(model: MonitorModel) -> None:
    assert [row["id"] for row in views.tasks(model, PageRequest(), ("vm:2", 77)).rows] == ["1"]
    assert views.tasks(model, PageRequest(), ("vm:1", 77)).total == 0
