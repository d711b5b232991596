"""The task stream: bars in lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scaler_protocol.messages import Status
from scaler_protocol.monitoring import MonitorMessage, TaskEvents, TaskStep
from scaler_protocol.profiles import NO_PROFILE, Profile
from scaler_ui.model import subjects, task_stream, views
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.task_table import REPEATED_RUNS

if TYPE_CHECKING:
    from conftest import Publications


@pytest.fixture
def model(publications: Publications) -> MonitorModel:
    return publications.square_roots()


def test_the_stream_shows_the_window(model: MonitorModel) -> None:
    stream = task_stream.stream(model, 60)
    assert (
        stream.lines == ["vm:1-77 (gone)"]
        and stream.functions == ["math:sqrt"]
        and len(stream.bars) == 31
        and stream.window == (942.0, 1002.0)
    )
    assert [1_000_998, 1_001_000, "math:sqrt", "raised", "1f", "vm:1-77 (gone)"] in [bar[1:7] for bar in stream.bars]
    assert task_stream.stream(model, 0.5).bars == task_stream.stream(MonitorModel(tasks=10), 60).bars == []


@pytest.mark.parametrize("told", [True, False], ids=["ended", "gone"])
def test_what_was_cancelled_is_in_the_stream(publications: Publications, told: bool) -> None:
    end: dict[str, Any] = {"statuses": bytes([Status.CANCELLED]), "profiles": NO_PROFILE}
    model = publications.model_of(
        publications.status(1, at=1000.0),
        publications.groups((9, "math:sqrt", 7, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, 1),
        publications.batch(TaskStep.ASSIGNED, 1, 1, time=1001.0, first_run=501),
        publications.status(1, at=1001.5),
        publications.batch(TaskStep.ENDED if told else TaskStep.CANCELLED, 0, 1, time=1002.0, **(end if told else {})),
        publications.status(1, at=1003.0),
    )
    stream = task_stream.stream(model, 60)
    assert stream.lines == ["vm:1-100"]
    assert stream.bars == [[0, 1_001_000, 1_002_000, "math:sqrt", "cancelled", "1", "vm:1-100", 1_001_000, 1_002_000]]


def test_what_runs_is_in_the_stream(publications: Publications) -> None:
    model = publications.model_of(
        publications.status(1, at=1000.0),
        publications.groups((9, "math:sqrt", 7, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, 1, 2),
        publications.batch(TaskStep.ASSIGNED, 1, 1, 2, time=1001.0, first_run=501),
        publications.status(1, at=1003.0),
    )
    stream = task_stream.stream(model, 60)
    assert stream.lines == ["vm:1-100"]  # only the first is told to run, the other stands behind it
    assert stream.bars == [[0, 1_001_000, 1_003_000, "math:sqrt", "running", "1", "vm:1-100", 1_001_000, 1_003_000]]


def test_a_run_that_was_lost_with_its_worker_has_a_bar_beside_that_of_the_next_run(publications: Publications) -> None:
    model = publications.model_of(
        publications.status(1, at=1000.0),
        publications.groups((9, "math:sqrt", 7, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, 1),
        publications.batch(TaskStep.ASSIGNED, 1, 1, time=1001.0, first_run=501),
        publications.status(1, at=1002.0),
        publications.status(1, at=1002.5, snapshot=True),  # which repeats where tasks are
        publications.batch(TaskStep.WAITING, 9, 1, time=1002.5),
        publications.batch(TaskStep.ASSIGNED, 1, 1, time=1002.5, first_run=501),
        publications.status(1, at=1003.0),
        publications.batch(TaskStep.WAITING, 9, 1, time=1004.0),
        publications.batch(TaskStep.ASSIGNED, 2, 1, time=1005.0, first_run=502),
        publications.batch(TaskStep.ENDED, 2, 1, time=1007.0, profiles=Profile(2_000_000, 0, 0, 101, 0, 2).packed()),
        publications.status(1, at=1008.0, worker_runs=(0, 0)),
    )
    for nested in (True, False):
        stream = task_stream.stream(model, 60, nested=nested)
        assert [(stream.lines[bar[0]], *bar[1:6]) for bar in stream.bars] == [
            ("vm:2-101", 1_005_000, 1_007_000, "math:sqrt", "success", "1"),
            ("vm:1-100", 1_001_000, 1_004_000, "math:sqrt", "run again", "1"),
        ]
    assert task_stream.stream(model, 3.5).lines == ["vm:2-101"]


def test_a_run_that_no_status_has_seen_has_a_bar_if_its_task_runs_again(publications: Publications) -> None:
    lost = Profile(200_000, 0, 5_000_000, 103, 0, 1).packed()
    model = publications.model_of(
        publications.status(1, at=1000.0, worker_runs=(0, 0)),
        publications.groups((9, "math:sqrt", 7, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, 1, time=1000.1),
        publications.batch(TaskStep.ASSIGNED, 1, 1, time=1000.2, first_run=501),
        publications.batch(TaskStep.AGAIN, 1, 1, time=1000.7, statuses=bytes([Status.LOST]), profiles=lost),
        publications.batch(TaskStep.WAITING, 9, 1, time=1000.7),
        publications.batch(TaskStep.AGAIN, 1, 2, time=1000.7, statuses=bytes([Status.LOST]), profiles=lost),  # unknown
        publications.status(1, at=1001.0, worker_runs=(0, 0)),
    )
    (bar,) = task_stream.stream(model, 60).bars
    assert bar[1:7] == [1_000_500, 1_000_700, "math:sqrt", "run again", "1", "vm:1-103 (gone)"]
    assert model.tasks.row(0).state == "waiting" and len(model.tasks) == 1


def test_the_last_repeated_runs_are_remembered(publications: Publications) -> None:
    model = publications.model_of(
        publications.status(1, at=1000.0), publications.groups((9, "math:sqrt", 7, 0, "", ""))
    )
    for at in range(2 * REPEATED_RUNS):
        model.take(publications.batch(TaskStep.ASSIGNED, 1, 1, time=1001.0, first_run=501 + at), 50.0)
        model.tasks.run((501 + at,), (100,), (1.0,), (0.0,), 1001.0, 1002.0)
        model.take(publications.batch(TaskStep.WAITING, 9, 1, time=1002.0), 50.0)
    assert len(model.tasks.repeated) == REPEATED_RUNS
    assert len(task_stream.stream(model, 60).bars) <= task_stream.BARS


def ran(
    publications: Publications, task: int, pid: int, begin: float, end: float, fetch: float = 0.0, store: float = 0.0
) -> TaskEvents:
    """A task has run in this process, from and to these seconds."""
    took, *transfers = (round(1e6 * seconds) for seconds in (end - begin, fetch, store))
    profile = Profile(took, 0, 0, pid, 0, 1, *transfers).packed()
    return publications.batch(TaskStep.ENDED, 1, task, time=1000.0 + end, profiles=profile)


def test_nested_tasks_are_below_the_line_of_their_parent(publications: Publications) -> None:
    model = publications.model_of(
        publications.status(4, at=1000.0),
        publications.groups((9, "parent", 7, 0, "", ""), (8, "child", 8, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, 1, 5),
        publications.batch(TaskStep.WAITING, 8, 2, 3, 4, 6),
        publications.batch(TaskStep.NESTED, 1, 2, 3, 4),
        publications.batch(TaskStep.NESTED, 3, 6),
        publications.batch(TaskStep.NESTED, 99, 5),  # of a task that is not shown
        ran(publications, 2, 101, 1, 3),
        ran(publications, 3, 102, 2, 5),
        ran(publications, 6, 101, 3, 4),
        ran(publications, 4, 101, 4, 5),
        ran(publications, 1, 100, 0, 6),
        ran(publications, 5, 103, 5, 6),
        publications.status(4, at=1010.0),
    )
    shown = task_stream.stream(model, 60)
    worker, nested = "vm:1-10{}".format, "\u21b3 nested"
    assert shown.lines == [worker(0), nested, nested, f"\u2003{nested}", worker(1), worker(2), worker(3)]
    assert {bar[5]: bar[0] for bar in shown.bars} == {"1": 0, "2": 1, "4": 1, "3": 2, "6": 3, "5": 6}
    assert {bar[5]: bar[6] for bar in shown.bars}["4"] == worker(1) and shown.summary == "6 tasks on 4 workers"
    flat = task_stream.stream(model, 60, nested=False)
    assert flat.lines == [worker(number) for number in range(4)]
    assert {bar[5]: bar[0] for bar in flat.bars} == {"1": 0, "2": 1, "6": 1, "4": 1, "3": 2, "5": 3}


def test_transfers_are_the_ends_of_a_bar(publications: Publications) -> None:
    model = publications.model_of(
        publications.status(4, at=1000.0),
        publications.groups((9, "f", 7, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, 1, 2),
        ran(publications, 1, 100, 0, 6, fetch=1.5, store=0.5),
        ran(publications, 2, 100, 7, 8, fetch=3.0, store=3.0),  # an odd report
        publications.status(4, at=1010.0),
    )
    calls = {bar[5]: (bar[1], *bar[7:], bar[2]) for bar in task_stream.stream(model, 60).bars}
    assert calls["1"] == (1_000_000, 1_001_500, 1_005_500, 1_006_000)
    assert calls["2"] == (1_007_000, 1_008_000, 1_008_000, 1_008_000)
    facts = {fact.name: fact.text for fact in subjects.task_facts(model, 1) or []}
    assert (facts["fetching objects"], facts["storing the result"]) == ("1.5 s", "500.0 ms")
    (row,) = views.functions(model, PageRequest()).rows
    assert row["transfers"] == "8.0 s"


def test_tasks_beyond_the_longest_are_blocks_where_workers_ran_them(publications: Publications) -> None:
    """Two workers run 600 tasks of 0.05 s each, one after the other, while more wait than have ended."""
    listened = MonitorModel(tasks=50_000)
    messages: tuple[MonitorMessage, ...] = (
        publications.status(2, at=1000.0),
        publications.groups((9, "f", 7, 0, "", ""), (8, "g", 8, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, *range(1, 1201)),
        publications.batch(TaskStep.WAITING, 8, *range(2001, 2021)),
        publications.batch(TaskStep.WAITING, 9, *range(10_000, 40_000)),
        *(ran(publications, 1 + task, 100, 10 + task / 20, 10 + (task + 1) / 20) for task in range(600)),
        *(ran(publications, 601 + task, 101, 10 + task / 10, 10 + task / 10 + 0.025) for task in range(300)),
        *(ran(publications, 901 + task, 999, 10 + task, 11 + task) for task in range(30)),
        *(ran(publications, 2001 + task, 999, 40 + task / 10, 40 + (task + 1) / 10) for task in range(20)),
        publications.status(2, at=1060.0),
    )
    for message in messages:
        listened.take(message, 50.0)
    with_bars = task_stream.stream(listened, 60)
    assert len(with_bars.bars) == task_stream.BARS
    assert with_bars.summary == "950 tasks on 3 workers, 500 as bars"
    drawn = [(begin, end, line) for line, begin, end, *_ in (*with_bars.bars, *with_bars.blocks)]
    for line, name in enumerate(with_bars.lines):
        if "gone" in name:
            continue
        at = 1010_000
        for begin, end, _ in sorted(each for each in drawn if each[2] == line):
            assert begin <= at + 251, "a gap where the worker was busy"  # a cell is 0.25 s
            at = max(at, end)
        assert at >= 1039_750
    [half] = {block[4] for block in with_bars.blocks if with_bars.lines[block[0]] == "vm:1-101"}
    assert half == pytest.approx(0.25, abs=0.05) and with_bars.functions == ["f", "g"]
