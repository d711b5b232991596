"""What a worker adapter answers, with real groups that have no scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from scaler_worker.config import COMMAND as CLUSTER
from scaler_worker.config import ClusterConfig
from scaler_worker.managers import adapter as adapters
from scaler_worker.managers.adapter import AdapterOptions, WorkerAdapter
from scaler_worker.managers.adapter_server import command
from support.waiting import wait_until

NOBODY = "ipc:///nowhere/at/all"
ENVIRONMENT = {"SCALER_WORKER_MANAGER_ID": "grid", "SCALER_UNIT_ID": "grid-1"}


def options(*words: str) -> AdapterOptions:
    return command().read([NOBODY, *words], {})


@pytest.fixture
def adapter() -> Iterator[WorkerAdapter]:
    made = WorkerAdapter(options("--max-workers", "4", "-wpu", "2"))
    yield made
    made.stop(force=True)
    wait_until(lambda: not made.groups())


def start(adapter: WorkerAdapter, **metadata: object) -> tuple[int, Any]:
    return adapter.answer({"action": "start_worker_group", "metadata": metadata})


def test_groups_start_up_to_the_maximum_and_are_shut_down(adapter: WorkerAdapter) -> None:
    status, first = start(adapter)
    assert status == 200 and len(first["worker_ids"]) == 2
    status, _ = start(adapter)
    assert status == 200
    status, refused = start(adapter)
    assert (status, refused["error"]) == (429, "all of the 4 workers allowed here are running")
    group = first["worker_group_id"]
    shutdown = {"action": "shutdown_worker_group", "worker_group_id": group, "metadata": {"force": True}}
    assert adapter.answer(shutdown).status == 200
    wait_until(lambda: group not in adapter.groups())
    assert adapter.answer(shutdown) == (404, {"error": f"there is no worker group {group}"})
    assert start(adapter)[0] == 200, "there is room again"


def test_a_repeated_request_starts_nothing_more(adapter: WorkerAdapter) -> None:
    first = start(adapter, request_id="7")
    assert start(adapter, request_id="7") == first and len(adapter.groups()) == 1
    assert start(adapter, request_id="8")[0] == 200
    assert start(adapter, request_id="9")[0] == 429, "a refusal is not remembered"


def test_answers_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "REMEMBERED", 1)
    adapter = WorkerAdapter(options("-mw", "-1"))
    try:
        first = start(adapter, request_id="7")
        start(adapter, request_id="8")
        assert start(adapter, request_id="7") != first
    finally:
        adapter.stop(force=True)
        wait_until(lambda: not adapter.groups())


def test_a_group_is_the_unit_that_the_request_names(adapter: WorkerAdapter) -> None:
    status, answer = start(adapter, environment=ENVIRONMENT)
    assert (status, answer["worker_group_id"]) == (200, "grid-1")
    assert start(adapter, environment=ENVIRONMENT)[0] == 400, "another request for the same unit"
    unit = unit_of(adapter, "grid-1")
    assert (unit.worker_manager_id, unit.unit_id, unit.worker_names) == ("grid", "grid-1", ("grid-1-0", "grid-1-1"))
    info = adapter.answer({"action": "get_worker_adapter_info"}).body
    assert (info["max_worker_groups"], info["workers_per_group"], info["base_capabilities"]) == (2, 2, {})
    assert info["worker_groups"] == [{"worker_group_id": "grid-1", "worker_manager_id": "grid"}]


def unit_of(adapter: WorkerAdapter, group: str) -> ClusterConfig:
    """The command line of a group's agent."""
    words = adapter._command(group)
    return CLUSTER.read(words[words.index("scaler_worker") + 1 :], {})


def test_a_group_of_nobody_is_as_one_started_by_hand(adapter: WorkerAdapter) -> None:
    _, answer = start(adapter)
    unit = unit_of(adapter, answer["worker_group_id"])
    assert (unit.worker_manager_id, unit.unit_id) == ("", "")


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        ([], "the body is no JSON object"),
        ({}, "unknown action None; actions are start_worker_group, shutdown_worker_group, get_worker_adapter_info"),
        ({"action": "dance"}, "unknown action 'dance'"),
        ({"action": "shutdown_worker_group"}, "needs a worker_group_id"),
        ({"action": "start_worker_group", "metadata": 7}, "metadata is no JSON object"),
        (
            {"action": "start_worker_group", "metadata": {"environment": {"SCALER_UNIT_ID": "a b"}}},
            "SCALER_UNIT_ID 'a b' is not",
        ),
        (
            {"action": "start_worker_group", "metadata": {"environment": {"SCALER_UNIT_ID": "--help"}}},
            "SCALER_UNIT_ID '--help' is not",
        ),
        (
            {
                "action": "start_worker_group",
                "metadata": {"environment": {"SCALER_UNIT_ID": "a", "SCALER_WORKER_MANAGER_ID": "--x"}},
            },
            "SCALER_WORKER_MANAGER_ID: '--x' is not an id",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_400(adapter: WorkerAdapter, request_: object, fault: str) -> None:
    status, body = adapter.answer(request_)
    assert status == 400 and fault in str(body["error"]) and adapter.groups() == []


def test_an_error_of_the_adapter_is_500(adapter: WorkerAdapter, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(options: AdapterOptions, unit: str, parent: int) -> list[str]:
        return ["/no/such/program", unit]

    monkeypatch.setattr(adapters, "cluster_command", fail)
    status, body = start(adapter)
    assert status == 500 and "/no/such/program" in body["error"] and adapter.groups() == []
