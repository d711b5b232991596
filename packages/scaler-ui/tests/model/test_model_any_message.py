"""Whatever a scheduler publishes, the feed refuses it, or every page and program can show it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from scaler_io.links.streams import HEADER
from scaler_io.service.metrics import StatusCollector
from scaler_protocol import schema
from scaler_protocol.byte_planes import record_count, to_planes
from scaler_protocol.codec import encode
from scaler_protocol.errors import InvalidFieldError
from scaler_protocol.limits import limit_of
from scaler_protocol.messages import Status
from scaler_protocol.monitoring import PACKED_BATCH, PACKED_EDGE, MonitorHistory, TaskStep
from scaler_protocol.profiles import PROFILE, Profile
from scaler_protocol.ranges import Column
from scaler_ui.model import cluster_views, failures, overview, reasons, subjects, task_stream, text_view, views
from scaler_ui.model import workload_views as workloads
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.feed import Feed
from scaler_ui.model.findings import findings
from scaler_ui.model.graph_looks import GraphLooks
from scaler_ui.model.graph_picture import function_rows, path_rows
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.tables import fields

if TYPE_CHECKING:
    from conftest import Publications

NOW = 1.8e9
EXTREMES: dict[str, Sequence[Any]] = {
    "float64": (0.0, -1.0, 1e11, 1e12, 1e15, 1e18, 1e30, 1e300, -1e300, 5e-324),
    **dict.fromkeys(("uint8", "uint32", "uint64", "int32", "int64"), (0, 1, -1, 2**32 - 1, 2**53, 2**63, 2**64 - 1)),
    "text": ("", "..", "a/b", "\0\x1b[2J", "\u202e", "<b>", "x" * 4096, "=", "gpu=x", "a,a", ",", "a=" + "9" * 99),
    "bool": (False, True),
}
STEPS = TaskStep.WAITING, TaskStep.HELD, TaskStep.CANCELLED, TaskStep.NESTED, TaskStep.LACKING
PROFILES = bytes(PROFILE.size), b"\xff" * PROFILE.size, b"\xff" * 7 + b"\0" + b"\xff" * (PROFILE.size - 8)
"""Of nothing, and the greatest: one that is refused, and one that is not."""
AFTER = (0, 1, 10**15, -(10**15), 2**63 - 1, -(2**63))


def published(publications: Publications) -> list[Any]:
    """What a scheduler with work publishes."""
    status = publications.status(
        2, at=NOW, worker_runs=(501, 0, 502, 0), worker_states=(2, 1, 2, 1), heartbeat_seconds=5.0,
        **dict.fromkeys(("graphs", "graph_sessions", "graph_nodes", "graph_assigned", "graph_running"), (4,)),
        **dict.fromkeys(("graph_succeeded", "graph_failed", "graph_cancelled"), (0,)),
        graph_start_times=(NOW - 50,), graph_end_times=(0.0,),
        managers=("grid",), manager_kinds=("k",), manager_hosts=("vm",), manager_reasons=("so",),
        manager_failures=("",), manager_maximums=(5,), manager_pauses=(2.0,),
        **dict.fromkeys(("manager_desired", "manager_joined", "manager_starting", "manager_draining"), (1,)),
        offer_managers=("grid",), offer_capabilities=("gpu=1",), offer_runtimes=("",),
        waiting_capabilities=("gpu=1",), waiting_tasks=(3,), waiting_shortages=("",),
        duration_bounds=(0.1,), run_buckets=(1,), wait_buckets=(1,), unlisted_agents=(2,), unlisted_running=(3,),
        unlisted_busy=(2,), unlisted_blocked=(1,), unlisted_cpus=(0.5,), unlisted_rsses=(10**9,),
    )  # fmt: skip
    history = MonitorHistory(
        failure_numbers=(1,), failure_times=(NOW - 30,), failure_tasks=(99,), failure_functions=("math:sqrt",),
        failure_sessions=(7,), failure_clients=("a",), failure_agents=(1,), failure_agent_names=("vm:1",),
        failure_statuses=(1,), failure_profiles=bytes(44), failures=("ValueError: x",),
        event_numbers=(2,), event_times=(NOW - 20,), event_levels=(20,), event_kinds=(2,), event_tasks=(99,),
        event_subjects=("vm",), events=("died",),
        figure_times=(NOW - 60,), figure_cpus=(0.5,), figure_rsses=(10**9,),
        figure_ended=(1,), figure_waiting=(1,), figure_assigned=(1,), figure_running=(1,),
        printed_numbers=(1,), printed_tasks=(1,), printed_attempts=(1,), printed=("hello\n",),
        forgotten_functions=("math:sqrt",), forgotten_times=(NOW - 40,),
        run_functions=("math:sqrt",), run_hosts=("vm",), run_counts=(10,), run_seconds=(1.0,), run_squares=(1.1,),
        run_failures=(0.1,),
    )  # fmt: skip
    edges = to_planes(PACKED_EDGE.pack(1, 0) + PACKED_EDGE.pack(2, 1), PACKED_EDGE.size)
    batch = publications.batch
    return [
        replace(status, snapshot=True),
        history,
        publications.groups((9, "math:sqrt", 7, 0, "gpu=1", ""), (8, "time:sleep", 8, 1, "", "")),
        batch(
            TaskStep.WAITING, 9, *range(1, 20), time=NOW - 90, edge_graphs=(4,), edge_first_tasks=(1,),
            edge_counts=(2,), edges=edges,
        ),
        batch(TaskStep.ASSIGNED, 1, 1, 2, time=NOW - 80, first_run=501),
        batch(TaskStep.ENDED, 1, *range(5, 8), time=NOW - 5),
        batch(TaskStep.ENDED, 1, 8, time=NOW - 5, statuses=bytes([Status.RAISED])),
        batch(TaskStep.CANCELLED, 0, 9, time=NOW - 4),
        batch(TaskStep.NESTED, 1, 10, time=NOW - 4),
        batch(
            TaskStep.AGAIN, 1, 2, time=NOW - 3, statuses=bytes([Status.RAISED]),
            profiles=Profile(5_000_000, 1, 10**6, 77, 0, 1).packed(),
        ),
        replace(status, at=NOW + 1),
        replace(status, at=NOW + 62),
    ]  # fmt: skip


class Line:
    """A subscription to these."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self._frames = [
            [HEADER.pack(number, 0), *map(bytes, encode(message))] for number, message in enumerate(messages, 1)
        ]

    def receive(self, limit: int) -> list[list[bytes]]:
        frames, self._frames = self._frames[:limit], self._frames[limit:]
        return frames

    def subscribe_again(self) -> None:
        """No snapshot comes."""


@st.composite
def odd_message(draw: st.DrawFn, messages: Sequence[Any]) -> tuple[int, Any]:
    """The place of a message, and the message with anything that is allowed in some of its fields."""
    at = draw(st.integers(0, len(messages) - 1))
    message = messages[at]
    if getattr(message, "profiles", b"") and draw(st.booleans()):
        profiles = draw(st.sampled_from(PROFILES)) * record_count(message.profiles)
        return at, replace(message, profiles=to_planes(profiles, PROFILE.size))
    if getattr(message, "batches", b"") and draw(st.booleans()):
        step = draw(st.sampled_from(STEPS))
        subject, after = draw(st.sampled_from([0, 9, 2**64 - 1])), draw(st.sampled_from(AFTER))
        packed = PACKED_BATCH.pack(step, subject, record_count(message.tasks), after)
        return at, replace(message, batches=to_planes(packed, PACKED_BATCH.size), runs=b"", statuses=b"", profiles=b"")
    kind = type(message).__name__
    for field in draw(st.lists(st.sampled_from(schema.struct(kind).fields), min_size=1, max_size=16)):
        limit = limit_of(kind, field.attribute, field.kind, is_column=field.is_list)
        each = limit.each if isinstance(limit, Column) else limit
        if allowed := [value for value in EXTREMES.get(field.kind, ()) if not each.fault(value)]:
            value = draw(st.sampled_from(allowed))
            column = [value] * len(getattr(message, field.attribute)) if field.is_list else value
            message = replace(message, **{field.attribute: column})
    return at, message


def shown(model: MonitorModel, now: float) -> list[Any]:
    """What pages and programs show."""
    looks, request = GraphLooks(model), PageRequest()
    tables = [
        views.tasks(model, request), views.workers(model, request, now), views.clients(model, request),
        views.functions(model, request), views.events(model, request), failures.failure_groups(model, request),
        subjects.hosts(model, request), subjects.runners(model, "vm", request),
        cluster_views.graphs(model, request), cluster_views.managers(model, request),
        cluster_views.capacity(model, request), cluster_views.demand(model, request),
        workloads.workloads(model, request), overview.progress(model, request),
        overview.last_failures(model, request), path_rows(looks, 4, request), function_rows(looks, 4, request),
    ]  # fmt: skip
    facts = [
        *(subjects.task_facts(model, task) for task in (1, 5, 8, 9)),
        subjects.graph_facts(model, looks, 4),
        subjects.host_facts(model, "vm"),
        subjects.function_facts(model, "math:sqrt"),
    ]
    texts = [reasons.why(model, task) for task in (1, 3, 5, 8, 9, 99)]
    stream = task_stream.stream(model, 1800).summary
    lines = [views.lines(model), views.figures(model), workloads.minute_lines(model, 30)]
    sentences = [each.parts for each in findings(model, now)]
    return [[table.rows for table in tables], repr(facts), texts, stream, lines, sentences]


@given(st.data())
@settings(max_examples=60)
def test_what_the_feed_passes_on_can_be_shown(publications: Publications, data: st.DataObject) -> None:
    messages = published(publications)
    at, odd = data.draw(odd_message(messages))
    messages[at] = odd
    if data.draw(st.booleans()):  # another scheduler begins
        messages.append(replace(messages[0], incarnation=6))
    model, now = MonitorModel(tasks=100), 50.0
    for message in Feed(Line(messages)).take(0.0):
        model.take(message, now)
    orjson.dumps(shown(model, now))
    registry = CollectorRegistry()
    registry.register(StatusCollector(lambda: (model.status, model.storage)))
    generate_latest(registry)
    if screen := fields(model, now):
        json.dumps(screen)
        text_view.worker_table(text_view.View().rows(screen), text_view.View(), 200)
        assert text_view.summary(screen, 200) and text_view.side(screen)
        text_view.event_lines(screen, 40)


def test_all_of_it_is_shown_where_nothing_is_odd(publications: Publications) -> None:
    model = MonitorModel(tasks=100)
    feed = Feed(Line(published(publications)))
    for message in feed.take(0.0):
        model.take(message, 50.0)
    assert not feed.malformed and "math:sqrt" in orjson.dumps(shown(model, 50.0)).decode()


@pytest.mark.parametrize(
    ("at", "field", "value"),
    [
        (0, "uptime", -1e30),
        (0, "graph_start_times", 1e12),
        (0, "graph_nodes", 2**64 - 1),
        (0, "agent_assigned", 2**63),
        (0, "worker_seconds", 1e15),
        (1, "event_times", -1e10),
        (1, "run_counts", 0),
        (1, "run_seconds", 1e300),
    ],
)
def test_numbers_that_no_page_can_show_are_not_written(
    publications: Publications, at: int, field: str, value: float
) -> None:
    message = published(publications)[at]
    known = getattr(message, field)
    with pytest.raises(InvalidFieldError, match=field):
        encode(replace(message, **{field: value if isinstance(known, float) else [value] * len(known)}))


@pytest.mark.parametrize("written", ["=", "gpu=x", "gpu=1,gpu=2", "x" * 300, "a\0b", "gpu=" + "9" * 99])
def test_capabilities_that_cannot_be_read_are_refused(publications: Publications, written: str) -> None:
    status = publications.status(snapshot=True)
    for odd in (
        publications.groups((9, "f", 7, 0, written, "")),
        replace(status, agent_capabilities=("", written)),
        replace(status, waiting_capabilities=(written,), waiting_tasks=(1,), waiting_shortages=("",)),
        replace(status, offer_managers=("m",), offer_capabilities=(written,), offer_runtimes=("",)),
    ):
        feed = Feed(Line([status, odd]))
        assert feed.take(0.0) and feed.malformed == 1


def test_times_without_a_date_and_runs_without_an_id_or_an_end_are_refused(publications: Publications) -> None:
    status, batch = publications.status(snapshot=True), publications.batch
    late = to_planes(PACKED_BATCH.pack(TaskStep.WAITING, 1, 1, 2**63 - 1), PACKED_BATCH.size)
    for odd, is_sound in (
        (replace(batch(TaskStep.WAITING, 1, 5), batches=late), False),
        (batch(TaskStep.ASSIGNED, 1, 5, 6, first_run=2**64 - 1), False),
        (batch(TaskStep.ASSIGNED, 1, 5, first_run=2**64 - 1), True),
        *((batch(TaskStep.ENDED, 1, 5, profiles=profile), profile is not PROFILES[1]) for profile in PROFILES),
    ):
        feed = Feed(Line([status, odd]))
        assert len(feed.take(0.0)) == 1 + is_sound and feed.malformed == (not is_sound)


def test_the_critical_path_has_no_rows_for_nodes_that_are_not_known(publications: Publications) -> None:
    messages = published(publications)
    edges = to_planes(PACKED_EDGE.pack(1, 0) + PACKED_EDGE.pack(2, 1), PACKED_EDGE.size)
    graph: dict[str, Any] = {"edge_graphs": (4,), "edge_first_tasks": (1,), "edge_counts": (2,), "edges": edges}
    messages[3] = replace(publications.batch(TaskStep.WAITING, 9, 1, 3, time=NOW - 90), **graph)
    messages[4:9] = [publications.batch(TaskStep.ASSIGNED, 1, 1, 3, time=NOW - 80, first_run=501)]
    model = MonitorModel(tasks=100)
    for message in Feed(Line(messages)).take(0.0):
        model.take(message, 50.0)
    assert [row["task"] for row in path_rows(GraphLooks(model), 4, PageRequest()).rows] == ["1", "3"]
