"""Why a task waits, where it is, how it ended."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from scaler_protocol.messages import Status
from scaler_protocol.monitoring import MonitorHistory, TaskEvents, TaskStep
from scaler_protocol.profiles import NO_PROFILE
from scaler_ui.model.model import EVENTS, PRINTED_CHARACTERS, PRINTED_ENTRY, MonitorModel
from scaler_ui.model.reasons import is_to_ask, printed, why
from scaler_ui.terminal.why import task_id

if TYPE_CHECKING:
    from conftest import Publications

WAITING, ASSIGNED, ENDED = TaskStep.WAITING, TaskStep.ASSIGNED, TaskStep.ENDED


@pytest.mark.parametrize(
    ("needs", "runtime", "said"),
    [
        ("gpu", "", "it waits: no worker offers gpu"),
        ("ram=8,linux", "", "it waits: no worker offers ram=8"),
        ("linux", "", "it is next: 6 workers have 2 tasks"),
        ("", "Python 3.9 with cloudpickle 3.1", "it waits: no worker offers Python 3.9 with cloudpickle 3.1"),
    ],
)
def test_a_task_that_waits(publications: Publications, needs: str, runtime: str, said: str) -> None:
    model = publications.model_of(
        publications.status(),
        publications.groups((9, "f", 7, 0, needs, runtime)),
        publications.batch(WAITING, 9, 1),
    )
    assert why(model, 1) == [said]


def test_a_task_behind_others(publications: Publications) -> None:
    model = publications.model_of(
        publications.status(),
        publications.groups((8, "f", 7, 5, "", ""), (9, "f", 7, 0, "", "")),
        publications.batch(WAITING, 9, *range(1, 11)),
        publications.batch(WAITING, 8, *range(11, 14)),
    )
    assert why(model, 10) == [
        "it waits behind about 3 tasks of priority 5; 6 workers have 2 tasks",
        "it waits behind about 9 tasks of priority 0; 6 workers have 2 tasks",
    ]
    assert why(model, 11) == ["it is next: 6 workers have 2 tasks"]
    assert "it waits behind about 1 task of priority 0; 6 workers have 2 tasks" in why(model, 2)


def test_what_nobody_can_run_goes_not_first_and_clients_take_turns(publications: Publications) -> None:
    model = publications.model_of(
        publications.status(),
        publications.groups((7, "f", 6, 0, "tpu", ""), (8, "f", 6, 0, "", ""), (9, "f", 7, 0, "", "")),
        publications.batch(WAITING, 7, *range(1000, 6000)),
        publications.batch(WAITING, 8, *range(100, 300)),
        publications.batch(WAITING, 9, *range(1, 5)),
    )
    assert why(model, 1) == ["it is next: 6 workers have 2 tasks"]
    assert why(model, 4) == ["it waits behind about 6 tasks of priority 0; 6 workers have 2 tasks"]
    assert why(model, 4, ["it waits behind 7 tasks"]) == ["it waits behind 7 tasks"]
    assert why(model, 300)[0].startswith("task 12c is not known")
    assert why(model, 300, ["it runs on vm:1, for 3 s"]) == ["it runs on vm:1, for 3 s"]
    assert why(model, 4, ["worker manager grid is paused: \x1b[2Jno\nit is next"]) == [
        r"worker manager grid is paused: \x1b[2Jno\nit is next"
    ]
    assert [is_to_ask(model, task) for task in (1, 300)] == [True, True]


def test_no_worker_at_all(publications: Publications) -> None:
    model = publications.model_of(
        publications.groups((9, "f", 7, 0, "", "")), publications.batch(WAITING, 9, 1), publications.status(0)
    )
    assert model.status is not None
    no_agents = {name: () for name in vars(type(model.status)) if name.startswith(("agent", "worker_"))}
    model.take(publications.status(0, **no_agents), 51.0)
    assert why(model, 1) == ["it waits: no worker is connected"]


def test_a_task_on_a_host_whose_workers_are_not_listed(publications: Publications) -> None:
    sums: dict[str, Any] = {f"unlisted_{name}": (1,) for name in ("running", "busy", "blocked", "cpus", "rsses")}
    model = publications.model_of(
        publications.groups((9, "f", 7, 0, "", "")),
        publications.batch(WAITING, 9, 1),
        publications.batch(ASSIGNED, 2, 1, first_run=700),
        publications.status(unlisted_agents=(2,), **sums),
    )
    said = "it is on vm:2, which has 0 tasks for 3 workers: these are too many to be listed, so that it may run already"
    assert why(model, 1) == [said]


def test_a_task_with_an_agent(publications: Publications) -> None:
    model = publications.model_of(
        publications.status(at=1002.5),
        publications.groups((9, "f", 7, 0, "", "")),
        publications.batch(WAITING, 9, 1, 2),
        publications.batch(ASSIGNED, 1, 1, 2, first_run=500),
        publications.batch(TaskStep.HELD, 9, 3),
    )
    assert why(model, 1) == ["it is queued on vm:1, which has 2 tasks for 3 workers"]
    assert why(model, 2) == ["it runs on vm:1-100, for 2.5 s"]
    (held,) = why(model, 3)
    assert held.startswith("it is held: its inputs or") and "too much memory" not in held
    model.take(publications.status(at=1003.5, exclusive=1), 51.0)
    assert why(model, 3) == [f"{held}; or it has used too much memory, and waits for a host of its own"]


def test_a_task_that_has_ended(publications: Publications) -> None:
    model = publications.model_of(
        publications.status(),
        publications.batch(ENDED, 1, 1),
        publications.batch(TaskStep.CANCELLED, 0, 2),
        TaskEvents(
            text_numbers=(1,),
            text_kinds=(1,),
            text_subjects=("",),
            text_times=(1.0,),
            text_levels=(30,),
            text_tasks=(1,),
            texts=("a run was lost: killed by SIGKILL",),
        ),
    )
    assert why(model, 1) == [
        "it has ended: success, after 1.5 ms on vm:1-77, attempt 1, peak memory 1.9 MiB",
        "a run was lost: killed by SIGKILL",
    ]
    assert why(model, 2) == ["it has ended: cancelled"]
    assert why(model, 0xAB)[0].startswith("task ab is not known")


def test_an_error_that_is_forgotten_is_said_to_be(publications: Publications) -> None:
    count, state = EVENTS + 10, bytes([Status.FAILED])
    tasks = range(1, count + 1)
    model = MonitorModel(tasks=2 * count)
    for message in (
        publications.status(1),
        publications.groups((9, "f", 7, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, *tasks),
        publications.batch(TaskStep.ENDED, 0, *tasks, statuses=state * count, profiles=NO_PROFILE * count),
        TaskEvents(
            text_numbers=tasks, text_kinds=[0] * count, text_subjects=[""] * count, text_times=[1.0] * count,
            text_levels=[30] * count, text_tasks=tasks, texts=["the task lost its host"] * count,
        ),
    ):  # fmt: skip
        model.take(message, 0.0)
    assert why(model, count) == ["it has ended: failed", "the task lost its host"]
    assert why(model, 1) == ["it has ended: failed; its error is not known here any more: its client has it"]


@pytest.mark.parametrize("text", ["", "0", "xyz", "1" * 17, "-1"])
def test_a_task_id_is_hexadecimal(text: str) -> None:
    with pytest.raises(ValueError, match="is not a task id"):
        task_id(text)
    assert task_id("3f9a6c0e00000001") == 0x3F9A6C0E00000001


def test_what_a_task_has_printed_is_heard_once(publications: Publications) -> None:
    columns: dict[str, Any] = {
        "printed_numbers": (1, 2, 3),
        "printed_tasks": (5, 6, 5),
        "printed_attempts": (1, 1, 2),
        "printed": ("one\ntwo", "other", "three"),
    }
    model = publications.model_of(publications.status(1), MonitorHistory(**columns))
    model.take(TaskEvents(**columns), 0.0)
    assert printed(model, 5) == "one\ntwo\n--- attempt 2\nthree" and printed(model, 6) == "other"
    assert printed(model, 7) == ""
    [known], [unknown] = why(model, 5), why(model, 7)
    assert known == "task 5 ended before this monitor connected, and is not among the last failures"
    assert unknown.startswith("task 7 is not known: it ended before this monitor connected")
    assert unknown.endswith("or was never submitted")
    model.take(replace(publications.status(1), incarnation=99), 1.0)
    model.take(TaskEvents(**{name: column[:1] for name, column in columns.items()}), 1.0)
    assert printed(model, 5).endswith("three\n--- attempt 1\none\ntwo"), "another scheduler counts from 1"


def test_what_a_task_has_printed_is_as_a_terminal_shows_it(publications: Publications) -> None:
    pieces = ("step .", ".", ". done\n", "\r  0%", "\r 50%", "\r100%\n", "with Windows' line ends\r\n", "\n", "end\r")
    message = TaskEvents(
        printed_numbers=tuple(range(1, len(pieces) + 1)), printed_tasks=(5,) * len(pieces),
        printed_attempts=(1,) * len(pieces), printed=pieces,
    )  # fmt: skip
    model = publications.model_of(publications.status(1), message)
    assert printed(model, 5) == "step ... done\n100%\nwith Windows' line ends\n\nend"


def test_what_tasks_have_printed_is_bounded(publications: Publications) -> None:
    model = publications.model_of(publications.status(1))
    for number in range(1, 5):
        one: dict[str, Any] = dict.fromkeys(("printed_numbers", "printed_tasks", "printed_attempts"), (number,))
        model.take(TaskEvents(**one, printed=("x" * (PRINTED_CHARACTERS // 2 - PRINTED_ENTRY),)), 0.0)
    assert list(model.printed) == [3, 4]
