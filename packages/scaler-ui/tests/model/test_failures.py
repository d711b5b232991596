"""Failures grouped by function and type of exception."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from scaler_protocol.messages import Status
from scaler_protocol.monitoring import EventKind, MonitorHistory, TaskEvents, TaskStep
from scaler_protocol.profiles import NO_PROFILE, Profile
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.failed_task import FAILURES, NO_RESULT, UNKNOWN_TYPE
from scaler_ui.model.failures import failed_tasks, failure_groups, failures_of
from scaler_ui.model.findings import findings, sentence
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.overview import last_failures
from scaler_ui.model.subjects import failure_facts

if TYPE_CHECKING:
    from conftest import Publications

PLAIN = Profile(5000, 10, 20, 30, 2, 1).packed()
HEAD = "Traceback (most recent call last):\n"
TEXTS = (
    f'{HEAD}  File "a.py", line 3, in train\n    raise ValueError\nValueError: no\nsecond line',
    f'{HEAD}  File "a.py", line 4, in train\n    load()\nmine.errors.Gone: a: b',
    f'{HEAD}  File "b.py", line 5, in train\n    raise ValueError\nValueError: other',
    "the worker died of SIGKILL: 3 times",
)


@pytest.fixture
def model(publications: Publications) -> MonitorModel:
    ends = (Status.RAISED, Status.RAISED, Status.RAISED, Status.FAILED)
    return publications.model_of(
        publications.status(1, at=1000.0),
        publications.groups((9, "m:train", 7, 0, "", ""), (8, "m:load", 8, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, 1, 2, 3),
        publications.batch(TaskStep.WAITING, 8, 4),
        *(
            publications.batch(
                TaskStep.ENDED,
                1,
                task,
                statuses=bytes([status]),
                time=1000.0 + task,
                text_numbers=(task,),
                text_times=(1000.0 + task,),
                text_levels=(40,),
                text_kinds=(EventKind.FAILURE,),
                text_tasks=(task,),
                text_subjects=("",),
                texts=(text,),
            )
            for task, (status, text) in enumerate(zip(ends, TEXTS, strict=True), 1)
        ),
    )


def test_groups_have_counts_and_times(model: MonitorModel) -> None:
    assert [(row["id"], row["error"]) for row in last_failures(model, PageRequest()).rows] == [
        ("4", TEXTS[3]),
        ("3", "ValueError: other (and 1 more)"),
        ("2", "mine.errors.Gone: a: b"),
    ]
    rows = failure_groups(model, PageRequest(order="count")).rows
    assert [(row["function"], row["exception"], row["count"]) for row in rows] == [
        ("m:train", "ValueError", 2),
        ("m:train", "mine.errors.Gone", 1),
        ("m:load", NO_RESULT, 1),
    ]
    assert (rows[0]["first"], rows[0]["last"], rows[0]["message"]) == (1001.0, 1003.0, "ValueError: other")
    assert rows[2]["message"] == TEXTS[3]


def test_a_failure_without_a_type_is_of_an_unknown_type(model: MonitorModel) -> None:
    failure = replace(model.failures[1], text="the error is too long for monitors: the client has it")
    assert (failure.exception, replace(failure, text="").exception) == (UNKNOWN_TYPE, UNKNOWN_TYPE)


def test_a_flood_of_one_kind_displaces_no_other(model: MonitorModel) -> None:
    first = model.failures[4]
    for task in range(100, 100 + 2 * FAILURES):
        model.failures.add((replace(model.failures[1 if task == 100 else task - 1], task=task),))
    assert len(model.failures) == FAILURES and model.failures[4] == first and 1 not in model.failures
    kinds = Counter(failure.kind for failure in model.failures.values())
    assert all(model.failures.count(kind) == count for kind, count in kinds.items()) and len(kinds) == 3
    assert [row["id"] for row in last_failures(model, PageRequest()).rows][1:] == ["4", "2"]


def test_a_flood_of_failures_is_counted_as_at_least_so_many(model: MonitorModel) -> None:
    assert model.status is not None
    assert " 3 tasks of m:train raised lately." in sentence(findings(model, 50.0))
    for task in range(100, 100 + FAILURES):
        model.failures.add((replace(model.failures[1 if task == 100 else task - 1], task=task),))
    assert f"At least {FAILURES - 1:,} tasks of m:train raised lately." in sentence(findings(model, 50.0))
    model.failures.displaced["m:train"] = model.status.at - 601.0
    assert "At least" not in sentence(findings(model, 50.0))


def test_who_comes_after_a_flood_counts_at_least_what_the_scheduler_remembers(publications: Publications) -> None:
    history = MonitorHistory(
        failure_numbers=(1, 2), failure_times=(990.0, 991.0), failure_tasks=(1, 2), failure_functions=("f", "g"),
        failure_sessions=(7, 7), failure_clients=("c", "c"), failure_agents=(1, 1), failure_agent_names=("a", "a"),
        failure_statuses=(Status.RAISED, Status.RAISED), failure_profiles=2 * PLAIN, failures=("E: 1", "E: 2"),
        forgotten_functions=("f", "g"), forgotten_times=(989.0, 399.0),
    )  # fmt: skip
    model = publications.model_of(publications.status(raised=20_000, snapshot=True), history)
    said = [each.text for each in findings(model, 50.0)]
    assert "At least 1 task of f raised lately." in said and "1 task of g raised lately." in said


def test_failures_that_came_without_their_texts_are_counted_as_at_least_so_many(publications: Publications) -> None:
    """The scheduler sends so many texts at once; a task that never ran has none."""
    model = publications.model_of(
        publications.status(at=1000.0),
        publications.groups((8, "f", 7, 0, "", ""), (9, "g", 7, 0, "", "")),
        publications.batch(TaskStep.WAITING, 8, 1, 2),
        publications.batch(TaskStep.WAITING, 9, 3, 4),
        publications.batch(TaskStep.LACKING, 3, 4),
    )
    texts: dict[str, Any] = {
        "text_numbers": (1, 2), "text_times": (1000.0, 1000.0), "text_levels": (40, 40), "text_tasks": (1, 3),
        "text_kinds": (EventKind.FAILURE, EventKind.FAILURE), "text_subjects": ("", ""), "texts": ("E: 1", "E: 3"),
    }  # fmt: skip
    raised: dict[str, Any] = {"statuses": bytes([Status.RAISED] * 4), "profiles": 3 * PLAIN + NO_PROFILE}
    model.take(publications.batch(TaskStep.ENDED, 1, 1, 2, 3, 4, **raised, **texts), 50.0)
    said = [each.text for each in findings(model, 50.0)]
    assert "At least 1 task of f raised lately." in said and "1 task of g raised lately." in said


def test_an_error_that_is_cut_off_ends_with_dots(model: MonitorModel) -> None:
    model.failures.add((replace(model.failures[4], text=999 * "x"),))
    error = 157 * "x" + "…"
    assert last_failures(model, PageRequest()).rows[0]["error"] == error
    assert error in {row["message"] for row in failure_groups(model, PageRequest(order="last")).rows}


def test_functions_and_tracebacks_are_searched(model: MonitorModel) -> None:
    def found(text: str) -> list[tuple[str, int]]:
        rows = failure_groups(model, PageRequest(order="last", text=text)).rows
        return [(row["exception"], row["count"]) for row in rows]

    assert found("A.PY") == [("mine.errors.Gone", 1), ("ValueError", 1)]  # the line of a frame
    assert found("second") == [("ValueError", 1)] and found("M:LOAD") == [(NO_RESULT, 1)] and found("nothing") == []


def test_a_group_has_its_tasks_and_facts(model: MonitorModel) -> None:
    page = failed_tasks(model, "m:train", "ValueError", PageRequest(order="time"))
    assert [(row["id"], row["client"], row["host"], row["error"]) for row in page.rows] == [
        ("3", "Client|a", "vm", "ValueError: other"),
        ("1", "Client|a", "vm", "ValueError: no"),
    ]
    assert failures_of(model, "m:train", "ValueError")[-1].text == TEXTS[2]
    facts = {fact.name: fact for fact in failure_facts(model, "m:train", "ValueError") or ()}
    assert (facts["count"].text, facts["first"].at, facts["last"].at) == ("2", 1001.0, 1003.0)
    assert [facts[name].links for name in ("function", "hosts", "clients")] == [
        (("m:train", "/function/m:train"),),
        (("vm", "/host/vm"),),
        (("Client|a", "/client/Client%7Ca"),),
    ]
    assert failure_facts(model, "m:train", "KeyError") is None


def test_without_failures_there_are_no_groups(publications: Publications) -> None:
    model = publications.model_of(publications.status(1), TaskEvents())
    assert failure_groups(model, PageRequest(order="last")).total == 0
