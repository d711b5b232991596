"""The public API: what users see of each class, docstrings, examples that run, and docs/api.md."""

from __future__ import annotations

import builtins
import concurrent.futures
import doctest
import graphlib
import inspect
import runpy
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import scaler
from scaler import Client, ObjectReference, ScalerFuture, SchedulerClusterCombo, Serializer, current_task
from scaler_client.api.client_session import ClientSession
from scaler_client.api.connected_workers import ConnectedWorkers, WorkerHost
from scaler_client.api.executor import ClientExecutor
from scaler_client.api.optioned_calls import OptionedCalls
from scaler_client.dask import dask_scheduler
from scaler_client.futures.results import ProfilingInfo
from scaler_client.task_context import CurrentTask
from scaler_protocol import errors
from support.clusters import LocalCluster

ROOT = Path(__file__).resolve().parent.parent
PUBLIC: dict[type, str] = {
    Client: "address clear dashboard_link disconnect executor get identity imap imap_unordered map name options"
    " restart_workers run send_object session shutdown starmap submit submit_verbose upload wait_for_workers workers",
    ScalerFuture: "add_done_callback cancel cancelled done exception profiling_info remove_done_callback result retry"
    " running set_exception set_result set_running_or_notify_cancel task_id",
    ObjectReference: "name object_id release size value",
    Serializer: "deserialize serialize",
    SchedulerClusterCombo: "dashboard_link get_address scale shutdown",
    ClientSession: "end future futures name publish",
    ConnectedWorkers: "count hosts",
    WorkerHost: "capabilities host manager workers",
    ClientExecutor: "map shutdown submit",
    OptionedCalls: "imap imap_unordered map starmap submit",
    ProfilingInfo: "attempt cpu_time_s duration_s duration_us fetch_time_s memory_peak peak_memory store_time_s worker",
    CurrentTask: "attempt id worker",
}
"""What does not begin with an underscore, of each class that users hold instances of or derive from."""
INHERITED = {"ClientExecutor.map"}
FUNCTIONS: list[Callable[..., Any]] = [current_task, dask_scheduler]
NAMES: dict[str, Any] = {value.__name__: value for value in PUBLIC} | {value.__name__: value for value in FUNCTIONS}
TOOL = runpy.run_path(str(ROOT / "tools" / "api.py"))


def documented() -> Iterator[tuple[str, Any]]:
    """All public objects by name."""
    yield from NAMES.items()
    for kind, names in PUBLIC.items():
        for name in names.split():
            member = inspect.getattr_static(kind, name, None)
            if f"{kind.__name__}.{name}" not in INHERITED and (inspect.isroutine(member) or type(member) is property):
                yield f"{kind.__name__}.{name}", member


DOCUMENTED = dict(documented())
EXAMPLES = {
    name: test
    for name, value in DOCUMENTED.items()
    for test in doctest.DocTestFinder(recurse=False).find(value, name)
    if test.examples
}


def tables(name: str) -> dict[str, dict[str, str]]:
    """The sections Args, Attributes and Raises of a docstring, each as texts by names."""
    found: dict[str, dict[str, str]] = TOOL["Described"](inspect.getdoc(DOCUMENTED[name])).tables
    return found


def named(section: dict[str, str]) -> list[str]:
    """All names of a section."""
    return [name for names in section for name in names.split(", ")]


def public(names: Iterable[str]) -> str:
    """Those that a user is meant to see, as in PUBLIC."""
    return " ".join(sorted(name for name in names if not name.startswith("_")))


def test_users_see_documented_names_only(client: Client, cluster: LocalCluster) -> None:
    future = client.submit(abs, -1)
    assert future.result() == 1
    for value in (
        *(client, future, client.send_object(1), cluster.combo, client.executor(), future.profiling_info()),
        *(client.workers(), *client.workers().hosts),
        *client.get({"a": (abs, -1), "b": 1}, ["a", "b"], block=False).values(),
    ):
        assert public(dir(value)) == PUBLIC[type(value)]
    assert public(client.submit(lambda: dir(current_task())).result()) == PUBLIC[CurrentTask]
    assert public(dir(Serializer)) == PUBLIC[Serializer]
    assert NAMES.keys() >= {*scaler.__all__} - {"__version__"}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_it_has_a_docstring_and_an_example(name: str) -> None:
    text = inspect.getdoc(DOCUMENTED[name])
    assert text is not None and len(text.split()) >= 3 and name in EXAMPLES


@pytest.mark.parametrize("kind", PUBLIC)
def test_its_attributes_are_described(kind: type) -> None:
    members = {name.partition(".")[2] for name in [*DOCUMENTED, *INHERITED] if name.startswith(f"{kind.__name__}.")}
    attributes = named(tables(kind.__name__).get("Attributes", {}))
    assert sorted([*attributes, *members]) == PUBLIC[kind].split()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_its_parameters_and_errors_are_described(name: str) -> None:
    value, described = DOCUMENTED[name], tables(name)
    function = value.__func__ if isinstance(value, staticmethod) else value
    if inspect.isfunction(function) or function in (Client, SchedulerClusterCombo):
        parameters = [each for each in inspect.signature(function).parameters if each != "self"]
        assert sorted(named(described.get("Args", {}))) == sorted(parameters)
    for error in named(described.get("Raises", {})):
        *_, last = error.split(".")
        places = (errors, builtins, concurrent.futures, graphlib)
        assert any(issubclass(getattr(place, last, type), Exception) for place in places), error


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_example_runs(name: str, client: Client, cluster: LocalCluster) -> None:
    test = EXAMPLES[name]
    test.globs = {**NAMES, "client": client, "cluster": cluster.combo, "address": cluster.address}
    told: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=told.append)
    assert failed == 0, "".join(told)


def test_the_reference_is_generated_from_the_docstrings() -> None:
    assert set(TOOL["GUIDES"]) == set(NAMES.values())
    assert TOOL["PAGE"].read_text("utf-8") == TOOL["page"](), "docs/api.md is not what `make api` writes"
