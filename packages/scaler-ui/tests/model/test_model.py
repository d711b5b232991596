"""The model: from messages to figures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from scaler_protocol.messages import Status
from scaler_protocol.monitoring import EventKind, MonitorMessage, TaskEvents, TaskStep
from scaler_ui.model import task_stream, views
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.findings import findings, sentence
from scaler_ui.model.model import BEGUN_AGAIN, NAMES, PRINTED_CHARACTERS, PRINTED_ENTRY, MonitorEvent
from scaler_ui.model.tables import fields, task_of_run, worker_rows

if TYPE_CHECKING:
    from conftest import Publications

WAITING, ASSIGNED, ENDED = TaskStep.WAITING, TaskStep.ASSIGNED, TaskStep.ENDED


def test_calls_are_added_up_by_function(publications: Publications) -> None:
    model = publications.model_of(
        publications.status(snapshot=True),
        publications.groups((9, "math:sqrt", 7, 0, "", "")),
        publications.batch(WAITING, 9, 1, 2, 3),
        publications.batch(ASSIGNED, 1, 1, 2, 3, first_run=501),
        publications.batch(ENDED, 1, 1, 2),
        publications.batch(ENDED, 1, 3, statuses=bytes([Status.RAISED])),
    )
    figures = model.functions["math:sqrt"]
    assert figures.count == 3 and figures.ended == {Status.VALUE: 2, Status.RAISED: 1}
    assert (round(figures.duration, 9), figures.longest, figures.peak_memory) == (0.0045, 0.0015, 2_000_000)
    assert round(figures.cpu, 9) == 0.0027
    assert model.tasks.live == 0 and {model.tasks.row(row).state for row in range(3)} == {"success", "raised"}


def test_numbers_of_groups_and_agents_may_be_great(publications: Publications) -> None:
    group, agent = 2**32 + 9, 2**64 - 1
    model = publications.model_of(
        publications.status(snapshot=True),
        publications.groups((group, "f", 7, 0, "", "")),
        publications.batch(WAITING, group, 1, 2),
        publications.batch(ASSIGNED, agent, 1, first_run=501),
    )
    assert model.tasks.row(0).agent == agent and model.tasks.waiting_groups() == [(group, 1)]
    assert model.tasks.row(1).function == "f"


def test_what_a_snapshot_leaves_out_has_ended_unseen(publications: Publications) -> None:
    model = publications.model_of(
        publications.status(snapshot=True),
        publications.groups((9, "f", 7, 0, "", "")),
        publications.batch(WAITING, 9, 1, 2),
        publications.status(snapshot=True),
        publications.batch(WAITING, 9, 2, 3),
    )
    assert [model.tasks.row(row).state for row in range(len(model.tasks))] == ["unknown", "waiting", "waiting"]
    model.take(publications.status(snapshot=True), 51.0)
    model.take(publications.status(), 52.0)
    assert model.tasks.live == 0


def test_a_snapshot_in_parts_ends_with_the_last_of_them(publications: Publications) -> None:
    first = publications.batch(WAITING, 9, 1, 2)
    model = publications.model_of(
        publications.status(snapshot=True), publications.groups((9, "f", 7, 0, "", "")), first,
        publications.status(snapshot=True), replace(first, goes_on=True),
    )  # fmt: skip
    assert not model.is_complete
    model.take(publications.batch(ASSIGNED, 1, 2, first_run=501), 50.0)
    assert model.is_complete and [model.tasks.row(row).state for row in range(2)] == ["waiting", "running"]


def test_workers_that_are_too_many_to_be_listed_count(publications: Publications) -> None:
    """Agent 1 has 3 workers in the list, agent 2 has 3 that are not."""
    status = publications.status(
        worker_agents=[1] * 3, worker_seconds=[0.0] * 3, assigned=4,
        **{name: getattr(publications.status(), name)[:3] for name in (
            "worker_names", "worker_pids", "worker_states", "worker_runs", "worker_cpus", "worker_rsses",
            "worker_queues",
        )},
        unlisted_agents=(2,), unlisted_running=(3,), unlisted_busy=(2,), unlisted_blocked=(1,), unlisted_cpus=(1.5,),
        unlisted_rsses=(10**9,),
    )  # fmt: skip
    model = publications.model_of(status)
    assert sentence(findings(model, 50.0)).startswith("3 of 6 workers busy, 1 blocked parent, 4 waiting")
    assert "3 workers of 1 agent are too many to be listed: they are counted" in sentence(findings(model, 50.0))
    shown = fields(model, 50.0)
    rows = sum(status.worker_cpus), sum(status.worker_rsses)
    assert (shown["total"]["cpu"], shown["total"]["rss"]) == (100 * (rows[0] + 1.5), rows[1] + 10**9)
    assert shown["total"]["processes"] == shown["total"]["workers"] == 6
    assert (sum(host["busy"] for host in shown["hosts"]), shown["hosts"][0]["memory"]) == (3, rows[1] + 10**9)
    assert (model.history[-1].cpu, model.history[-1].running) == (rows[0] + 1.5, 4)


def test_the_rate_is_that_of_the_last_seconds(publications: Publications) -> None:
    model = publications.model_of(
        *(publications.status(at=1000.0 + second, succeeded=100 * second) for second in range(20))
    )
    assert model.rate == 100
    model.take(publications.status(at=1020.0, succeeded=0, incarnation=6), 60.0)
    assert model.rate == 0


@pytest.mark.parametrize("jump", [-7200.0, -30.0, 8 * 3600.0])
def test_charts_and_rate_follow_a_clock_that_jumps_and_a_night_asleep(publications: Publications, jump: float) -> None:
    model = publications.model_of(*(publications.status(at=1000.0 + each, succeeded=10 * each) for each in range(60)))
    for each in range(60, 70):
        model.take(publications.status(at=1000.0 + each + jump, succeeded=10 * each), 1.0)
    assert model.rate == 10
    times = [moment.at for moment in model.history]
    assert times == sorted(times) and times[-1] - times[0] <= 600


def test_what_ended_before_the_scheduler_began_again_stays_with_its_host(publications: Publications) -> None:
    def ended(group: int, task: int) -> list[MonitorMessage]:
        failed: dict[str, Any] = {"statuses": bytes([Status.FAILED]), "text_numbers": (task,), "text_kinds": (0,)}
        told: dict[str, Any] = {
            "text_subjects": ("",),
            "text_times": (1.0,),
            "text_levels": (30,),
            "text_tasks": (task,),
        }
        return [
            publications.groups((group, "f", 7, 0, "", "")),
            publications.batch(WAITING, group, task),
            publications.batch(ENDED, 1, task, **failed, **told, texts=("WorkerDiedError: no",)),
        ]

    model, names = publications.model_of(), ("a:1", "b:1", "c:1")
    for number, name in enumerate(names):
        began = publications.status(incarnation=number, agent_names=(name, "x:1"), agent_hosts=(name[0], "x"))
        for message in (began, *ended(number + 1, number + 1), began):
            model.take(message, 50.0 + number)
    assert [model.agents[model.tasks.row(row).agent] for row in range(3)] == list(names)
    assert [model.hosts[each.agent] for each in model.failures.values()] == ["a", "b", "c"]
    assert views.tasks(model, PageRequest(host="c")).total == views.tasks(model, PageRequest(host="a")).total == 1
    assert sorted(task_stream.stream(model, 60).lines) == ["a:1-77 (gone)", "b:1-77 (gone)", "c:1-77 (gone)"]


def test_a_scheduler_that_takes_the_place_of_another_is_told(publications: Publications) -> None:
    first = TaskEvents(
        text_numbers=(9,), text_kinds=(EventKind.SCHEDULER,), text_subjects=("",), text_times=(990.0,),
        text_levels=(30,), text_tasks=(0,), texts=("new work is refused",),
    )  # fmt: skip
    model = publications.model_of(first, publications.status(), publications.status(at=1001.0))
    assert model.began_again is None
    model.take(publications.status(at=1020.0, incarnation=6, uptime=5.0), 60.0)
    model.take(replace(first, text_numbers=(1,), text_times=(1016.0,), texts=("of the second",)), 60.0)
    assert model.began_again == 1015.0
    assert [(event.time, event.text) for event in model.events] == [
        (990.0, "new work is refused"),
        (1015.0, BEGUN_AGAIN),
        (1016.0, "of the second"),
    ]
    (found,) = [each for each in findings(model, 61.0) if "Another scheduler" in each.text]
    assert found.text.startswith("Another scheduler has begun here 5.0 s ago: totals count since then")
    model.take(publications.status(at=1700.0, incarnation=6, uptime=685.0), 740.0)
    assert "Another" not in sentence(findings(model, 741.0))


def test_events_are_kept(publications: Publications) -> None:
    said = TaskEvents(
        text_numbers=(1,),
        text_kinds=(1,),
        text_subjects=("",),
        text_times=(1.0,),
        text_levels=(30,),
        text_tasks=(5,),
        texts=("a run was lost",),
    )
    assert list(publications.model_of(said).events) == [MonitorEvent(1, 1.0, 30, 1, 5, "", "a run was lost")]


def test_the_fields_of_a_screen(publications: Publications) -> None:
    model = publications.model_of(publications.status())
    shown = fields(model, 51.0)
    assert shown["task_manager"] == {
        "waiting": 4, "held": 0, "queued": 1, "running": 1, "success": 53_704, "failed": 14, "cancelled": 48,
        "not_found": 14,
    }  # fmt: skip
    assert list(shown["scheduler_sent"].items()) == [("Heartbeat", 2000), ("Run", 10)]
    assert shown["client_manager"] == {"Client|a": 6, "(in a task)": 1}
    assert shown["func_to_num_tasks"] == {"math:sqrt": 15, "__main__:inc": 20}
    total = shown["total"]
    assert (total["agents"], total["workers"], total["agt_rss"]) == (2, 6, 223_000_000)  # each agent once
    first, last = shown["workers"][0], shown["workers"][-1]
    assert (first["free"], first["sent"], first["queued"], first["itl"], first["stale"]) == (998, 2, 1, "110", False)
    assert (last["silence"], last["stale"], last["itl"]) == (13.0, True, "100")
    assert model.status is not None
    assert not worker_rows(replace(model.status, heartbeat_seconds=10.0))[-1].stale  # hosts report that seldom
    assert not shown["stale"] and fields(model, 56.0)["stale"]
    assert fields(publications.model_of(), 0.0) == {}


def test_the_task_of_a_run(publications: Publications) -> None:
    model = publications.model_of(
        publications.groups((9, "f", 7, 0, "", "")),
        publications.batch(WAITING, 9, 1, 2),
        publications.batch(ASSIGNED, 1, 1, 2, first_run=500),
    )
    assert task_of_run(model, 501) == 1 and task_of_run(model, 7) is None and task_of_run(model, 0) is None


def test_clients_and_agents_that_left_keep_their_names(publications: Publications) -> None:
    left = publications.status(
        client_sessions=(), client_names=(), client_hosts=(), client_tasks=(), agents=(), agent_names=(),
        agent_hosts=(), worker_agents=(),
    )  # fmt: skip
    model = publications.model_of(publications.status(), left)
    assert [model.client_name(session) for session in (7, 8, 9)] == ["Client|a", "(in a task)", "session 9"]
    assert model.agents == {1: "vm:1", 2: "vm:2"}


def test_functions_and_outputs_are_bounded(publications: Publications) -> None:
    model = publications.model_of(publications.status(1, at=1000.0))
    for number in range(2 * NAMES):
        model._figures(f"f{number}").has_ended(Status.VALUE)
        model._figures("always").has_ended(Status.VALUE)
    assert len(model.functions) == NAMES and model.functions["always"].count == 2 * NAMES
    assert f"f{2 * NAMES - 1}" in model.functions and "f0" not in model.functions

    pieces = 2 * PRINTED_CHARACTERS // (5 * PRINTED_ENTRY)
    for start in range(0, 5 * pieces, pieces):
        numbers, ones = range(start + 1, start + pieces + 1), [1] * pieces
        printed = ["x"] * pieces
        message = TaskEvents(printed_numbers=numbers, printed_tasks=numbers, printed_attempts=ones, printed=printed)
        model.take(message, 50.0)
    assert PRINTED_CHARACTERS // 2 < len(model.printed) * PRINTED_ENTRY <= PRINTED_CHARACTERS
