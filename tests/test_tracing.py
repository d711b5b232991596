"""Spans of OpenTelemetry: in the client, in workers, and in what tasks do themselves."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from scaler import Client
from scaler_protocol.serializer import Serializer
from support.clusters import LocalCluster
from support.gates import SECONDS
from support.tasks import explode
from support.traced_tasks import ExportTo, step, step_later

EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module")
def spans() -> InMemorySpanExporter:
    """The provider of a process can be set once."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)
    return EXPORTER


@pytest.fixture
def finished(spans: InMemorySpanExporter) -> InMemorySpanExporter:
    spans.clear()
    return spans


class TracedWork:
    """A cluster with a client whose calls are traced, and the spans of its workers."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "spans"
        self._cluster = LocalCluster(folder / "log", n_workers=1)
        self.address = self._cluster.address
        self.client = Client(address=self.address, initializer=ExportTo(self._file), tracing=True)

    def spans(self, name: str, **attributes: object) -> list[dict[str, Any]]:
        found = map(json.loads, self._file.read_text("utf-8").splitlines())
        return [span for span in found if span["name"] == name and attributes.items() <= span["attributes"].items()]

    def close(self) -> None:
        self.client.disconnect()
        self._cluster.end()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, spans: InMemorySpanExporter) -> Iterator[TracedWork]:
    made = TracedWork(tmp_path_factory.mktemp("tracing"))
    yield made
    made.close()


def named(finished: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in finished.get_finished_spans() if span.name == name]


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"0x{span.context.trace_id:032x}"


def span_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"0x{span.context.span_id:016x}"


def test_a_call_is_one_trace_from_submission_to_result(work: TracedWork, finished: InMemorySpanExporter) -> None:
    token = context.attach(baggage.set_baggage("tenant", "desk 7"))
    with trace.get_tracer("mine").start_as_current_span("nightly"):
        future = work.client.submit(step, 1)
        assert future.result(SECONDS) == (2, "desk 7"), "baggage is handed on"
    context.detach(token)
    [outer], [submitted], [fetched] = (named(finished, name) for name in ("nightly", "scaler.submit", "scaler.fetch"))
    task = f"{future.task_id:x}"
    [waited] = work.spans("scaler.wait", **{"scaler.task": task})
    [ran] = work.spans("scaler.run", **{"scaler.task": task, "scaler.attempt": 1})
    assert submitted.parent is not None and fetched.parent is not None
    assert submitted.parent.span_id == fetched.parent.span_id == outer.context.span_id
    assert fetched.attributes == {"scaler.task": task}
    for span in (waited, ran):
        assert (span["context"]["trace_id"], span["parent_id"]) == (trace_of(outer), span_of(submitted))
    assert ran["attributes"]["code.function.name"].endswith("traced_tasks:step")
    assert waited["end_time"] <= ran["end_time"] and waited["start_time"] <= ran["start_time"]
    [own] = [span for span in work.spans("step") if span["context"]["trace_id"] == trace_of(outer)]
    assert own["parent_id"] == ran["context"]["span_id"], "user code is in the span of its run"


def test_maps_graphs_coroutines_and_big_arguments_are_traced(work: TracedWork, finished: InMemorySpanExporter) -> None:
    assert work.client.map(step, range(3)) == [(number + 1, None) for number in range(3)]
    [rows] = named(finished, "scaler.submit")
    assert rows.attributes == {"scaler.calls": 3}
    assert len([span for span in work.spans("scaler.run") if span["parent_id"] == span_of(rows)]) == 3
    assert work.client.submit(step_later, 4).result(SECONDS) == 5
    [own] = [span for span in work.spans("step") if span["context"]["trace_id"] != trace_of(rows)][-1:]
    [ran] = [span for span in work.spans("scaler.run") if span["context"]["span_id"] == own["parent_id"]]
    assert ran["attributes"]["code.function.name"].endswith(":step_later")
    assert work.client.get({"a": (pow, 2, 3), "b": (max, "a", [1, 9])[:2], "c": (pow, "a", 2)}, ["c"]) == {"c": 64}
    assert {span["attributes"]["code.function.name"] for span in work.spans("scaler.run")} >= {"builtins:pow"}
    assert work.client.submit(len, bytes(500_000)).result(SECONDS) == 500_000
    future = work.client.submit(sorted, [3, 1, 2], reverse=True)
    assert work.client.submit(sum, future).result(SECONDS) == 6
    with pytest.raises(TypeError, match="step"):
        work.client.submit(step)


def test_a_failure_is_in_its_span(work: TracedWork, finished: InMemorySpanExporter) -> None:
    failed = work.client.submit(explode, "no")
    with pytest.raises(ValueError, match="no"):
        failed.result(SECONDS)
    [ran] = work.spans("scaler.run", **{"scaler.task": f"{failed.task_id:x}"})
    assert ran["status"]["status_code"] == "ERROR"
    assert ran["events"][0]["attributes"]["exception.type"] == "ValueError"
    [fetched] = named(finished, "scaler.fetch")
    assert fetched.status.is_ok or fetched.status.is_unset, "the failure was fetched without a fault"


def test_clients_that_do_not_ask_have_no_spans(work: TracedWork, finished: InMemorySpanExporter) -> None:
    with Client(address=work.address) as plain:
        assert plain.submit(step, 1).result(SECONDS)[0] == 2
    assert finished.get_finished_spans() == ()


def test_what_cannot_be_traced_is_refused(work: TracedWork, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Serializer):
        pass

    with pytest.raises(ValueError, match="serializer of its own cannot be traced"):
        Client(address=work.address, serializer=Own, tracing=True)
    with pytest.raises(TypeError, match="tracing"):
        Client(address=work.address, tracing="yes")  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, "scaler_client.calls.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=r"pip install scaler\[otel\]"):
        Client(address=work.address, tracing=True)
